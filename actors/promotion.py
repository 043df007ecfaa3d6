"""What the promoter has acquired of one queue and not entered into warm yet.

A line in the order of delivery, and two signals: that something has joined it, and that something
has left. Plain data of the two tasks that promote one queue, of which one acquires and one enters,
and of whoever takes back what must not enter any more.

Why there is one: a step of the cold store takes 5 ms while workers keep the process busy, most of
it waiting for a turn. Rows that were acquired only when there was room for them came too late: a
queue was drained from cold at 0.6 of the rate from warm, with nothing waiting there most of the
time.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import trio

from actors.slices import Slice
from actors.tiers import Limits

AHEAD_BYTES_MAX: Final = 4 * 1024 * 1024


class Promotion:
    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self.entering: list[Slice] = []
        """Between here and warm."""
        self.joined = trio.Event()
        self.left = trio.Event()
        self.woken = trio.Event()
        """There may be something due, or more room."""
        self.is_overtaken = False
        """Something has come to cold that is more urgent than the end of this line."""

    def overtake(self, priority: int) -> None:
        """Something of this priority has come to cold."""
        if self.slices and priority < self.slices[-1].run.head.priority:
            self.is_overtaken = True

    def seen_urgent(self, slices: Sequence[Slice]) -> None:
        """What came was acquired row by row, until it was no longer more urgent."""
        last = self.slices[-1].run.head.priority if self.slices else 0
        if not slices or slices[0].run.head.priority >= last:
            self.is_overtaken = False

    @property
    def items(self) -> int:
        return sum(slice_.items for slice_ in (*self.slices, *self.entering))

    @property
    def bytes(self) -> int:
        return sum(slice_.bytes for slice_ in (*self.slices, *self.entering))

    def join(self, slices: Iterable[Slice]) -> None:
        """They may come before what is here: a more urgent run overtakes in the line as well."""
        slices = list(slices)
        if not slices:
            return
        self.slices = sorted([*self.slices, *slices], key=lambda slice_: slice_.sort_key)
        self.joined.set()
        self.joined = trio.Event()

    def enter(self) -> list[Slice]:
        """All of it, to be entered; what does not fit joins again."""
        self.entering, self.slices = self.slices, []
        return self.entering

    def entered(self, rest: Sequence[Slice]) -> None:
        before, self.entering = self.items, []
        self.slices = sorted([*rest, *self.slices], key=lambda slice_: slice_.sort_key)
        if self.items < before:
            self._tell_left()

    def withdraw(self, flow: str | None = None) -> list[Slice]:
        """Takes out what is of this flow, or all of it."""
        gone = [s for s in self.slices if flow is None or s.run.head.flow == flow]
        if gone:
            self.slices = [s for s in self.slices if flow is not None and s.run.head.flow != flow]
            self._tell_left()
        return gone

    def _tell_left(self) -> None:
        self.left.set()
        self.left = trio.Event()

    def wake(self) -> None:
        self.woken.set()
        self.woken = trio.Event()


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
