"""A look at what a queue has in the journal, for the spooler: nothing is lent, nothing changes.

Seen are the runs that wait, in memory, on disk, being read back or for their time, and those that
are lent, in the order of their positions; of each the items that are not settled yet. What is on
disk only is read off the loop, by the same reader as the backlog's, one after the other.

What it sees is true at the moment it looks, and some of it may be settled before the answer
arrives. The chunks that it reads are kept meanwhile. A block that cannot be read is left out here:
whoever takes it says so. A look goes over all places of the queue, 60 ms for a million of runs.

On cancel there is no answer.
"""

from collections.abc import Iterator
from heapq import nsmallest
from typing import NamedTuple

import trio

from actors.backlog import Backlog
from actors.ledger import Ledger
from actors.loans import Loans
from actors.messages import Peek, Place, StoredRun
from actors.portions import Portions
from actors.ports import Journal
from actors.slices import item_bits
from actors.tiers import Look, SeenRow


class Sight(NamedTuple):
    """A run that was seen, and what was known of it then."""

    position: int
    size: int
    run: StoredRun | Place
    done: int
    portions: Portions


class Peeking:
    def __init__(
        self, journal: Journal, ledger: Ledger, backlog: Backlog, loans: Loans, reader: trio.Lock
    ) -> None:
        """`reader` is held by whoever reads from the journal."""
        self._journal = journal
        self._ledger = ledger
        self._backlog = backlog
        self._loans = loans
        self._reader = reader

    async def look(self, peek: Peek) -> None:
        """Answers; a task of its own, started by the spooler's."""
        seen, cursor = self._choose(peek)
        on_disk = [sight.run for sight in seen if isinstance(sight.run, Place)]
        for place in on_disk:
            self._ledger.doubt(place.position, 1)
        try:
            read = await self._read(on_disk)
        except OSError as problem:
            peek.answer(problem)
            return
        finally:
            for place in on_disk:
                self._ledger.doubt(place.position, -1)
        rows = [row for sight in seen if (row := row_of(sight, read)) is not None]
        peek.answer(Look(rows, cursor))

    def _choose(self, peek: Peek) -> tuple[list[Sight], str | None]:
        """The first runs behind the position, and where the next look begins."""
        runs = {run.position: run for run in self._runs(peek.queue, peek.after_position)}
        seen: list[Sight] = []
        room = peek.bytes_max
        for position in nsmallest(peek.rows_max + 1, runs):
            run = runs[position]
            if seen and (run.size > room or len(seen) == peek.rows_max):
                return seen, str(seen[-1].position)
            room -= run.size
            seen.append(Sight(position, run.size, run, *self._loans.state_of(position)))
        return seen, None

    def _runs(self, queue: str, after: int) -> Iterator[StoredRun | Place]:
        yield from (run for run in self._loans.lent_runs(queue) if run.position > after)
        backlog = self._backlog.queues.get(queue)
        if backlog is None:
            return
        yield from (place for _, place, _ in backlog.later if place.position > after)
        for lane in backlog.lanes.values():
            yield from (run for run in lane.memory if run.position > after)
            yield from (place for place in lane.being_read if place.position > after)
            yield from lane.disk.after(after)

    async def _read(self, places: list[Place]) -> dict[int, StoredRun]:
        if not places:
            return {}
        wanted = [(self._ledger.number_of(place.position), place) for place in places]
        async with self._reader:
            with trio.CancelScope(shield=True):
                found = await trio.to_thread.run_sync(self._journal.read, wanted)
        return {run.position: run for run in found if isinstance(run, StoredRun)}


def row_of(sight: Sight, read: dict[int, StoredRun]) -> SeenRow | None:
    """None if there is nothing to be shown of it. A run's items may have been tried more or less
    often; it is shown with the most."""
    run = sight.run if isinstance(sight.run, StoredRun) else read.get(sight.position)
    if run is None:
        return None
    head = run.head
    every = item_bits(0, head.count)
    live = every & ~sight.done
    if not live:
        return None
    attempt = max((portion.attempt for portion in sight.portions), default=head.attempt)
    return SeenRow(0, head.due_ms, attempt, 0 if live == every else live, run.data)
