"""The spooler's part of the report that answers STATS: the journal's books, and the spool."""

from collections.abc import Iterable
from typing import Any, TypeVar

from actors.config.settings import SpoolSettings
from actors.model.books import JournalEntry, JournalReport, QueueReport, Totals
from actors.ports.journal import Room
from actors.spooler.backlog import Backlog
from actors.spooler.ledger import Ledger
from actors.spooler.lending import Loans

E = TypeVar("E", bound=QueueReport)


def make_report(
    ledger: Ledger, backlog: Backlog, loans: Loans, room: Room, settings: SpoolSettings
) -> JournalReport:
    """The spooler's part: the journal's books. Lent items count as running."""
    queues: dict[str, JournalEntry] = {}
    for name, totals in sorted(ledger.books.items()):
        scheduled = backlog.queues[name].scheduled_items if name in backlog.queues else 0
        queues[name] = make_entry(totals, scheduled, loans.lent.get(name, 0))
    for name, staged in ledger.staged.items():
        if staged:
            queues.setdefault(name, make_entry(Totals(), 0, 0))["staged"] = staged
    return {
        "daemon": summed(queues.values()),
        "queues": queues,
        "spool": {
            "runs": ledger.live_runs,
            "bytes": ledger.live_bytes,
            "disk_bytes": ledger.disk_bytes,
            "chunks": len(ledger),
            "reader_offset": ledger.reader_offset(),
            "writer_offset": ledger.writer_offset,
            "memory_runs": backlog.memory_runs,
            "memory_bytes": backlog.memory_bytes,
            "max_bytes": settings.max_bytes,
            "free_bytes": room.free_bytes,
            "min_free_bytes": settings.min_free_bytes,
            "spare_chunks": room.spares,
            "quarantine_bytes": room.quarantine_bytes,
        },
    }


def make_entry(totals: Totals, scheduled: int, running: int) -> JournalEntry:
    held = totals.held
    return {
        # Named one by one, in the order that all entries have: while a page is open, 500 queues
        # are reported each second, in the spooler's own time.
        "accepted": totals.accepted,
        "delivered": totals.delivered,
        "dead": totals.dead,
        "dropped": totals.dropped,
        "deleted": totals.deleted,
        "lost": totals.lost,
        "duplicate": totals.duplicate,
        "moved_in": totals.moved_in,
        "moved_out": totals.moved_out,
        "handed_over": totals.handed_over,
        "held": held,
        "spooled": held - scheduled - running,
        "scheduled": scheduled,
        "warm": 0,
        "cold": 0,
        "running": running,
        "staged": 0,
    }


def summed(entries: Iterable[E]) -> E:
    """Sums entries that have the same keys in the same order, key by key."""
    found: list[Any] = list(entries) or [make_entry(Totals(), 0, 0)]
    columns = zip(*(entry.values() for entry in found), strict=True)
    whole: Any = dict(zip(found[0], map(sum, columns), strict=True))
    result: E = whole
    return result
