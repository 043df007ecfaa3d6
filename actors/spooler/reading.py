"""Reads what the journal has, for the spooler, without lending or changing anything.

It sees the waiting runs (in memory, on disk, being read back or waiting for their time) and the
lent runs, in order of position, and of each run the items that are not settled. Runs that are only
on disk are read off the loop, one read at a time together with those of the backlog.

The view is true at the moment of the look; items may be settled before the answer arrives. The
chunks that it reads are kept meanwhile. A block that cannot be read is left out here; lending
reports it. A look goes over all places of the queue: 60 ms for a million runs.

A run is found by its id among the lent runs and those in memory, and otherwise in the indexes of
the chunks, off the loop; then its queue's places tell whether it still waits.

On cancel there is no answer.
"""

from collections.abc import Iterator
from heapq import nsmallest
from typing import NamedTuple

import trio

from actors.model.failures import Portions
from actors.model.runs import Place, StoredRun
from actors.model.slices import item_bits
from actors.ports.journal import Journal, Located
from actors.ports.tiers import Look, SeenRow
from actors.spooler.backlog import Backlog
from actors.spooler.ledger import Ledger
from actors.spooler.lending import Loans
from actors.spooler.messages import FindRun, JournalRun, Peek, ScanRuns


class Sight(NamedTuple):
    """A run that was seen, with its state at that time."""

    position: int
    size: int
    run: StoredRun | Place
    done: int
    portions: Portions


class Peeking:
    def __init__(
        self, journal: Journal, ledger: Ledger, backlog: Backlog, loans: Loans, reader: trio.Lock
    ) -> None:
        """`reader` is held by the task that reads from the journal."""
        self._journal = journal
        self._ledger = ledger
        self._backlog = backlog
        self._loans = loans
        self._reader = reader

    async def look(self, peek: Peek) -> None:
        """Answers a Peek; runs in a task of its own."""
        seen, after = self._choose(peek)
        try:
            read = await self._read_seen(seen)
        except OSError as problem:
            peek.reply.refuse(problem)
            return
        rows = [row for sight in seen if (row := row_of(sight, read)) is not None]
        peek.reply.put(Look(rows, None if after is None else str(after)))

    async def scan(self, scan: ScanRuns) -> None:
        """As `look`, with everything known about each run."""
        seen, after = self._choose(scan)
        try:
            read = await self._read_seen(seen)
        except OSError as problem:
            scan.reply.refuse(problem)
            return
        runs = [found for sight in seen if (found := self._as_found(sight, read)) is not None]
        scan.reply.put((runs, after))

    async def find(self, find: FindRun) -> None:
        """Finds a run by its id; twice if it was stored twice, long after each other."""
        runs = self._loans.lent_by_id(find.run_id) or self._backlog.in_memory(find.run_id)
        if not runs:
            try:
                runs = await self._read_by_id(find.run_id)
            except OSError as problem:
                find.reply.refuse(problem)
                return
        find.reply.put([self._described(run) for run in runs])

    def _choose(self, peek: Peek | ScanRuns) -> tuple[list[Sight], int | None]:
        """The first runs behind the position, and where the next look begins."""
        runs = {run.position: run for run in self._runs(peek.queue, peek.after_position)}
        seen: list[Sight] = []
        room = peek.bytes_max
        for position in nsmallest(peek.rows_max + 1, runs):
            run = runs[position]
            if seen and (run.size > room or len(seen) == peek.rows_max):
                return seen, seen[-1].position
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

    def _is_held(self, located: Located) -> bool:
        """Whether the run is held: the indexes also list staged and settled runs."""
        position = located.place.position
        return self._loans.is_lent(position) or self._backlog.waits(
            located.queue, located.priority, position
        )

    def _described(self, run: StoredRun) -> JournalRun:
        is_lent = self._loans.is_lent(run.position)
        return JournalRun(run, *self._loans.state_of(run.position), is_lent)

    def _as_found(self, sight: Sight, read: dict[int, StoredRun]) -> JournalRun | None:
        run = sight.run if isinstance(sight.run, StoredRun) else read.get(sight.position)
        if run is None:
            return None
        is_lent = self._loans.is_lent(sight.position)
        return JournalRun(run, sight.done, sight.portions, is_lent)

    async def _read_seen(self, seen: list[Sight]) -> dict[int, StoredRun]:
        return await self._read([sight.run for sight in seen if isinstance(sight.run, Place)])

    async def _read_by_id(self, run_id: bytes) -> list[StoredRun]:
        async with self._reader:
            with trio.CancelScope(shield=True):
                located = await trio.to_thread.run_sync(
                    self._journal.locate, run_id, self._ledger.numbers()
                )
        held = [found for found in located if self._is_held(found)]
        read = await self._read([found.place for found in held])
        return [run for found in held if (run := read.get(found.place.position)) is not None]

    async def _read(self, places: list[Place]) -> dict[int, StoredRun]:
        """Reads runs; their chunks are kept meanwhile."""
        if not places:
            return {}
        for place in places:
            self._ledger.doubt(place.position, 1)
        wanted = [(self._ledger.number_of(place.position), place) for place in places]
        try:
            async with self._reader:
                with trio.CancelScope(shield=True):
                    found = await trio.to_thread.run_sync(self._journal.read, wanted)
        finally:
            for place in places:
                self._ledger.doubt(place.position, -1)
        return {run.position: run for run in found if isinstance(run, StoredRun)}


def row_of(sight: Sight, read: dict[int, StoredRun]) -> SeenRow | None:
    """None if the run has nothing to show. Its items may have different attempts; the row shows the
    highest."""
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
