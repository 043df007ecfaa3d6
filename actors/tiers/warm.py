"""The warm tier in this process's memory: due slices in order, scheduled slices, and leases.

It owns nothing that must survive: all slices are borrowed, and their lender enters them again after
a restart. Every method except `wait` and `wait_change` takes effect at once, without a checkpoint,
so none can be cancelled halfway; a caller that loops over them must add its own checkpoints. `wait`
and `wait_change` hold nothing while they wait and may be cancelled.

Limits are checked where slices enter. Slices that are put back were counted throughout, and the
shares of a run add up (`LentRun.item_bytes`), so only `enter` makes a queue fuller. There is one
exception to the byte limit: an empty queue takes one item of any size. Otherwise an item above the
limit could never be delivered, and a queue would starve while others fill the cap.

An expired lease can still be ended until `expire` has put its slice back, because no other worker
had it in between. Leases run on a steady clock that is never set (actors/model/clock.py); due times
follow the wall clock. The end of a lease is reported in wall time as of its beginning: after a step
of the wall clock the reported time is wrong, and the lease itself is unaffected.

It does not know whether an item was entered before (the owner does), and a run that was cut stays
in memory as a whole until its last slice has left, whatever its counted share.
"""

from collections.abc import Mapping, Sequence
from itertools import count

import trio

from actors.model.clock import Clock, lease_clock, wall_ms
from actors.model.slices import InJournal, Slice
from actors.ports.tiers import Ending, Entered, Fill, Leased, Limits, WarmFlow, Whereabouts
from actors.tiers.warm_queue import WarmSlices, check_again

_tokens = count(1)
"""Shared by all warm queues of this process, so that an old token never fits a new lease."""


class MemoryWarm:
    """All queues of this process. `bytes_max` caps them together; None: only their own limits
    apply.

    `lease_ms` is the clock of leases; None: the steady clock, or `now_ms` if one was given.
    """

    def __init__(
        self,
        bytes_max: int | None = None,
        now_ms: Clock = wall_ms,
        lease_ms: Clock | None = None,
    ) -> None:
        self.is_away, self.away_total = False, 0
        self._bytes_max = bytes_max
        self._now_ms = now_ms
        self._lease_ms = lease_clock(now_ms, lease_ms)
        self._queues: dict[str, WarmSlices] = {}
        self._bytes = 0
        self._held_up: set[WarmSlices] = set()
        """Queues that had room by their own limits and were stopped by the cap."""

    async def enter(self, queue: str, slices: Sequence[Slice], limits: Limits) -> Entered:
        if not all(slice_.bits for slice_ in slices):
            raise ValueError("a slice without items")
        state = self._queue(queue)
        now_ms = self._now_ms()
        rest: list[Slice] = []
        for order, slice_ in enumerate(slices):
            room = self._room(state, limits, slice_)
            if slice_.items <= room:
                self._add(state, slice_, now_ms)
                continue
            if room:
                slice_, remaining = slice_.split(room)
                self._add(state, slice_, now_ms)
                assert remaining is not None
                slice_ = remaining
            rest = [slice_, *slices[order + 1 :]]
            break
        return Entered(rest, state.fill(now_ms))

    async def lease(
        self,
        queue: str,
        items_max: int,
        bytes_max: int,
        lease_s: float,
        except_flows: frozenset[str] = frozenset(),
    ) -> list[Leased]:
        state = self._queues.get(queue)
        if state is None:
            return []
        now_ms = self._now_ms()
        state.bring_due(now_ms)
        taken = state.due.take(items_max, bytes_max, except_flows)
        if not taken:
            state.has_news = False
            return []
        lasts_ms = round(lease_s * 1000)
        ends_ms, until_ms = self._lease_ms() + lasts_ms, now_ms + lasts_ms
        leased: list[Leased] = []
        for slice_ in taken:
            token = next(_tokens)
            state.lease(token, slice_, ends_ms)
            leased.append(Leased(token, slice_, until_ms))
        return leased

    async def wait(self, queue: str) -> None:
        """Returns when something has come, come back or come due since a lease found nothing.

        All waiters are woken; those that come too late wait again. Slices that a lease skipped
        because of an excepted flow are not news: a caller that stops excepting a flow must lease
        first.
        """
        state = self._queue(queue)
        came = state.came
        await trio.lowlevel.checkpoint()
        while True:
            now_ms = self._now_ms()
            state.bring_due(now_ms)
            if state.has_news or state.came != came:
                return
            await state.sleep(now_ms)

    async def wait_change(self, queue: str) -> None:
        """Returns when there may be more room than at the call: when the queue's fill has fallen,
        or the fill of all queues if the cap stopped this one. Not part of the port."""
        await self._queue(queue).until_fallen()

    async def end(self, queue: str, endings: Sequence[Ending]) -> list[bool]:
        state = self._queues.get(queue)
        if state is None:
            return [False] * len(endings)
        leases = state.leases
        for ending in endings:
            if ending.again and (known := leases.get(ending.token)) is not None:
                check_again(known.slice, ending.again)
        now_ms = self._now_ms()
        items_before = state.items
        ended: list[bool] = []
        for token, again in endings:
            leased = state.end_lease(token)
            ended.append(leased is not None)
            if leased is not None:
                self._remove(state, leased)
                for slice_ in again:
                    self._add(state, slice_, now_ms)
        if state.items < items_before:
            self._tell_fallen(state)
        return ended

    async def extend(self, queue: str, tokens: Sequence[int], lease_s: float) -> list[bool]:
        state = self._queues.get(queue)
        if state is None:
            return [False] * len(tokens)
        ends_ms = self._lease_ms() + round(lease_s * 1000)
        extended: list[bool] = []
        for token in tokens:
            lease = state.leases.get(token)
            extended.append(lease is not None)
            if lease is not None:
                lease.ends_ms = ends_ms
        return extended

    async def expire(self) -> dict[str, int]:
        """Looks at every lease; workers hold few."""
        now_ms, lease_now_ms = self._now_ms(), self._lease_ms()
        expired: dict[str, int] = {}
        for name, state in self._queues.items():
            late = [token for token, lease in state.leases.items() if lease.ends_ms <= lease_now_ms]
            items = 0
            for token in late:
                slice_ = state.end_lease(token)
                assert slice_ is not None
                items += slice_.items
                state.place(slice_, now_ms)
            if items:
                expired[name] = items
        return expired

    async def withdraw(
        self,
        queue: str,
        flow: str | None = None,
        positions: range | None = None,
        run_id: bytes | None = None,
    ) -> list[Slice]:
        """Looks at every slice that is not leased."""
        state = self._queues.get(queue)
        if state is None:
            return []

        def matches(slice_: Slice) -> bool:
            if flow is not None and slice_.run.head.flow != flow:
                return False
            if run_id is not None and slice_.run.head.run_id != run_id:
                return False
            owner = slice_.run.owner
            return positions is None or (
                isinstance(owner, InJournal) and owner.position in positions
            )

        taken = state.take_matching(matches)
        for slice_ in taken:
            self._remove(state, slice_)
        if taken:
            self._tell_fallen(state)
        return taken

    async def locate(self, queue: str, run_ids: frozenset[bytes]) -> dict[bytes, Whereabouts]:
        """Looks at every slice."""
        state = self._queues.get(queue)
        return {} if state is None else state.locate(run_ids, self._now_ms())

    def put_off_anew(self) -> None:
        """After the wall clock was set back: no retry waits longer than its pause. Not part of the
        port."""
        now_ms = self._now_ms()
        for state in self._queues.values():
            state.put_off_anew(now_ms)

    async def recorded(self, queue: str, tokens: Sequence[int]) -> None:
        """A lease that has ended is over here."""

    def unrecorded(self, tokens: Sequence[int]) -> None:
        """The same; the settler enters the items again."""

    async def fill(self, queue: str) -> Fill:
        state = self._queues.get(queue)
        return Fill() if state is None else state.fill(self._now_ms())

    async def fills(self) -> Mapping[str, Fill]:
        now_ms = self._now_ms()
        return {name: state.fill(now_ms) for name, state in self._queues.items() if state.items}

    async def flows(self) -> list[WarmFlow]:
        return [flow for name, state in self._queues.items() for flow in state.flows.counts(name)]

    def _queue(self, name: str) -> WarmSlices:
        state = self._queues.get(name)
        if state is None:
            state = self._queues[name] = WarmSlices()
        return state

    def _room(self, state: WarmSlices, limits: Limits, slice_: Slice) -> int:
        """How many of the slice's items may enter."""
        items = limits.items - state.items
        bytes_left = limits.bytes - state.bytes
        if self._bytes_max is not None and self._bytes_max - self._bytes < bytes_left:
            bytes_left = self._bytes_max - self._bytes
            if slice_.bytes > bytes_left:
                self._held_up.add(state)
        room = min(items, bytes_left // slice_.run.item_bytes)
        if room < 1 and not state.items and items > 0:
            return 1
        return max(room, 0)

    def _add(self, state: WarmSlices, slice_: Slice, now_ms: int) -> None:
        state.count(slice_, 1)
        self._bytes += slice_.bytes
        state.place(slice_, now_ms)

    def _remove(self, state: WarmSlices, slice_: Slice) -> None:
        state.count(slice_, -1)
        self._bytes -= slice_.bytes
        assert self._bytes >= 0

    def _tell_fallen(self, state: WarmSlices) -> None:
        state.tell_fallen()
        if self._held_up:
            for other in self._held_up:
                other.tell_fallen()
            self._held_up.clear()
