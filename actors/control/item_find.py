"""Finds one item by its id in any place: journal, warm, cold, dead letters, history.

The journal is asked first (lent runs and those in memory at once, the rest through its indexes),
then the cold store, by its index of bodies. An item that moves from one to the other is in neither
for a moment, so "not found" is answered only after both were asked twice. It owns nothing. Its
answer is true at the moment of the look.

A dead letter may have been removed because it was edited and pushed again under its id. So for an
item that seems to be deleted, runs of its queue that list ids of other runs are searched as well.

It cannot find an item in the journal whose run lists ids of other runs if nothing else is known of
it, or if the queue's journal holds more than `AGAIN_BYTES_MAX`; a search finds it.
"""

from typing import Final

from actors.control.item_view import Sighting, of_cold, of_journal
from actors.model.refusals import bad_request, not_found
from actors.model.slices import lowest_bit
from actors.model.states import State
from actors.observers.history import History
from actors.ports.tiers import ColdSight, WarmQueue, Whereabouts
from actors.spooler.messages import FindRun, ScanRuns
from actors.tiers.tiers import Tiers
from forebay.errors import BadRun
from forebay.ids import pack_item_id, parse_item_id
from forebay.run import IDS, Run, RunHead

LOOKS: Final = 2
AGAIN_ROWS: Final = 64
AGAIN_BYTES: Final = 1024 * 1024
"""Bytes of one step."""
AGAIN_BYTES_MAX: Final = 16 * 1024 * 1024


class Finder:
    def __init__(
        self,
        tiers: Tiers,
        history: History,
    ) -> None:
        self._spooler = tiers.spooler.client
        self._warm = tiers.warm
        self._cold = tiers.cold.items
        self._noted = history.noted
        self._now_ms = tiers.now_ms

    async def find(self, item_id: str) -> Sighting:
        """Where the item is now, or its outcome. Raises Refused if it is unknown."""
        try:
            run_id, index = parse_item_id(item_id)
        except ValueError as problem:
            raise bad_request(str(problem)) from problem
        for _ in range(LOOKS):
            sighting = await self._in_journal(run_id, index) or await self._in_cold(run_id, index)
            if sighting is not None and sighting.state is State.DELETED:
                return await self._pushed_again(sighting, run_id, index) or sighting
            if sighting is not None:
                return sighting
        raise not_found(f"item {item_id}")

    async def _in_journal(self, run_id: bytes, index: int) -> Sighting | None:
        for found in await self._spooler.ask(FindRun(run_id)):
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

    async def _pushed_again(self, deleted: Sighting, run_id: bytes, index: int) -> Sighting | None:
        """The item in another run of its queue that waits or was delivered a moment ago."""
        queue, after, room = deleted.head.queue, 0, AGAIN_BYTES_MAX
        while room > 0:
            runs, rest = await self._spooler.ask(ScanRuns(queue, after, AGAIN_ROWS, AGAIN_BYTES))
            for found in runs:
                head, data = found.run.head, found.run.data
                room -= len(data)
                bit = bit_of(head, data, run_id, index) if head.flags & IDS else 0
                if bit and not found.done & bit:
                    warm = await whereabouts(self._warm, queue, head.run_id)
                    return of_journal(found, lowest_bit(bit), warm, self._now_ms())
            if rest is None:
                break
            after = rest
        return self._in_notes(run_id, index)

    def _in_notes(self, run_id: bytes, index: int) -> Sighting | None:
        for row in self._noted(run_id):
            bit = bit_of(row.head, row.data, run_id, index)
            if row.bits & bit:
                past = (row.head, row.data, row.bits, row.attempt, 0, row.errors)
                sight = ColdSight(
                    row.outcome,
                    *past,
                    ended_ms=row.finished_ms,
                    holder=row.holder,
                    result=row.result,
                    job=row.job,
                )
                return of_cold(sight, lowest_bit(bit), Whereabouts())
        return None


def bit_of(head: RunHead, data: bytes, run_id: bytes, index: int) -> int:
    """The bit of an item in a run; 0 if it is not there."""
    if not head.flags & IDS:
        return 1 << index if head.run_id == run_id and index < head.count else 0
    try:
        return 1 << Run(head, data).packed_ids().index(pack_item_id(run_id, index))
    except (BadRun, ValueError):
        return 0


async def whereabouts(warm: WarmQueue, queue: str, run_id: bytes) -> Whereabouts:
    return (await warm.locate(queue, frozenset((run_id,)))).get(run_id, Whereabouts())
