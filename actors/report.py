"""The report that STATS answers with: the books, for the daemon and per queue, and the spool."""

from typing import Any

from actors.backlog import Backlog
from actors.books import Totals, total
from actors.ledger import Ledger
from actors.loans import Loans
from actors.ports import Room


def make_report(ledger: Ledger, backlog: Backlog, loans: Loans, room: Room) -> dict[str, Any]:
    queues = {}
    for name, totals in sorted(ledger.books.items()):
        scheduled = backlog.queues[name].scheduled_items if name in backlog.queues else 0
        queues[name] = _entry(totals, scheduled, loans.running.get(name, 0))
    whole = total(ledger.books)
    scheduled = sum(entry["scheduled"] for entry in queues.values())
    running = sum(entry["running"] for entry in queues.values())
    return {
        "daemon": _entry(whole, scheduled, running),
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
            "free_bytes": room.free_bytes,
            "spare_chunks": room.spares,
            "quarantine_bytes": room.quarantine_bytes,
        },
    }


def _entry(totals: Totals, scheduled: int, running: int) -> dict[str, int]:
    """`held` and its parts; warm and cold are kept elsewhere and are 0 here."""
    return totals.as_dict() | {
        "held": totals.held,
        "spooled": totals.held - scheduled - running,
        "scheduled": scheduled,
        "warm": 0,
        "cold": 0,
        "running": running,
        "staged": 0,
    }
