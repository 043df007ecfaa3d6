"""The report that answers STATS: the books, for the daemon and per queue, and the tiers.

The journal's books and the cold store's are each exact. Together they are exact if the cold store's
are read first: items that the journal has handed over and the cold store has not counted yet are on
their way and count as held. The parts of `held` say where items are: warm counts its own, the
owners count the rest.

If daemons share a cold store, each reports its own journal and the whole store: items handed over
by other daemons have moved in. The fleet's books are the sum of the journals plus the store once;
`shared` lists the store's books separately.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final, NamedTuple

import trio

from actors.config.catalogue import Seen
from actors.config.settings import SpoolSettings
from actors.model.books import Totals
from actors.model.internal_errors import INTERNAL_ERRORS
from actors.model.refusals import unavailable
from actors.ports.journal import Room
from actors.ports.presence import Presence
from actors.ports.tiers import (
    ColdQueue,
    ColdTotals,
    Fill,
    StoreCorrupt,
    StoreUnavailable,
    WarmQueue,
)
from actors.spooler.backlog import Backlog
from actors.spooler.client import ask
from actors.spooler.ledger import Ledger
from actors.spooler.loans import Loans
from actors.spooler.messages import Inquire, SpoolerMessage

INQUIRIES_MAX: Final = 64


def make_report(
    ledger: Ledger, backlog: Backlog, loans: Loans, room: Room, settings: SpoolSettings
) -> dict[str, Any]:
    """The spooler's part: the journal's books. Lent items count as running."""
    queues = {}
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


def make_entry(totals: Totals, scheduled: int, running: int) -> dict[str, int]:
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


def summed(entries: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sums entries that have the same keys in the same order, key by key."""
    entries = list(entries) or [make_entry(Totals(), 0, 0)]
    columns = zip(*(entry.values() for entry in entries), strict=True)
    return dict(zip(entries[0], map(sum, columns), strict=True))


class Combined(NamedTuple):
    """The inputs of a queue's entry, and the entry. Never modified."""

    journal: dict[str, int]
    cold: ColdTotals
    fill: Fill
    entry: dict[str, int]


def with_tiers(
    report: dict[str, Any],
    cold: Mapping[str, ColdTotals],
    fills: Mapping[str, Fill],
    known: dict[str, Combined] | None = None,
) -> dict[str, Any]:
    """The journal's report combined with the tiers. `known` holds the last result; entries whose
    inputs have not changed are reused, and it is updated."""
    known = {} if known is None else known
    nothing, nowhere, empty = make_entry(Totals(), 0, 0), ColdTotals(), Fill()
    journal: Mapping[str, dict[str, int]] = report["queues"]
    queues: dict[str, dict[str, int]] = {}
    for name in sorted(journal.keys() | cold.keys()):
        parts = journal.get(name, nothing), cold.get(name, nowhere), fills.get(name, empty)
        found = known.get(name)
        if found is None or found[:3] != parts:
            found = known[name] = Combined(*parts, _combined(*parts))
        queues[name] = found.entry
    for gone in known.keys() - queues.keys():
        del known[gone]
    whole = summed(queues.values())
    whole.pop("handed_over", None)
    return {**report, "daemon": whole, "queues": queues}


def _combined(entry: dict[str, int], cold: ColdTotals, fill: Fill) -> dict[str, int]:
    on_its_way = max(0, entry["handed_over"] - cold.taken_from_here)
    in_cold = cold.held + on_its_way
    held = entry["held"] + in_cold
    # Outcomes may be recorded while warm still counts the items, or the other way round. If the
    # parts do not add up for a moment, the books are right and the parts are cut.
    left = held
    parts = {}
    for part, items in (
        ("running", fill.leased),
        ("warm", fill.waiting),
        ("scheduled", fill.scheduled + entry["scheduled"]),
        ("cold", in_cold - fill.cold_items),
    ):
        parts[part] = max(0, min(items, left))
        left -= parts[part]
    combined = entry | {
        # Items of keyed queues came to the cold store first.
        "accepted": entry["accepted"] + cold.accepted,
        "duplicate": entry["duplicate"] + cold.duplicate,
        # Items that other daemons have handed over to a shared store.
        "moved_in": entry["moved_in"] + cold.taken - cold.taken_from_here,
        "delivered": entry["delivered"] + cold.delivered,
        "dead": entry["dead"] + cold.dead,
        "deleted": entry["deleted"] + cold.deleted,
        "lost": entry["lost"] + cold.lost,
        "held": held,
        "spooled": left,
        **parts,
    }
    del combined["handed_over"]
    return combined


class Reporter:
    """Answers `Inquire`, one at a time. While cold is away its last known totals are used."""

    def __init__(
        self,
        inbox: trio.MemoryReceiveChannel[Inquire],
        spooler: trio.MemorySendChannel[SpoolerMessage],
        warm: WarmQueue,
        cold: ColdQueue,
        more: Callable[[], dict[str, Any]],
        *,
        is_shared: bool = False,
        presence: Presence | None = None,
    ) -> None:
        """`more` adds what other actors know: breakers, workers, the failover. `is_shared`: other
        daemons use the same cold store."""
        self._is_shared = is_shared
        self._presence = presence or Presence()
        self._inbox = inbox
        self._spooler = spooler
        self._warm = warm
        self._cold = cold
        self._more = more
        self._totals: Mapping[str, ColdTotals] = {}
        self._known: dict[str, Combined] = {}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        async for inquiry in self._inbox:
            try:
                report = await self.report()
            except (StoreUnavailable, StoreCorrupt) as problem:
                inquiry.refuse(unavailable(problem))
            except Exception as problem:
                inquiry.refuse(INTERNAL_ERRORS.note(problem, "STATS"))
            else:
                inquiry.answer(report)

    async def seen(self) -> dict[str, Seen]:
        """Every queue in the books."""
        queues: dict[str, dict[str, int]] = (await self.report())["queues"]
        return {
            queue: Seen(entry["accepted"], entry["held"] + entry["staged"], entry["dead"])
            for queue, entry in queues.items()
        }

    async def report(self) -> dict[str, Any]:
        """Raises StoreUnavailable if the spooler has stopped."""
        try:
            self._totals = await self._cold.totals()
            self._presence.found("report")
        except StoreUnavailable as problem:
            self._presence.lost("report", problem)
        journal: dict[str, Any] = await ask(self._spooler, Inquire)
        fills = await self._warm.fills()
        report = with_tiers(journal, self._totals, fills, self._known) | self._more()
        if self._is_shared:
            report["shared"] = {queue: asdict(books) for queue, books in self._totals.items()}
        return report
