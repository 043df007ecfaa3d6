"""The promoter: brings due runs from the cold store back to warm, in order, as room comes.

Every queue has three tasks (`promote`). One acquires rows ahead of the room (actors/tiers/line.py):
it looks when it is woken (a run was handed over, came back or came due), when the line of acquired
rows grows short, and every 5 s. One enters rows from the line into warm as room comes; a row that
does not fit enters slice by slice. One watches for room. Rows are acquired under a lock with a
lease. Locks are renewed while their rows wait or run, and forgotten once all their rows are
settled. Rows of stream queues and of paused flows go back.

It owns nothing but its locks. If it dies, or the store is unreachable for too long, the leases
expire, and any daemon acquires the rows at their old place in the order.

On cancel nothing is given back: warm forgets its slices, and the restarted daemon finds the rows
free, or free soon.
"""

from contextlib import suppress
from typing import Final

import trio

from actors.model.slices import Slice
from actors.ports.tiers import Limits, StoreUnavailable
from actors.spooler.arrivals import Arrivals
from actors.tiers.fetch import slice_of, unlocked
from actors.tiers.hysteresis import headroom
from actors.tiers.line import Promotion, to_acquire
from actors.tiers.queue_tiers import TierStates
from forebay.ids import new_run_id

TICK_S: Final = 5.0
RENEW_SHARE: Final = 3
"""How many times per lease time a lease is renewed."""


class Promoter:
    def __init__(
        self,
        states: TierStates,
        arrivals: Arrivals,
        acquire_s: float,
        bytes_max: int | None = None,
    ) -> None:
        """`acquire_s`: the lease time of rows. `bytes_max` caps all queues in warm together."""
        self._states = states
        self._warm = states.warm
        self._cold = states.cold
        self._arrivals = arrivals
        self._acquire_s = acquire_s
        self._bytes_max = bytes_max
        self._turn = trio.Lock()
        self._locks: set[bytes] = set()

    def wake(self, queue: str, priority: int | None = None) -> None:
        """Cold may have something due; `priority` is given for a run that has just come to cold."""
        self._warm.wake(queue)
        line = self._states.line(queue)
        if line is not None:
            if priority is not None:
                line.overtake(priority)
            line.tell_enterer()
            # A full line needs nothing more; its acquirer is woken when a run leaves.
            is_full = line.items >= self._states.limits(queue).items
            if not is_full or line.is_to_look(trio.current_time(), TICK_S):
                line.tell_acquirer()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ticks: wakes the queues that have something in cold, and renews leases."""
        task_status.started()
        renew_at = trio.current_time() + self._acquire_s / RENEW_SHARE
        while True:
            await trio.sleep(min(TICK_S, self._acquire_s / RENEW_SHARE))
            with suppress(StoreUnavailable):
                for queue, totals in (await self._cold.totals()).items():
                    # A queue with a line is woken when a slice leaves it. Waking 500 queues
                    # for nothing took 300 ms.
                    if totals.held and not self._has_line(queue):
                        self.wake(queue)
                    if totals.held or totals.dead:
                        self._arrivals.see_shared(queue)
                if trio.current_time() >= renew_at:
                    await self._renew()
                    renew_at = trio.current_time() + self._acquire_s / RENEW_SHARE

    def _has_line(self, queue: str) -> bool:
        line = self._states.line(queue)
        return line is not None and bool(line.slices)

    async def _renew(self) -> None:
        locks = list(self._locks)
        if locks:
            counts = await self._cold.renew(locks, self._acquire_s)
            over = {lock for lock, rows in zip(locks, counts, strict=True) if not rows}
            self._locks -= over
            if over:
                for line in self._states.lines():
                    line.forget(over)

    async def promote(self, queue: str) -> None:
        """Runs the tasks of one queue; never returns."""
        line = self._states.of(queue).line = Promotion()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._acquire_ahead, queue, line)
            nursery.start_soon(self._enter, queue, line)
            nursery.start_soon(self._watch_room, queue, line)

    async def _acquire_ahead(self, queue: str, line: Promotion) -> None:
        while True:
            told = line.acquirer_told
            next_due_ms = None
            with suppress(StoreUnavailable):
                next_due_ms = await self._bring(queue, line)
            pause_s = float("inf")
            if next_due_ms is not None:
                pause_s = max(0.0, (next_due_ms - self._states.now_ms()) / 1000)
            with trio.move_on_after(pause_s):
                await told.wait()

    async def _bring(self, queue: str, line: Promotion) -> int | None:
        """Acquires until the line is long enough or nothing is due; returns the next due time."""
        while self._may_enter(queue):
            async with self._turn:
                # One queue at a time, so that no other queue uses the memory it finds free.
                wanted = await self._wanted(queue, line)
                if not wanted.items:
                    if not await self._may_overtake(queue, line):
                        return None
                    wanted = Limits(1, 1)
                line.look()
                slices = await self._acquire(queue, wanted)
                line.seen_urgent(slices)
                line.join(slices)
            if not slices:
                return (
                    await self._cold.outlook(queue, self._states.paused_flows(queue))
                ).next_due_ms
        return None

    async def _acquire(self, queue: str, wanted: Limits) -> list[Slice]:
        lock = new_run_id()
        state = self._states.of(queue)
        acquired = state.acquired = trio.Event()
        try:
            rows = await self._cold.acquire(
                queue,
                lock,
                wanted.items,
                wanted.bytes,
                self._acquire_s,
                self._states.paused_flows(queue),
            )
        finally:
            state.acquired = None
            acquired.set()
        if rows:
            self._locks.add(lock)
        return [slice_of(row, lock) for row in rows]

    async def _wanted(self, queue: str, line: Promotion) -> Limits:
        """How much to acquire now."""
        state, limits = self._states.of(queue), self._states.limits(queue)
        fill = await self._warm.fill(queue)
        pending = state.routed + state.unrecorded
        room, in_hand = headroom(fill, pending, limits), Limits(line.items, line.bytes)
        wanted = to_acquire(room, in_hand, limits, None)
        if self._bytes_max is None or not wanted.items:
            # The shared memory cap can only lower the amount. Checking all queues for each of
            # them in turn took 300 ms of every 5 s with 500 queues.
            return wanted
        free = await self._free_bytes(self._bytes_max)
        if free > 0:
            room = Limits(room.items, min(room.bytes, free))
            return to_acquire(room, in_hand, limits, free)
        # No queue may starve because others fill the memory: one row enters item by item.
        return Limits(0, 0) if fill.items or line.items else Limits(1, 1)

    async def _may_overtake(self, queue: str, line: Promotion) -> bool:
        """Whether to acquire one more row beyond the limit because it may be more urgent."""
        line.look_again(trio.current_time(), TICK_S)
        if not line.is_overtaken or line.items > 2 * self._states.limits(queue).items:
            return False
        return self._bytes_max is None or await self._free_bytes(self._bytes_max) > 0

    async def _free_bytes(self, bytes_max: int) -> int:
        """Memory that all queues together may still use, after their slices in warm and in line."""
        lines = sum(line.bytes for line in self._states.lines())
        return bytes_max - lines - sum(fill.bytes for fill in (await self._warm.fills()).values())

    async def _enter(self, queue: str, line: Promotion) -> None:
        """Moves slices from the line to warm as room comes."""
        while True:
            told = line.enterer_told
            if not line.slices:
                await told.wait()
                continue
            stuck = await self._give_back(queue, line)
            entered = await self._warm.enter(queue, line.enter(), self._limits_now(queue))
            line.entered(entered.rest)
            line.put_back(stuck)
            if entered.rest or stuck:
                line.room_wanted.set()
                with trio.move_on_after(TICK_S):
                    await told.wait()

    async def _watch_room(self, queue: str, line: Promotion) -> None:
        """Wakes the entering task when warm's fill has fallen and the line needs room."""
        while True:
            await line.room_wanted.wait()
            line.room_wanted = trio.Event()
            await self._warm.wait_change(queue)
            line.tell_enterer()

    async def _give_back(self, queue: str, line: Promotion) -> list[Slice]:
        """Returns slices to cold that must not enter warm any more, because consumers claim the
        queue, its items are leased on demand, or the flow is paused. Slices that cold does not take
        now stay in the line: this daemon holds their lock, so no other would bring them."""
        stuck: list[Slice] = []
        paused = self._states.paused_flows(queue) if self._may_enter(queue) else (None,)
        for flow in paused:
            if back := line.withdraw(flow):
                try:
                    await self._cold.settle([unlocked(slice_) for slice_ in back])
                except StoreUnavailable:
                    stuck += back
        return stuck

    def _may_enter(self, queue: str) -> bool:
        return not (self._states.is_stream(queue) or self._states.is_fetched(queue))

    def _limits_now(self, queue: str) -> Limits:
        """The limits, less the items that are not recorded yet."""
        limits = self._states.limits(queue)
        return Limits(max(0, limits.items - self._states.of(queue).unrecorded), limits.bytes)
