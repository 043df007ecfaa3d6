"""The books of the daemon and of each queue, as STATS reports them: the journal and the tiers.

The journal's books and the cold store's are each exact. Together they are exact if the cold store's
are read first: items that the journal has handed over and the cold store has not counted yet are on
their way and count as held. The parts of `held` say where items are: warm counts its own, the
owners count the rest.

If daemons share a cold store, each reports its own journal and the whole store: items handed over
by other daemons have moved in. The fleet's books are the sum of the journals plus the store once;
`shared` lists the store's books separately.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple, NotRequired, TypedDict

import trio

from actors.config.catalogue import QueueCounts
from actors.model.books import JournalEntry, JournalReport, QueueReport, SpoolReport, Totals
from actors.ports.tiers import ColdTotals, Fill, StoreUnavailable
from actors.spooler.messages import Inquire
from actors.spooler.report import make_entry, summed
from actors.tiers.tiers import Tiers


class BooksReport(TypedDict):
    """The books of all stores together."""

    daemon: QueueReport
    queues: dict[str, QueueReport]
    spool: SpoolReport
    shared: NotRequired[dict[str, dict[str, Any]]]
    """The books of a store that daemons share, by queue."""


class Combined(NamedTuple):
    """The inputs of a queue's entry, and the entry. Never modified."""

    journal: JournalEntry
    cold: ColdTotals
    fill: Fill
    entry: QueueReport


def with_tiers(
    report: JournalReport,
    cold: Mapping[str, ColdTotals],
    fills: Mapping[str, Fill],
    known: dict[str, Combined] | None = None,
) -> BooksReport:
    """The journal's report combined with the tiers. `known` holds the last result; entries whose
    inputs have not changed are reused, and it is updated."""
    known = {} if known is None else known
    nothing, nowhere, empty = make_entry(Totals(), 0, 0), ColdTotals(), Fill()
    journal = report["queues"]
    queues: dict[str, QueueReport] = {}
    for name in sorted(journal.keys() | cold.keys()):
        parts = journal.get(name, nothing), cold.get(name, nowhere), fills.get(name, empty)
        found = known.get(name)
        if found is None or found[:3] != parts:
            found = known[name] = Combined(*parts, _combined(*parts))
        queues[name] = found.entry
    for gone in known.keys() - queues.keys():
        del known[gone]
    whole = summed(queues.values()) if queues else _combined(nothing, nowhere, empty)
    return {"daemon": whole, "queues": queues, "spool": report["spool"]}


def _combined(entry: JournalEntry, cold: ColdTotals, fill: Fill) -> QueueReport:
    on_its_way = max(0, entry["handed_over"] - cold.taken_from_here)
    in_cold = cold.held + on_its_way
    held = entry["held"] + in_cold
    # Outcomes may be recorded while warm still counts the items, or the other way round. If the
    # parts do not add up for a moment, the books are right and the parts are cut.
    left = held
    parts: list[int] = []
    scheduled = fill.scheduled + entry["scheduled"]
    for items in (fill.leased, fill.waiting, scheduled, in_cold - fill.cold_items):
        parts.append(max(0, min(items, left)))
        left -= parts[-1]
    running, warm, scheduled, in_cold_now = parts
    return {
        # Items of keyed queues came to the cold store first.
        "accepted": entry["accepted"] + cold.accepted,
        "delivered": entry["delivered"] + cold.delivered,
        "dead": entry["dead"] + cold.dead,
        "dropped": entry["dropped"],
        "deleted": entry["deleted"] + cold.deleted,
        "lost": entry["lost"] + cold.lost,
        "duplicate": entry["duplicate"] + cold.duplicate,
        # Items that other daemons have handed over to a shared store.
        "moved_in": entry["moved_in"] + cold.taken - cold.taken_from_here,
        "moved_out": entry["moved_out"],
        "held": held,
        "spooled": left,
        "scheduled": scheduled,
        "warm": warm,
        "cold": in_cold_now,
        "running": running,
        "staged": entry["staged"],
    }


class Books:
    """The books of all stores together. While cold is away its last known totals are used."""

    def __init__(self, tiers: Tiers, *, is_shared: bool) -> None:
        """`is_shared`: other daemons use the same cold store."""
        self._tiers = tiers
        self._is_shared = is_shared
        self._totals: Mapping[str, ColdTotals] = {}
        self._known: dict[str, Combined] = {}
        self._turn = trio.Lock()

    async def report(self) -> BooksReport:
        """Raises StoreUnavailable if the spooler has stopped. One at a time."""
        async with self._turn:
            with suppress(StoreUnavailable):
                self._totals = await self._tiers.cold.totals()
            journal = await self._tiers.spooler.client.ask(Inquire())
            fills = await self._tiers.warm.fills()
            report = with_tiers(journal, self._totals, fills, self._known)
            if self._is_shared:
                report["shared"] = {queue: asdict(books) for queue, books in self._totals.items()}
            return report

    async def seen(self) -> dict[str, QueueCounts]:
        """The counts of every queue in the books."""
        queues = (await self.report())["queues"]
        return {
            queue: QueueCounts(entry["accepted"], entry["held"] + entry["staged"], entry["dead"])
            for queue, entry in queues.items()
        }
