"""The backlog: the waiting runs per queue and priority, the first in memory, the rest on disk.

A lane holds the runs of one queue and one priority, in order. Its head is in memory, as far as one
cap for all lanes allows; of the rest only the places are kept, fourteen bytes per run, and the runs
are read back later. Runs that were given back for a while wait in a heap of their queue and join
their lane at their time. Plain data of the spooler's task.
"""

import sys
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from actors.model.runs import Place, StoredRun


class Places:
    """A queue of places, fourteen bytes each."""

    __slots__ = ("_head", "_items", "_positions", "_sizes")

    COMPACT_MIN: Final = 1024

    def __init__(self) -> None:
        self._positions = array("Q")
        self._sizes = array("I")
        self._items = array("H")
        self._head = 0

    def __len__(self) -> int:
        return len(self._positions) - self._head

    def append(self, position: int, size: int, items: int) -> None:
        self._positions.append(position)
        self._sizes.append(size)
        self._items.append(items)

    def first(self) -> int:
        return self._positions[self._head]

    def peek(self, runs_max: int, bytes_max: int) -> list[Place]:
        """The first places, at least one, as far as both limits allow."""
        places: list[Place] = []
        room = bytes_max
        for at in range(self._head, min(self._head + runs_max, len(self._positions))):
            size = self._sizes[at]
            if places and size > room:
                break
            room -= size
            places.append(Place(self._positions[at], size, self._items[at]))
        return places

    def after(self, position: int) -> list[Place]:
        """All places behind a position."""
        columns = (self._positions, self._sizes, self._items)
        rows = zip(*(column[self._head :] for column in columns), strict=True)
        return [Place(*row) for row in rows if row[0] > position]

    def drop(self, count: int) -> None:
        """Drops the first `count` places; their memory is released from time to time."""
        self._head += count
        if self._head >= self.COMPACT_MIN and self._head * 2 >= len(self._positions):
            for column in (self._positions, self._sizes, self._items):
                del column[: self._head]
            self._head = 0

    def find(self, position: int) -> int | None:
        """The index of a position: 50 ms for a million places."""
        try:
            return self._positions.index(position, self._head)
        except ValueError:
            return None

    def shrink(self, position: int, items: int, *, is_gone: bool) -> bool:
        """Takes `items` off a place, or removes the place. False: it is not here."""
        at = self.find(position)
        if at is None:
            return False
        if is_gone and at == self._head:
            self.drop(1)
        elif is_gone:
            for column in (self._positions, self._sizes, self._items):
                del column[at]
        else:
            self._items[at] -= items
        return True

    def at(self, position: int) -> Place | None:
        at = self.find(position)
        return None if at is None else Place(position, self._sizes[at], self._items[at])

    def put_first(self, place: Place) -> None:
        """Puts back a place that was just dropped."""
        if self._head:
            self._head -= 1
            self._positions[self._head] = place.position
            self._sizes[self._head] = place.size
            self._items[self._head] = place.items
        else:
            self._positions.insert(0, place.position)
            self._sizes.insert(0, place.size)
            self._items.insert(0, place.items)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A run that was taken out to make room; `run` is None if it was only on disk."""

    queue: str
    lane: "Lane"
    place: Place
    run: StoredRun | None


class Lane:
    """The waiting runs of one queue and one priority. All of `memory` comes before `disk`."""

    __slots__ = ("being_read", "disk", "memory", "reading")

    def __init__(self) -> None:
        self.memory: deque[StoredRun] = deque()
        self.disk = Places()
        self.reading = False
        """Its first places have been taken out and are being read."""
        self.being_read: Sequence[Place] = ()

    def __bool__(self) -> bool:
        return bool(self.memory or self.disk or self.reading)

    def oldest(self) -> int:
        return self.memory[0].position if self.memory else self.disk.first()


class QueueBacklog:
    """The lanes of one queue, the most urgent first, and its runs that wait for a time."""

    __slots__ = ("lanes", "later", "scheduled_items")

    def __init__(self) -> None:
        self.lanes: dict[int, Lane] = {}
        self.later: list[tuple[int, Place, int]] = []
        """A heap of (time_ms, place, priority)."""
        self.scheduled_items = 0

    def lane(self, priority: int) -> Lane:
        lane = self.lanes.get(priority)
        if lane is None:
            lane = self.lanes[priority] = Lane()
            self.lanes = dict(sorted(self.lanes.items()))
        return lane

    def waiting(self) -> Iterator[tuple[int, Lane]]:
        return ((priority, lane) for priority, lane in self.lanes.items() if lane)


class Backlog:
    """The backlogs of all queues, under one cap on memory."""

    def __init__(self, memory_runs_max: int, memory_bytes_max: int) -> None:
        self.queues: dict[str, QueueBacklog] = {}
        self.memory_runs = 0
        self.memory_bytes = 0
        self._memory_runs_max = memory_runs_max
        self._memory_bytes_max = memory_bytes_max

    def queue(self, name: str) -> QueueBacklog:
        backlog = self.queues.get(name)
        if backlog is None:
            backlog = self.queues[name] = QueueBacklog()
        return backlog

    def _has_room(self, size: int) -> bool:
        return (
            self.memory_runs < self._memory_runs_max
            and self.memory_bytes + size <= self._memory_bytes_max
        )

    def room_bytes(self) -> int:
        return max(0, self._memory_bytes_max - self.memory_bytes)

    def add(self, run: StoredRun, *, in_memory: bool = True) -> None:
        """Adds a run that was just committed; in memory if that is wanted and there is room."""
        head = run.head
        lane = self.queue(head.queue).lane(head.priority)
        behind = lane.disk or lane.reading
        if in_memory and not behind and self._has_room(len(run.data)):
            lane.memory.append(run)
            self._remember(run)
        else:
            lane.disk.append(run.position, run.size, head.count)

    def add_place(self, queue: str, priority: int, place: Place) -> None:
        """Adds a run that is only on disk."""
        self.queue(queue).lane(priority).disk.append(*place)

    def add_later(self, queue: str, priority: int, time_ms: int, place: Place) -> None:
        """Adds a run that was given back and joins its lane at that time."""
        backlog = self.queue(queue)
        heappush(backlog.later, (time_ms, place, priority))
        backlog.scheduled_items += place.items

    def wake_due(self, now_ms: int) -> list[str]:
        """Moves due runs to their lanes; returns the queues that got some."""
        woken = []
        for name, backlog in self.queues.items():
            if backlog.later and backlog.later[0][0] <= now_ms:
                woken.append(name)
            while backlog.later and backlog.later[0][0] <= now_ms:
                _, place, priority = heappop(backlog.later)
                backlog.scheduled_items -= place.items
                backlog.lane(priority).disk.append(*place)
        return woken

    def take(
        self, queue: str, runs_max: int, bytes_max: int, items_max: int = sys.maxsize
    ) -> list[StoredRun]:
        """Takes the next runs that are in memory, at least one if there is one.

        Stops before a lane whose head must be read back first: order comes before speed.
        """
        taken: list[StoredRun] = []
        size = items = 0
        for _, lane in self.queue(queue).waiting():
            while lane.memory and len(taken) < runs_max:
                run = lane.memory[0]
                is_over = size + len(run.data) > bytes_max or items + run.head.count > items_max
                if taken and is_over:
                    return taken
                lane.memory.popleft()
                self._forget(run)
                size += len(run.data)
                items += run.head.count
                taken.append(run)
            if lane or len(taken) >= runs_max:
                break
        return taken

    def has_spilled(self, queue: str) -> bool:
        """Whether some waiting runs are only on disk."""
        return any(lane.disk or lane.reading for lane in self.queue(queue).lanes.values())

    def lane_to_read(self, queue: str) -> Lane | None:
        """The most urgent lane, if its head is on disk and is not being read yet."""
        first = next(self.queue(queue).waiting(), None)
        if first is None or first[1].memory or first[1].reading:
            return None
        return first[1]

    def begin_reading(self, lane: Lane, runs_max: int, bytes_max: int) -> list[Place]:
        """Takes the first places out of a lane. No run behind them is lent meanwhile."""
        places = lane.disk.peek(runs_max, bytes_max)
        lane.disk.drop(len(places))
        lane.reading = True
        lane.being_read = places
        return places

    def end_reading(self, lane: Lane, runs: Iterable[StoredRun], unread: Sequence[Place]) -> None:
        """Makes the runs that were read the head of the lane; puts unread places back."""
        lane.reading = False
        lane.being_read = ()
        for run in runs:
            lane.memory.append(run)
            self._remember(run)
        for place in reversed(unread):
            lane.disk.put_first(place)

    def give_back(self, run: StoredRun) -> None:
        """Puts a lent run that comes back undelivered first in its lane."""
        self.queue(run.head.queue).lane(run.head.priority).memory.appendleft(run)
        self._remember(run)

    def drop_oldest(self, queue: str) -> Dropped | None:
        """Takes out the oldest waiting run of a queue, if there is one that is not being read."""
        lanes = [lane for _, lane in self.queue(queue).waiting() if lane.memory or not lane.reading]
        if not lanes:
            return None
        lane = min(lanes, key=Lane.oldest)
        if not lane.memory:
            (place,) = lane.disk.peek(1, 0)
            lane.disk.drop(1)
            return Dropped(queue, lane, place, None)
        run = lane.memory.popleft()
        self._forget(run)
        return Dropped(queue, lane, Place(run.position, run.size, run.head.count), run)

    def undrop(self, dropped: Dropped) -> None:
        """Puts the run back: the run that needed the room was not stored."""
        if dropped.run is None:
            dropped.lane.disk.put_first(dropped.place)
        else:
            dropped.lane.memory.appendleft(dropped.run)
            self._remember(dropped.run)

    def shrink(
        self, queue: str, priority: int, position: int, items: int, *, is_gone: bool
    ) -> bool:
        """Takes `items` off a waiting run; `is_gone`: none is left. False: the run does not wait,
        or is being read."""
        backlog = self.queues.get(queue)
        if backlog is None:
            return False
        lane = backlog.lanes.get(priority)
        if lane is not None:
            for order, run in enumerate(lane.memory):
                if run.position == position:
                    if is_gone:
                        del lane.memory[order]
                        self._forget(run)
                    return True
            if lane.disk.shrink(position, items, is_gone=is_gone):
                return True
        return _shrink_later(backlog, position, items, is_gone=is_gone)

    def locate(self, queue: str, position: int) -> tuple[int, StoredRun | Place] | None:
        """The priority of a waiting run, and the run or its place on disk; None: it does not wait,
        or is being read."""
        backlog = self.queues.get(queue)
        if backlog is None:
            return None
        for priority, lane in backlog.lanes.items():
            for run in lane.memory:
                if run.position == position:
                    return priority, run
            if (place := lane.disk.at(position)) is not None:
                return priority, place
        for _, place, priority in backlog.later:
            if place.position == position:
                return priority, place
        return None

    def in_memory(self, run_id: bytes) -> list[StoredRun]:
        """The runs in memory with this id. Looks at all of them, usually 2,048."""
        return [
            run
            for backlog in self.queues.values()
            for lane in backlog.lanes.values()
            for run in lane.memory
            if run.head.run_id == run_id
        ]

    def waits(self, queue: str, priority: int, position: int) -> bool:
        """Whether the run at this position waits, in memory, on disk or for its time."""
        backlog = self.queues.get(queue)
        if backlog is None:
            return False
        lane = backlog.lanes.get(priority)
        return any(place.position == position for _, place, _ in backlog.later) or (
            lane is not None
            and (
                any(run.position == position for run in lane.memory)
                or any(place.position == position for place in lane.being_read)
                or lane.disk.find(position) is not None
            )
        )

    def _remember(self, run: StoredRun) -> None:
        self.memory_runs += 1
        self.memory_bytes += len(run.data)

    def _forget(self, run: StoredRun) -> None:
        self.memory_runs -= 1
        self.memory_bytes -= len(run.data)


def _shrink_later(backlog: QueueBacklog, position: int, items: int, *, is_gone: bool) -> bool:
    for order, (time_ms, place, priority) in enumerate(backlog.later):
        if place.position == position:
            backlog.scheduled_items -= items
            if is_gone:
                del backlog.later[order]
            else:
                left = place._replace(items=place.items - items)
                backlog.later[order] = (time_ms, left, priority)
            heapify(backlog.later)
            return True
    return False
