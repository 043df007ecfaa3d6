"""Finding one item by its id, wherever it is: journal, warm, cold, dead letters, history.

The journal is asked first (what is lent or in memory at once, the rest through its indexes), then
the cold store by its index of bodies. An item that moves from the one to the other just then is
in neither for a moment, so that nobody is told "not found" before both were asked twice. Owns
nothing. What it says is true at the moment it looked.

What it can't do: find an item by id in the journal whose run lists ids of other runs (a part that
somebody pushed again); a search finds it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from actors.asking import Spooler, ask, readable
from actors.finished import FinishedRow
from actors.messages import FindRun, JournalRun, ScanRuns
from actors.refusals import bad_request, not_found
from actors.sightings import Sighting, of_cold, of_journal
from actors.slices import lowest_bit
from actors.tiers import ColdItems, ColdSight, WarmQueue, Whereabouts
from forebay.ids import parse_item_id
from forebay.run import IDS

LOOKS: Final = 2


class Finder:
    def __init__(
        self,
        spooler: Spooler,
        warm: WarmQueue,
        cold: ColdItems,
        noted: Callable[[bytes], Sequence[FinishedRow]],
        now_ms: Callable[[], int],
    ) -> None:
        """`noted`: what is on its way to the cold store's history, by run."""
        self._spooler = spooler
        self._warm = warm
        self._cold = cold
        self._noted = noted
        self._now_ms = now_ms

    async def find(self, item_id: str) -> Sighting:
        """Where the item is now, or what became of it. Refused if nobody knows it."""
        try:
            run_id, index = parse_item_id(item_id)
        except ValueError as problem:
            raise bad_request(str(problem)) from problem
        for _ in range(LOOKS):
            sighting = await self._in_journal(run_id, index) or await self._in_cold(run_id, index)
            if sighting is not None:
                return sighting
        raise not_found(f"item {item_id}")

    async def _in_journal(self, run_id: bytes, index: int) -> Sighting | None:
        for found in await ask_for_run(self._spooler, run_id):
            head = found.run.head
            if head.flags & IDS:
                continue
            warm = Whereabouts()
            if found.is_lent:
                warm = await whereabouts(self._warm, head.queue, run_id)
            sighting = of_journal(found, index, warm, self._now_ms())
            if sighting is not None:
                return sighting
        return None

    async def _in_cold(self, run_id: bytes, index: int) -> Sighting | None:
        sights = await self._cold.find(run_id, index)
        if not sights:
            return self._in_notes(run_id, index)
        sight, warm = sights[0], Whereabouts()
        if sight.lock is not None:
            warm = await whereabouts(self._warm, sight.head.queue, sight.head.run_id)
        return of_cold(sight, lowest_bit(sight.bits), warm)

    def _in_notes(self, run_id: bytes, index: int) -> Sighting | None:
        for row in self._noted(run_id):
            if row.bits >> index & 1 and not row.head.flags & IDS:
                past = (row.head, row.data, row.bits, row.attempt, 0, row.errors)
                sight = ColdSight(
                    row.outcome,
                    *past,
                    ended_ms=row.finished_ms,
                    holder=row.holder,
                    result=row.result,
                    job=row.job,
                )
                return of_cold(sight, index, Whereabouts())
        return None


async def whereabouts(warm: WarmQueue, queue: str, run_id: bytes) -> Whereabouts:
    return (await warm.locate(queue, frozenset((run_id,)))).get(run_id, Whereabouts())


async def ask_for_run(spooler: Spooler, run_id: bytes) -> list[JournalRun]:
    runs: list[JournalRun] = readable(await ask(spooler, partial(FindRun, run_id)))
    return runs


async def scan_runs(
    spooler: Spooler, queue: str, after: int, runs_max: int, bytes_max: int
) -> tuple[list[JournalRun], int | None]:
    """What the journal has of a queue behind a position, and behind which one to go on."""
    make = partial(ScanRuns, queue, after, runs_max, bytes_max)
    found: tuple[list[JournalRun], int | None] = readable(await ask(spooler, make))
    return found
