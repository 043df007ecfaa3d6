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
from typing import Any, NamedTuple

import trio

from actors.config.catalogue import Seen
from actors.model.books import Totals
from actors.ports.tiers import ColdTotals, Fill, StoreUnavailable
from actors.spooler.messages import Inquire
from actors.spooler.report import make_entry, summed
from actors.tiers.tiers import Tiers


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


class Books:
    """The books of all stores together. While cold is away its last known totals are used."""

    def __init__(self, tiers: Tiers, *, is_shared: bool) -> None:
        """`is_shared`: other daemons use the same cold store."""
        self._tiers = tiers
        self._is_shared = is_shared
        self._totals: Mapping[str, ColdTotals] = {}
        self._known: dict[str, Combined] = {}
        self._turn = trio.Lock()

    async def report(self) -> dict[str, Any]:
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

    async def seen(self) -> dict[str, Seen]:
        """The counts of every queue in the books."""
        queues: dict[str, dict[str, int]] = (await self.report())["queues"]
        return {
            queue: Seen(entry["accepted"], entry["held"] + entry["staged"], entry["dead"])
            for queue, entry in queues.items()
        }
