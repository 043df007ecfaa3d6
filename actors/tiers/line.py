"""What the promoter has acquired of one queue and not entered into warm yet.

A line in the order of delivery, and a signal for each of the two tasks that promote one queue, of
which one acquires and one enters: each waits for one event, whatever it is that concerns it. Plain
data of these two, and of whoever takes back what must not enter any more.

Why there is one: a step of the cold store takes 5 ms while workers keep the process busy, most of
it waiting for a turn. Rows that were acquired only when there was room for them came too late: a
queue was drained from cold at 0.6 of the rate from warm, with nothing waiting there most of the
time. And why each has one signal: to wait for the first of several took a nursery and two or three
tasks each time. For 1,000 items that come out of cold the promoter took 210 µs with it, and takes
110 without.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import trio

from actors.model.slices import InCold, Slice
from actors.ports.tiers import Limits

AHEAD_BYTES_MAX: Final = 4 * 1024 * 1024
WORKS_SHARE: Final = 4
"""Between two rests nothing rests for that many times as long."""
ENTER_SLICES: Final = 64
ENTER_BYTES: Final = 1024 * 1024
"""So much is offered to warm at once. All of a line of 5,000 rows of one item, each time that ten
of them fitted, took 5 ms."""


class Promotion:
    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self.entering: list[Slice] = []
        """Between here and warm."""
        self.items = 0
        self.bytes = 0
        """Of all of it, what is entering included."""
        self.acquirer_told = trio.Event()
        """Something has left, or there may be something due."""
        self.enterer_told = trio.Event()
        """Something has joined, or there may be more room."""
        self.room_wanted = trio.Event()
        """What is first does not fit."""
        self.is_overtaken = False
        """Something has come to cold that is more urgent than the end of this line, or may have."""
        self._came: int | None = None
        """The most urgent that has come to cold while rows are acquired: they may not have it."""
        self.has_moved = False
        """Something has left since somebody looked for what is more urgent."""
        self.looked_at = 0.0
        self.rests_until = -math.inf
        """Before then nothing more is acquired: something was given back, for somebody else."""

    def rest(self, seconds: float) -> None:
        """Not, if it has just rested: whatever is asked for, most of the time it works."""
        now = trio.current_time()
        if now >= self.rests_until + WORKS_SHARE * seconds:
            self.rests_until = now + seconds

    def look(self) -> None:
        """Rows are acquired from now on: whatever has come so far is seen."""
        self._came = None

    def overtake(self, priority: int) -> None:
        """Something of this priority has come to cold."""
        self._came = priority if self._came is None else min(self._came, priority)
        last = self._last_priority
        if last is not None and priority < last:
            self.is_overtaken = True

    def seen_urgent(self, slices: Sequence[Slice]) -> None:
        """What came was acquired row by row, until it was no longer more urgent; all but what came
        meanwhile."""
        last = self._last_priority
        if not slices or last is None or slices[0].run.head.priority >= last:
            self.is_overtaken = False
        came, self._came = self._came, None
        ends = [slice_.run.head.priority for slice_ in slices[-1:]]
        if last is not None:
            ends.append(last)
        if came is not None and ends and came < max(ends):
            self.is_overtaken = True

    def look_again(self, now: float, after_s: float) -> None:
        """What comes due, or back, has no priority that is told. So, as long as the line moves,
        now and then somebody looks whether it is more urgent."""
        if self.has_moved and now >= self.looked_at + after_s:
            self.looked_at, self.has_moved = now, False
            self.is_overtaken = True

    @property
    def _last_priority(self) -> int | None:
        ends = [part[-1].run.head.priority for part in (self.slices, self.entering) if part]
        return max(ends, default=None)

    def join(self, slices: Iterable[Slice]) -> None:
        """They may come before what is here: a more urgent run overtakes in the line as well."""
        slices = list(slices)
        if slices:
            self.put_back(slices)
            self.tell_enterer()

    def put_back(self, slices: Sequence[Slice]) -> None:
        """What was withdrawn; nobody is told."""
        if slices:
            self._count(slices, 1)
            self.slices = sorted([*self.slices, *slices], key=lambda slice_: slice_.sort_key)

    def enter(self) -> list[Slice]:
        """The first ones, to be entered; what does not fit joins again."""
        end, size = 0, 0
        while end < len(self.slices) and end < ENTER_SLICES and size < ENTER_BYTES:
            size += self.slices[end].bytes
            end += 1
        self.entering, self.slices = self.slices[:end], self.slices[end:]
        return self.entering

    def entered(self, rest: Sequence[Slice]) -> None:
        before = self.items
        self._count(self.entering, -1)
        self._count(rest, 1)
        self.entering = []
        is_in_order = not rest or not self.slices or rest[-1].sort_key <= self.slices[0].sort_key
        self.slices[:0] = rest
        if not is_in_order:
            # Something joined meanwhile.
            self.slices.sort(key=lambda slice_: slice_.sort_key)
        if self.items < before:
            self._tell_left()

    def withdraw(self, flow: str | None = None, run_id: bytes | None = None) -> list[Slice]:
        """Takes out what is of this flow, or of this run, or all of it."""

        def matches(slice_: Slice) -> bool:
            head = slice_.run.head
            return (flow is None or head.flow == flow) and run_id in (None, head.run_id)

        gone = [slice_ for slice_ in self.slices if matches(slice_)]
        if gone:
            self._remove(gone, [slice_ for slice_ in self.slices if not matches(slice_)])
        return gone

    def forget(self, locks: Collection[bytes]) -> None:
        """Under these nothing is acquired any more: somebody else has the rows, or nobody."""
        gone = [slice_ for slice_ in self.slices if _lock_of(slice_) in locks]
        if gone:
            self._remove(gone, [slice_ for slice_ in self.slices if _lock_of(slice_) not in locks])

    def tell_acquirer(self) -> None:
        self.acquirer_told.set()
        self.acquirer_told = trio.Event()

    def tell_enterer(self) -> None:
        self.enterer_told.set()
        self.enterer_told = trio.Event()

    def is_to_look(self, now: float, after_s: float) -> bool:
        """Whether somebody had better look for what is more urgent, however long the line is."""
        return self.is_overtaken or (self.has_moved and now >= self.looked_at + after_s)

    def _remove(self, gone: Sequence[Slice], kept: list[Slice]) -> None:
        self._count(gone, -1)
        self.slices = kept
        self._tell_left()

    def _count(self, slices: Iterable[Slice], sign: int) -> None:
        for slice_ in slices:
            self.items += sign * slice_.items
            self.bytes += sign * slice_.bytes

    def _tell_left(self) -> None:
        self.has_moved = True
        self.tell_acquirer()


def _lock_of(slice_: Slice) -> bytes | None:
    owner = slice_.run.owner
    return owner.lock if isinstance(owner, InCold) else None


def to_acquire(room: Limits, in_hand: Limits, limits: Limits, bytes_free: int | None) -> Limits:
    """How much to acquire now: what fills the room, and as much ahead as warm takes in all.

    (0, 0) as long as at least half of that is in hand: acquiring is dear, however little it is.
    `bytes_free` is what all queues together may still have in memory; a quarter of it at most is
    for what is ahead.
    """
    ahead_bytes = min(limits.bytes, AHEAD_BYTES_MAX)
    if bytes_free is not None:
        ahead_bytes = min(ahead_bytes, max(0, bytes_free) // 4)
    wanted = Limits(
        room.items + limits.items - in_hand.items, room.bytes + ahead_bytes - in_hand.bytes
    )
    if wanted.items * 2 < limits.items or wanted.bytes * 2 < ahead_bytes or wanted.bytes <= 0:
        return Limits(0, 0)
    return Limits(max(1, wanted.items), wanted.bytes)
