"""Turns a snapshot into the metric families of /metrics, in the order of docs/metrics.md.

Sections: the daemon, the books, the spool, the tiers, delivery.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib.metadata import version
from operator import add
from typing import Any, Final

from actors.metrics.snapshot import QueueFigures, Snapshot
from actors.model.error_types import ErrorType
from actors.model.latencies import NOTHING, SHOWN_BOUNDS_S, Distribution
from actors.ports.tiers import Fill, Limits
from actors.workers.group import Staff
from daemon.http.prometheus.exposition import Family, Page, QueueLines, labelled
from daemon.http.prometheus.flow_lines import FlowLines
from daemon.http.prometheus.label_values import OTHER, Labels, add_counts, merged
from forebay.item import FAILURE_REASONS

PHASES: Final = ("closed", "open", "half_open")
BOUNDS: Final = (*(repr(bound) for bound in SHOWN_BOUNDS_S), "+Inf")


class Kept:
    """Lines of earlier scrapes that may still be valid. Used by one scrape at a time."""

    def __init__(self) -> None:
        self.books = QueueLines(books)
        self.warm = QueueLines(warm)
        self.flows = FlowLines()
        self.delivery = QueueLines(delivery)
        self.staff = QueueLines(staff)


def families(
    snapshot: Snapshot, labels: Labels, now_ms: int, kept: Kept | None = None
) -> list[Family]:
    """Makes all families. Call it in a thread: for 500 queues with 4 flows each it takes 4 ms of
    CPU if few have changed since the last scrape, and 20 to 40 ms if all are new."""
    kept = kept or Kept()
    labels.keep(snapshot.defined)
    page = Page()

    def name(queue: str) -> str:
        return queue if queue in snapshot.defined else OTHER

    queues = labels.queues
    daemon(page, snapshot, now_ms)
    triggers(page, snapshot.report["triggers"])
    notices(page, snapshot.report["notifications"])
    kept.books.add_to(page, merged(snapshot.report["queues"], name, add_counts), queues)
    spool(page, snapshot)
    kept.warm.add_to(page, in_warm(snapshot, name), queues)
    kept.flows.add_to(page, snapshot, name, labels, now_ms)
    kept.delivery.add_to(page, delivered(snapshot, name), queues)
    kept.staff.add_to(page, working(snapshot, name), queues)
    breakers(page, snapshot, labels)
    return list(page.families.values())


# The daemon.


def daemon(page: Page, snapshot: Snapshot, now_ms: int) -> None:
    report, ingest = snapshot.report, snapshot.ingest
    info = labelled({"version": version("forebayd")})
    page.gauge("build_info", "The version of forebayd, as a label; always 1.", 1, info)
    age_s = max(0, now_ms - snapshot.at_ms) / 1000
    page.gauge("snapshot_age_seconds", "Age of the snapshot that these metrics come from.", age_s)
    for store, is_up in snapshot.stores.items():
        text = "1 if the store is usable, 0 if it is not."
        page.gauge("store_up", text, int(is_up), labelled({"store": store}))
    for store, times in report["away_total"].items():
        text = "How many times a store became unavailable since the daemon started."
        page.counter("store_away", text, times, labelled({"store": store}))
    page.gauge("connections", "Clients connected to the socket.", ingest["connections"])
    text = "Bytes of pushes that have no answer yet."
    page.gauge("connections_in_flight_bytes", text, ingest["in_flight_bytes"])
    for code, requests in sorted(ingest["refused"].items()):
        text = "Refused requests on the socket, by code."
        page.counter("refused_requests", text, requests, labelled({"code": code}))
    text = "Requests that failed because of a bug; the log has a traceback for each."
    page.counter("internal_errors", text, report["internal_errors_total"])
    page.gauge("sends_in_flight", "Sends in flight in all queues.", snapshot.sends_in_flight)
    text = "Sends that wait for global_send_limit."
    page.gauge("sends_waiting", text, snapshot.sends_waiting)
    page.gauge("consumer_leases", "Leases that consumers hold.", snapshot.pull_leases)
    failover = report["failover"]
    text = "Delivery outcomes that could not be recorded yet."
    page.gauge("failover_entries", text, failover["entries"])
    text = "Bytes of items held until their outcomes are recorded."
    page.gauge("failover_bytes", text, failover["bytes"])
    text = "Outcomes given up before they were recorded; their items are delivered again."
    page.counter("failover_let_go", text, failover["let_go_total"])
    text = "Rows that were missing in the shared warm queue and were made due again."
    page.counter("warm_repaired_rows", text, report["warm_repaired_total"])
    text = "Outcomes of expired leases; they had no effect."
    page.counter("stale_outcomes", text, report["stale_outcomes_total"])
    events = report["events"]
    page.counter("events_written", "Events written to the event log.", events["written_total"])
    text = "Events that could not be written to the event log."
    page.counter("events_dropped", text, events["dropped_total"])
    cron = report["cron"]
    page.gauge("schedules", "Schedules of this daemon.", cron["schedules"])
    text = "Ticks of schedules that this daemon has installed."
    page.counter("schedule_installed_ticks", text, cron["installed_total"])
    text = "Schedule ticks that came due while no daemon was running and will not run."
    page.counter("schedule_missed_ticks", text, cron["missed_total"])
    text = "Finished items missing from history because it ran out of room or time."
    page.counter("history_dropped_items", text, report["history_dropped_total"])


def triggers(page: Page, figures: Mapping[str, int]) -> None:
    page.gauge("triggers", "QUEUE triggers of this daemon.", figures["triggers"])
    text = "Unfinished trigger jobs of all daemons that share the cold store."
    page.gauge("trigger_jobs", text, figures["jobs"])
    page.counter("trigger_made_jobs", "Jobs made by this daemon's triggers.", figures["jobs_total"])
    text = "Items claimed for jobs by this daemon's triggers."
    page.counter("trigger_claimed_items", text, figures["items_total"])
    text = "Trigger failures; the trigger waits longer after each."
    page.counter("trigger_failures", text, figures["failed_total"])


def notices(page: Page, figures: Mapping[str, Any]) -> None:
    """`figures` as the notifier reports them."""
    for key, metric, text in (
        ("sent_total", "sent_notices", "Notices that the receiver accepted."),
        ("failed_total", "failed_notices", "Notices given up after failed attempts."),
    ):
        for name, found in figures["by_name"].items():
            for way, number in found[key].items():
                page.counter(metric, text, number, labelled({"notification": name, "way": way}))
    text = "Failures reported together with others in one notice."
    for name, found in figures["by_name"].items():
        label = labelled({"notification": name})
        page.counter("suppressed_incidents", text, found["suppressed_total"], label)
    text = "Failures without a notice because too many came at once."
    page.counter("dropped_incidents", text, figures["dropped_total"])


# The books.


def books(page: Page, label: str, entry: Mapping[str, int]) -> None:
    """Adds the lines of one queue from its entry in the report."""
    for key, text in _BOOK_COUNTERS.items():
        page.counter(f"{key}_items", text, entry[key], label)
    for key, text in _BOOK_GAUGES.items():
        page.gauge(f"{key}_items", text, entry[key], label)
    text = "Accepted items that are not finished, by place."
    held = page.family("held_items", "gauge", text)
    for place in _PLACES:
        held.add(f'{label[:-1]},place="{place}"}}', entry[place])


_PLACES: Final = ("spooled", "scheduled", "warm", "cold", "running")
_BOOK_GAUGES: Final = {
    "dead": "Dead letters that were neither retried nor deleted.",
    "staged": "Items of staged writes that are not published yet.",
}
_BOOK_COUNTERS: Final = {
    "accepted": "Items accepted since the queue was first seen, across restarts.",
    "delivered": "Items delivered since the queue was first seen, across restarts.",
    "dropped": "Items dropped undelivered since the queue was first seen, across restarts.",
    "deleted": "Items deleted since the queue was first seen, across restarts.",
    "lost": "Items lost to damage on disk since the queue was first seen; 0 on a healthy disk.",
    "duplicate": "Items of repeated pushes, not accepted again, since the queue was first seen.",
    "moved_in": "Items taken over from other daemons since the queue was first seen.",
    "moved_out": "Items that an older version exported to other daemons.",
}


# The spool.


def spool(page: Page, snapshot: Snapshot) -> None:
    report, counts = snapshot.report["spool"], snapshot.spool
    for key, name, text in _SPOOL_GAUGES:
        page.gauge(name, text, report[key])
    text = "Share of spool.max_bytes used by live runs."
    page.gauge("spool_utilization_ratio", text, report["bytes"] / max(1, report["max_bytes"]))
    for key, name, text in _SPOOL_COUNTERS:
        page.counter(name, text, getattr(counts, key))
    for reason, items in sorted(counts.refused.items()):
        text = "Items whose push was refused since the daemon started, by code."
        page.counter("refused_items", text, items, labelled({"reason": reason}))
    for reason, items in sorted(counts.dropped.items()):
        text = "Stored items dropped undelivered since the daemon started, by reason."
        page.counter("spool_dropped_items", text, items, labelled({"reason": reason}))
    text = "Items refused since the daemon started because the disk was full."
    page.counter("disk_full_items", text, counts.refused.get("DISK_FULL", 0))


_SPOOL_GAUGES: Final = (
    ("runs", "spool_runs", "Runs in the journal that are not settled."),
    ("bytes", "spool_bytes", "Bytes of live runs on disk."),
    ("max_bytes", "spool_max_bytes", "Limit on the bytes of live runs (spool.max_bytes)."),
    ("disk_bytes", "spool_disk_bytes", "Bytes of all chunk files, including settled runs."),
    ("chunks", "spool_chunks", "Chunk files in use."),
    ("spare_chunks", "spool_spare_chunks", "Chunk files written ahead of use."),
    ("memory_runs", "spool_memory_runs", "Waiting runs that are also kept in memory."),
    ("memory_bytes", "spool_memory_bytes", "Bytes of waiting runs kept in memory."),
    ("quarantine_bytes", "spool_quarantine_bytes", "Bytes of damaged journal data set aside."),
    ("free_bytes", "disk_available_bytes", "Free bytes on the journal's disk."),
    ("min_free_bytes", "disk_reserved_bytes", "New work is refused below this many free bytes."),
)
_SPOOL_COUNTERS: Final = (
    ("runs", "spool_stored_runs", "Runs stored since the daemon started."),
    ("bytes", "spool_stored_bytes", "Bytes of runs stored since the daemon started."),
    ("flushes", "spool_flushes", "Group commits of the journal."),
    ("chunk_rotations", "spool_chunk_rotations", "How many times the journal started a new chunk."),
    ("chunks_abandoned", "spool_chunks_abandoned", "Chunks abandoned after an I/O error."),
    ("meta_syncs", "spool_meta_syncs", "How many times spool.meta was replaced."),
)


# The tiers.


def in_warm(snapshot: Snapshot, name: Callable[[str], str]) -> dict[str, tuple[Fill, Limits]]:
    """The fill and the limits of warm, by label."""
    fills, empty = snapshot.fills, Fill()
    pairs = {queue: (fills.get(queue, empty), limits) for queue, limits in snapshot.limits.items()}
    return merged(pairs, name, _add_warm)


def warm(page: Page, label: str, found: tuple[Fill, Limits]) -> None:
    """The lines of one queue."""
    fill, limits = found
    page.gauge("warm_items", "Items in warm, including leased ones.", fill.items, label)
    page.gauge("warm_bytes", "Bytes of the items in warm.", fill.bytes, label)
    page.gauge("warm_max_items", "Limit on the items in warm.", limits.items, label)
    page.gauge("warm_max_bytes", "Limit on the bytes of items in warm.", limits.bytes, label)
    text = "How full warm is: the higher of the shares of its two limits."
    used = max(fill.items / limits.items, fill.bytes / limits.bytes)
    page.gauge("warm_utilization_ratio", text, used, label)


def _add_warm(one: tuple[Fill, Limits], other: tuple[Fill, Limits]) -> tuple[Fill, Limits]:
    fill = Fill(one[0].items + other[0].items, one[0].bytes + other[0].bytes)
    return fill, Limits(one[1].items + other[1].items, one[1].bytes + other[1].bytes)


# Delivery.


def delivered(snapshot: Snapshot, name: Callable[[str], str]) -> dict[str, QueueFigures]:
    """By label."""
    return merged(snapshot.tallies, name, _add_figures)


def delivery(page: Page, label: str, figures: QueueFigures) -> None:
    """Adds the lines of one queue. Names every family, even one without samples."""
    inner = label[:-1]
    for key, metric, text in _QUEUE_COUNTERS:
        page.counter(metric, text, getattr(figures, key), label)
    for key, metric, text in _ERROR_COUNTERS:
        family = page.family(f"{metric}_total", "counter", text)
        found: Mapping[ErrorType, int] = getattr(figures, key)
        for kind, items in sorted(found.items()):
            family.add(f'{inner},error="{kind}"}}', items)
    text = "Failed delivery attempts of items, by failure reason."
    failed = page.family("failed_items_total", "counter", text)
    for reason in FAILURE_REASONS:
        failed.add(f'{inner},reason="{reason}"}}', figures.failed.get(reason, 0))
    text = "Pauses before retries, one per failed slice."
    backoff = page.family("backoff_seconds", "summary", text)
    backoff.add_summary(label, figures.backoff_slices, figures.backoff_s)
    text = "Time per item from the start of its send (or a consumer's lease) to its end."
    processing = page.family("processing_duration_seconds", "histogram", text)
    _add_distribution(processing, label, figures.processing)
    text = "Time per item from when it was ready until a worker or consumer leased it."
    dequeue = page.family("dequeue_latency_seconds", "histogram", text)
    _add_distribution(dequeue, label, figures.dequeue)


def _add_distribution(family: Family, label: str, found: Distribution) -> None:
    if found != NOTHING:
        family.add_distribution(label, BOUNDS, found.cumulated(), found.sum_s)


_QUEUE_COUNTERS: Final = (
    ("batches", "sent_batches", "Sends that have ended since the daemon started."),
    ("failed_batches", "failed_batches", "Sends in which at least one item failed."),
    ("retry_successes", "retry_success_items", "Items delivered on a later attempt."),
    (
        "suspect_answers",
        "answers_suspect",
        "Answers with status 2xx that seem to report errors or have an unknown form.",
    ),
    ("lost_leases", "lost_leases", "Outcomes reported after their lease had expired."),
)
_ERROR_COUNTERS: Final = (
    ("retried", "retried_items", "Failed items that are retried, by error."),
    ("retry_failures", "retry_failure_items", "Items that failed again on a retry, by error."),
    ("died", "died_items", "Items that became dead letters since the daemon started, by error."),
)


def working(snapshot: Snapshot, name: Callable[[str], str]) -> dict[str, Staff]:
    """By label."""
    return merged(snapshot.staff, name, _add_staff)


def staff(page: Page, label: str, found: Staff) -> None:
    """The lines of one queue."""
    text = "Workers per queue; with pipeline_split, senders and preparers."
    workers = page.family("workers", "gauge", text)
    role = "sender" if found.preparers else "worker"
    workers.add(f'{label[:-1]},role="{role}"}}', found.alive)
    if found.preparers:
        workers.add(f'{label[:-1]},role="preparer"}}', found.preparers)
    page.gauge("workers_active", "Sends in flight per queue.", found.busy, label)
    text = "Duration of a send: moving average of the latest sends."
    latency = page.family("send_latency_ewma_seconds", "gauge", text)
    if found.latency_s is not None:
        latency.add(label, found.latency_s)


def breakers(page: Page, snapshot: Snapshot, labels: Labels) -> None:
    text = "1 for the current state of a breaker, 0 for the others."
    state = page.family("breaker_state", "gauge", text)
    counts = {
        name: page.family(f"breaker_{name}_total", "counter", text)
        for name, text in _BREAKER_COUNTERS.items()
    }
    text = "Consecutive failures of a destination."
    failures = page.family("breaker_failures", "gauge", text)
    together: dict[str, dict[str, int]] = {}
    for destination, figures in snapshot.breakers.items():
        entry = together.setdefault(labels.destination(destination), {})
        found = {phase: int(figures.phase == phase) for phase in PHASES}
        found |= {name: getattr(figures, f"{name}_total") for name in counts}
        found["failures"] = figures.failures
        for key, value in found.items():
            entry[key] = entry.get(key, 0) + value
    for destination, entry in together.items():
        label = labelled({"destination": destination})
        for phase in PHASES:
            state.add(labelled({"destination": destination, "state": phase}), entry[phase])
        for name, family in counts.items():
            family.add(label, entry[name])
        failures.add(label, entry["failures"])


_BREAKER_COUNTERS: Final = {
    "opened": "How many times a breaker has opened.",
    "rejected": "How many times a breaker made a sender wait.",
}


def _add_figures(one: QueueFigures, other: QueueFigures) -> QueueFigures:
    added: dict[str, Any] = {}
    for each in fields(QueueFigures):
        left, right = getattr(one, each.name), getattr(other, each.name)
        together = add_counts if isinstance(left, dict) else add
        added[each.name] = together(left, right)
    return QueueFigures(**added)


def _add_staff(one: Staff, other: Staff) -> Staff:
    latencies = [each.latency_s for each in (one, other) if each.latency_s is not None]
    return Staff(
        one.alive + other.alive,
        one.busy + other.busy,
        one.preparers + other.preparers,
        max(latencies, default=None),
    )
