"""What /metrics shows: a snapshot as families. docs/metrics.md lists them."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Final

from actors.metrics.snapshot import Snapshot
from daemon.http.prometheus import delivery as families_delivery
from daemon.http.prometheus import notices as families_notices
from daemon.http.prometheus import tiers as families_tiers
from daemon.http.prometheus import triggers as families_triggers
from daemon.http.prometheus.exposition import Family, Page, labelled
from daemon.http.prometheus.label_values import OTHER, Labels, add_counts, merged
from daemon.http.prometheus.queue_lines import QueueLines


class Kept:
    """What was made of earlier snapshots and may still be right. One scrape at a time has it."""

    def __init__(self) -> None:
        self.books = QueueLines(books)
        self.warm = QueueLines(families_tiers.warm)
        self.flows = families_tiers.FlowLines()
        self.delivery = QueueLines(families_delivery.delivery)
        self.staff = QueueLines(families_delivery.staff)


def families(
    snapshot: Snapshot, labels: Labels, now_ms: int, kept: Kept | None = None
) -> list[Family]:
    """All of them. For 500 queues of 4 flows it takes 4 ms of CPU if few have changed since the
    last time, and 20 to 40 if all of them are new: in a thread."""
    kept = kept or Kept()
    labels.keep(snapshot.defined)
    page = Page()

    def name(queue: str) -> str:
        return queue if queue in snapshot.defined else OTHER

    _daemon(page, snapshot, now_ms)
    families_notices.notices(page, snapshot.report["notifications"])
    families_triggers.triggers(page, snapshot.report["triggers"])
    _spool(page, snapshot)
    queues = labels.queues
    kept.books.add_to(page, merged(snapshot.report["queues"], name, add_counts), queues)
    kept.warm.add_to(page, families_tiers.in_warm(snapshot, name), queues)
    kept.flows.add_to(page, snapshot, name, labels, now_ms)
    kept.delivery.add_to(page, families_delivery.delivered(snapshot, name), queues)
    kept.staff.add_to(page, families_delivery.working(snapshot, name), queues)
    families_delivery.breakers(page, snapshot, labels)
    return list(page.families.values())


def _daemon(page: Page, snapshot: Snapshot, now_ms: int) -> None:
    report, ingest = snapshot.report, snapshot.ingest
    info = labelled({"version": version("forebayd")})
    page.gauge("build_info", "Which forebay this is: always 1.", 1, info)
    age_s = max(0, now_ms - snapshot.at_ms) / 1000
    page.gauge("snapshot_age_seconds", "How old what is shown here is.", age_s)
    for store, is_up in snapshot.stores.items():
        text = "Whether a store can be used: 1, or 0."
        page.gauge("store_up", text, int(is_up), labelled({"store": store}))
    for store, times in report["away_total"].items():
        text = "How often a store went away since the start."
        page.counter("store_away", text, times, labelled({"store": store}))
    page.gauge("connections", "Clients on the socket.", ingest["connections"])
    text = "Bytes of pushes that are not answered yet."
    page.gauge("connections_in_flight_bytes", text, ingest["in_flight_bytes"])
    for code, requests in sorted(ingest["refused"].items()):
        text = "Requests on the socket that were refused, by code."
        page.counter("refused_requests", text, requests, labelled({"code": code}))
    text = "Requests that failed because of a bug: the log has the traceback of each."
    page.counter("internal_errors", text, report["internal_errors_total"])
    page.gauge("sends_in_flight", "Sends under way, of all queues.", snapshot.sends_in_flight)
    text = "Sends that wait for the global limit."
    page.gauge("sends_waiting", text, snapshot.sends_waiting)
    page.gauge("consumer_leases", "Leases that consumers have.", snapshot.pull_leases)
    failover = report["failover"]
    text = "Outcomes that could not be recorded yet."
    page.gauge("failover_entries", text, failover["entries"])
    page.gauge("failover_bytes", "What these hold on to.", failover["bytes"])
    text = "Outcomes that were let go, to be delivered again."
    page.counter("failover_let_go", text, failover["let_go_total"])
    text = "Outcomes of leases that had run out, which changed nothing."
    page.counter("stale_outcomes", text, report["stale_outcomes_total"])
    events = report["events"]
    page.counter("events_written", "Events written to the event log.", events["written_total"])
    page.counter("events_dropped", "Events that were not.", events["dropped_total"])
    cron = report["cron"]
    page.gauge("schedules", "Schedules of this daemon.", cron["schedules"])
    text = "Ticks of schedules that this daemon has installed."
    page.counter("schedule_installed_ticks", text, cron["installed_total"])
    text = "Ticks that came due while no daemon was there, and were given up."
    page.counter("schedule_missed_ticks", text, cron["missed_total"])
    text = "Finished items that history did not keep for want of room or time."
    page.counter("history_dropped_items", text, report["history_dropped_total"])


def _spool(page: Page, snapshot: Snapshot) -> None:
    spool, counts = snapshot.report["spool"], snapshot.spool
    for key, name, text in _SPOOL_GAUGES:
        page.gauge(name, text, spool[key])
    text = "The share of max_bytes that live runs take."
    page.gauge("spool_utilization_ratio", text, spool["bytes"] / max(1, spool["max_bytes"]))
    for key, name, text in _SPOOL_COUNTERS:
        page.counter(name, text, getattr(counts, key))
    for reason, items in sorted(counts.refused.items()):
        text = "Items whose push was refused since the start, by code."
        page.counter("refused_items", text, items, labelled({"reason": reason}))
    for reason, items in sorted(counts.dropped.items()):
        text = "Stored items that went undelivered since the start, by why."
        page.counter("spool_dropped_items", text, items, labelled({"reason": reason}))
    text = "Items that were refused since the start because the disk is full."
    page.counter("disk_full_items", text, counts.refused.get("DISK_FULL", 0))


_SPOOL_GAUGES: Final = (
    ("runs", "spool_runs", "Runs in the journal that are not settled."),
    ("bytes", "spool_bytes", "What they take on disk."),
    ("max_bytes", "spool_max_bytes", "How much that may be."),
    ("disk_bytes", "spool_disk_bytes", "What the chunks take, live or not."),
    ("chunks", "spool_chunks", "Chunk files in use."),
    ("spare_chunks", "spool_spare_chunks", "Chunk files that wait to be used."),
    ("memory_runs", "spool_memory_runs", "Waiting runs that are in memory too."),
    ("memory_bytes", "spool_memory_bytes", "What they take there."),
    ("quarantine_bytes", "spool_quarantine_bytes", "Damaged parts that were set aside."),
    ("free_bytes", "disk_available_bytes", "Room on the journal's disk."),
    ("min_free_bytes", "disk_reserved_bytes", "With less room new work is refused."),
)
_SPOOL_COUNTERS: Final = (
    ("runs", "spool_stored_runs", "Runs that were stored since the start."),
    ("bytes", "spool_stored_bytes", "What they took on disk."),
    ("flushes", "spool_flushes", "Group commits."),
    ("chunk_rotations", "spool_chunk_rotations", "Chunks that came into use."),
    ("chunks_abandoned", "spool_chunks_abandoned", "Chunks given up after an I/O error."),
    ("meta_syncs", "spool_meta_syncs", "How often spool.meta was replaced."),
)


def books(page: Page, label: str, entry: Mapping[str, int]) -> None:
    """The lines of one queue, of its entry in the report."""
    for key, text in _BOOK_COUNTERS.items():
        page.counter(f"{key}_items", text, entry[key], label)
    for key, text in _BOOK_GAUGES.items():
        page.gauge(f"{key}_items", text, entry[key], label)
    text = "Accepted items that are not finished, by where they are."
    held = page.family("held_items", "gauge", text)
    for place in _PLACES:
        held.add(f'{label[:-1]},place="{place}"}}', entry[place])


_PLACES: Final = ("spooled", "scheduled", "warm", "cold", "running")
_BOOK_GAUGES: Final = {
    "dead": "Dead letters: they leave when they are retried or deleted.",
    "staged": "Items of writes that are not published yet.",
}
_BOOK_COUNTERS: Final = {
    "accepted": "Items that were made visible, ever.",
    "delivered": "Items that were delivered, ever.",
    "dropped": "Items that were dropped, ever.",
    "deleted": "Items that were deleted, ever.",
    "lost": "Items that damage on disk has destroyed, ever.",
    "duplicate": "Items of runs that were stored before, ever: not accepted.",
    "moved_in": "Items that came from other daemons, ever.",
    "moved_out": "Items that other daemons have taken over, ever.",
}
