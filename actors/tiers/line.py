"""The rows of one queue that the promoter has acquired and not entered into warm yet.

The line is in delivery order. Two tasks promote a queue: one acquires rows, one enters them into
warm. Each waits for a single event that covers everything it must react to. The line is plain data
of these tasks and of the actors that withdraw slices from it.

Why acquire ahead: a step of the cold store takes 5 ms while workers keep the process busy, most of
it waiting for a turn. Rows acquired only when there was room came too late: a queue was drained
from cold at 0.6 of the rate from warm, with warm empty most of the time. Why one event per task:
waiting for the first of several took a nursery and two or three tasks each time. Per 1,000 items
out of cold the promoter took 210 µs with that, and takes 110 without.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import trio

from actors.model.slices import InCold, Slice
from actors.ports.tiers import Limits

AHEAD_BYTES_MAX: Final = 4 * 1024 * 1024
ENTER_SLICES: Final = 64
ENTER_BYTES: Final = 1024 * 1024
"""How much is offered to warm at once. Offering a whole line of 5,000 one-item rows whenever ten of
them fitted took 5 ms."""


class Promotion:
    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self.entering: list[Slice] = []
        """Slices on their way from the line to warm."""
        self.items = 0
        self.bytes = 0
        """Of all slices, including `entering`."""
        self.acquirer_told = trio.Event()
        """Something has left the line, or cold may have something due."""
        self.enterer_told = trio.Event()
        """Something has joined the line, or warm may have more room."""
        self.room_wanted = trio.Event()
        """The first slice does not fit into warm."""
        self.is_overtaken = False
        """Cold has, or may have, something more urgent than the end of this line."""
        self._came: int | None = None
        """The most urgent priority that came to cold during an acquire that may have missed it."""
        self.has_moved = False
        """Something has left since the acquirer last looked for more urgent rows."""
        self.looked_at = 0.0

    def look(self) -> None:
        """An acquire begins: it sees everything that has come so far."""
        self._came = None

    def overtake(self, priority: int) -> None:
        """A run of this priority has come to cold."""
        self._came = priority if self._came is None else min(self._came, priority)
        last = self._last_priority
        if last is not None and priority < last:
            self.is_overtaken = True

    def seen_urgent(self, slices: Sequence[Slice]) -> None:
        """Notes the result of an acquire: the line is no longer overtaken if no more urgent row was
        found, except for what came during the acquire."""
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
        """Rows that come due or come back announce no priority. So while the line moves, the
        acquirer looks for more urgent rows once per `after_s`."""
        if self.has_moved and now >= self.looked_at + after_s:
            self.looked_at, self.has_moved = now, False
            self.is_overtaken = True

    @property
    def _last_priority(self) -> int | None:
        ends = [part[-1].run.head.priority for part in (self.slices, self.entering) if part]
        return max(ends, default=None)

    def join(self, slices: Iterable[Slice]) -> None:
        """Adds slices in delivery order: more urgent ones overtake in the line as well."""
        slices = list(slices)
        if slices:
            self.put_back(slices)
            self.tell_enterer()

    def put_back(self, slices: Sequence[Slice]) -> None:
        """Adds slices that were withdrawn; wakes no task."""
        if slices:
            self._count(slices, 1)
            self.slices = sorted([*self.slices, *slices], key=lambda slice_: slice_.sort_key)

    def enter(self) -> list[Slice]:
        """The first slices, for entering into warm; `entered` puts back those that do not fit."""
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
            # More urgent slices joined meanwhile.
            self.slices.sort(key=lambda slice_: slice_.sort_key)
        if self.items < before:
            self._tell_left()

    def withdraw(self, flow: str | None = None, run_id: bytes | None = None) -> list[Slice]:
        """Takes out the slices of this flow, or of this run, or all."""

        def matches(slice_: Slice) -> bool:
            head = slice_.run.head
            return (flow is None or head.flow == flow) and run_id in (None, head.run_id)

        gone = [slice_ for slice_ in self.slices if matches(slice_)]
        if gone:
            self._remove(gone, [slice_ for slice_ in self.slices if not matches(slice_)])
        return gone

    def forget(self, locks: Collection[bytes]) -> None:
        """Removes slices under these locks, which no longer protect any row."""
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
        """Whether to look for more urgent rows now, however long the line is."""
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
    """How much to acquire now: enough to fill the room, plus one full warm queue ahead.

    (0, 0) while at least half of that is already in the line, because every acquire is expensive,
    however small. `bytes_free` is what all queues together may still hold in memory; at most a
    quarter of it is used for acquiring ahead.
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
