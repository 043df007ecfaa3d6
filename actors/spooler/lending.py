"""Lends runs of the journal to their takers, reading them back from disk if necessary.

A part of the spooler. The takers of a queue are served in order as soon as there are runs, from
memory first; if the head of a lane is only on disk, a task reads it and wakes the spooler. A taker
may want nothing just now; it is then asked again each time, before the others.

Every read is awaited under a shield, because a thread cannot be stopped. A run that cannot be read
counts as lost, and its bytes go to the quarantine; a disk that fails temporarily is tried again.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog
import trio

from actors.model.runs import Fate, Place, StoredRun
from actors.ports.journal import Journal, Unreadable
from actors.spooler.arrivals import Arrivals
from actors.spooler.backlog import Backlog, Dropped, Lane
from actors.spooler.ledger import Ledger
from actors.spooler.loans import Loans
from actors.spooler.messages import Borrow, Lease, Take, Taken

log = structlog.get_logger()

READ_RUNS_MAX: Final = 256
READ_BYTES_MAX: Final = 4 * 1024 * 1024
READ_BYTES_MIN: Final = 256 * 1024


class Lending:
    def __init__(
        self,
        journal: Journal,
        ledger: Ledger,
        backlog: Backlog,
        loans: Loans,
        reader: trio.Lock,
        arrivals: Arrivals,
        wake: Callable[[], None],
    ) -> None:
        """`reader` allows one read at a time. `wake` is called when runs were read."""
        self._journal = journal
        self._ledger = ledger
        self._backlog = backlog
        self._loans = loans
        self._reader = reader
        self._arrivals = arrivals
        self._wake = wake
        self._takes: dict[str, deque[Take]] = {}
        self._queues_seen: set[str] = set()
        self.ready: set[str] = set()
        """Queues whose takers may find new runs."""
        self._waiting: dict[str, None] = {}
        """Queues whose takers want nothing just now, in the order of their answers."""

    def take(self, take: Take) -> None:
        self._takes.setdefault(take.queue, deque()).append(take)
        self.ready.add(take.queue)

    def is_wanted(self, queue: str) -> bool:
        """Whether a taker waits for this queue's runs, or has taken some."""
        return queue in self._takes

    def lend(self, nursery: trio.Nursery) -> None:
        """Serves the takers of queues that may have new runs."""
        ready, self.ready = self.ready, set()
        for queue in ready - self._queues_seen:
            self._announce(queue)
        # Takers that wanted nothing last time come first, in their order.
        waiting, self._waiting = self._waiting, {}
        for queue in waiting | dict.fromkeys(ready):
            takes = self._takes.get(queue)
            while takes:
                take = takes[0]
                bytes_max = take.budget.bytes_max()
                if not bytes_max:
                    self._waiting[queue] = None
                    break
                runs = self._backlog.take(queue, take.runs_max, bytes_max, take.items_max)
                if not runs:
                    self._start_reading(queue, nursery)
                    break
                takes.popleft()
                leases = [self._loans.lend(run) for run in runs]
                taken = Taken(leases, self._backlog.has_spilled(queue))
                take.budget.spend(taken.bytes)
                take.reply.put(taken)

    async def borrow(self, wish: Borrow) -> None:
        """Lends runs out of turn. Runs that cannot be read stay in line and are lent in turn."""
        waiting = {
            position: found[1]
            for position in wish.runs
            if (found := self._backlog.locate(wish.queue, position)) is not None
        }
        try:
            runs = await self._read_at(waiting)
        except OSError as error:
            wish.reply.refuse(error)
            return
        leases: dict[int, tuple[Lease, bool]] = {}
        for position, run_id in wish.runs.items():
            run = runs.get(position)
            # Only after the read is it known whether the run still waits.
            found = self._backlog.locate(wish.queue, position)
            if run is not None and found is not None and run.head.run_id == run_id:
                items = run.head.count - self._loans.state_of(position)[0].bit_count()
                self._backlog.shrink(wish.queue, found[0], position, items, is_gone=True)
                leases[position] = self._loans.lend(run), True
            elif (lease := self._loans.lease_of(position, run_id)) is not None:
                leases[position] = lease, False
        wish.reply.put(leases)

    async def _read_at(self, waiting: Mapping[int, StoredRun | Place]) -> dict[int, StoredRun]:
        runs = {at: run for at, run in waiting.items() if isinstance(run, StoredRun)}
        places = [place for place in waiting.values() if isinstance(place, Place)]
        if places:
            async with self._reader:
                wanted = [(self._ledger.number_of(place.position), place) for place in places]
                with trio.CancelScope(shield=True):
                    found = await trio.to_thread.run_sync(self._journal.read, wanted)
            runs |= {run.position: run for run in found if isinstance(run, StoredRun)}
        return runs

    def _announce(self, queue: str) -> None:
        """Tells dispatch about a queue it may not know; later, if dispatch is busy."""
        if self._arrivals.see_nowait(queue):
            self._queues_seen.add(queue)
        else:
            self.ready.add(queue)

    def _start_reading(self, queue: str, nursery: trio.Nursery) -> None:
        lane = self._backlog.lane_to_read(queue)
        if lane is not None:
            lane.reading = True
            nursery.start_soon(self._read, queue, lane)

    async def _read(self, queue: str, lane: Lane) -> None:
        """Reads the head of a lane into memory, in order. Reads a little even if memory is full: no
        queue may starve because others fill the cap."""
        async with self._reader:
            room = min(READ_BYTES_MAX, max(READ_BYTES_MIN, self._backlog.room_bytes()))
            places = self._backlog.begin_reading(lane, READ_RUNS_MAX, room)
            wanted = [(self._ledger.number_of(place.position), place) for place in places]
            try:
                with trio.CancelScope(shield=True):
                    found = await trio.to_thread.run_sync(self._journal.read, wanted)
            except OSError as error:
                # The runs themselves may be intact: the next tick tries again.
                log.error("spooler.cannot_read", queue=queue, error=str(error))
                self._backlog.end_reading(lane, [], places)
                self.ready.add(queue)
                return
            self._end_reading(queue, lane, places, found)
        self._wake()

    def _end_reading(
        self,
        queue: str,
        lane: Lane,
        places: Sequence[Place],
        found: Sequence[StoredRun | Unreadable],
    ) -> None:
        runs = [run for run in found if isinstance(run, StoredRun)]
        self._backlog.end_reading(lane, runs, [])
        for place, run in zip(places, found, strict=True):
            if isinstance(run, Unreadable):
                items = self._loans.drop(Dropped(queue, lane, place, None), Fate.LOST)
                log.error(
                    "spooler.block_unreadable",
                    queue=queue,
                    position=place.position,
                    items_lost=items,
                    reason=run.reason,
                )
        self.ready.add(queue)

    def drop(self, dropped: Dropped) -> int:
        """Drops a waiting run to make room; returns the number of its items."""
        items = self._loans.drop(dropped, Fate.DROPPED)
        position = dropped.place.position
        log.warning("spooler.dropped_oldest", queue=dropped.queue, position=position, items=items)
        return items
