"""The promoter: brings due runs of the cold store back to warm, in order, as far as there is room.

Two tasks a queue (`promote`), and one that watches for room. One acquires rows ahead of the room
(actors/tiers/line.py): it looks when it is woken (something was handed over, came back, or came
due), when the line of what it has acquired grows short, and every 5 s. The other enters what is in
the line as room comes; a row that does not fit enters slice by slice. A row is acquired under a
lock with a lease; the locks that are out are renewed while their rows wait or run, and a lock whose
rows are all settled is forgotten. What consumers read as a stream, and what belongs to a paused
flow, goes back.

It owns nothing but its locks. When it dies, or the store cannot be reached for too long, the
leases run out, and whoever is there acquires the rows at their old place in the order.

On cancel nothing is given back: warm forgets what it has, and the next life of this daemon finds
the rows free, or free soon.
"""

from collections.abc import Callable, Collection
from typing import Final

import trio

from actors.config.queue import QueueSettings
from actors.model.slices import InCold, LentRun, Slice
from actors.ports.presence import Presence
from actors.ports.tiers import ColdQueue, ColdRow, Limits, StoreUnavailable, WarmQueue, limits_of
from actors.tiers.hysteresis import headroom
from actors.tiers.line import Promotion, to_acquire
from actors.tiers.router import Routing, unlocked
from forebay.ids import new_run_id

TICK_S: Final = 5.0
RENEW_SHARE: Final = 3
"""A lease is renewed so many times before it would run out."""


class Promoter:
    def __init__(
        self,
        routing: Routing,
        warm: WarmQueue,
        cold: ColdQueue,
        queue_settings: Callable[[str], QueueSettings],
        paused_flows: Callable[[str], frozenset[str]],
        acquire_s: float,
        now_ms: Callable[[], int],
        bytes_max: int | None = None,
        locks_over: Callable[[Collection[bytes]], None] | None = None,
        seen: Callable[[str], None] | None = None,
        presence: Presence | None = None,
    ) -> None:
        """`bytes_max`: of all queues in warm together. `locks_over` is told of locks under which
        nothing is acquired any more. `seen` is told of queues that have something in cold."""
        self._locks_over = locks_over
        self._seen = seen
        self._bytes_max = bytes_max
        self._turn = trio.Lock()
        self._routing = routing
        self._warm = warm
        self._cold = cold
        self._queue_settings = queue_settings
        self._paused_flows = paused_flows
        self._acquire_s = acquire_s
        self._now_ms = now_ms
        self._locks: set[bytes] = set()
        self._presence = presence or Presence()

    def wake(self, queue: str, priority: int | None = None) -> None:
        """There may be something due; of this priority, where it has just come to cold."""
        line = self._routing.lines.get(queue)
        if line is not None:
            if priority is not None:
                line.overtake(priority)
            line.tell_enterer()
            # Who has a full line would find that it is enough. It is told of what leaves.
            is_full = line.items >= self._limits(queue).items
            if not is_full or line.is_to_look(trio.current_time(), TICK_S):
                line.tell_acquirer()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ticks: wakes the queues that have something in cold, and renews leases."""
        task_status.started()
        renew_at = trio.current_time() + self._acquire_s / RENEW_SHARE
        while True:
            await trio.sleep(min(TICK_S, self._acquire_s / RENEW_SHARE))
            try:
                for queue, totals in (await self._cold.totals()).items():
                    # Who has something in line is told when some of it leaves. To wake 500
                    # queues for nothing took 300 ms.
                    if totals.held and not self._has_line(queue):
                        self.wake(queue)
                    if self._seen is not None and (totals.held or totals.dead):
                        self._seen(queue)
                if trio.current_time() >= renew_at:
                    await self._renew()
                    renew_at = trio.current_time() + self._acquire_s / RENEW_SHARE
                self._presence.found("tick")
            except StoreUnavailable as problem:
                self._presence.lost("tick", problem)

    def _has_line(self, queue: str) -> bool:
        line = self._routing.lines.get(queue)
        return line is not None and bool(line.slices)

    async def _renew(self) -> None:
        locks = list(self._locks)
        if locks:
            counts = await self._cold.renew(locks, self._acquire_s)
            over = {lock for lock, rows in zip(locks, counts, strict=True) if not rows}
            self._locks -= over
            if over:
                for line in self._routing.lines.values():
                    line.forget(over)
            if self._locks_over is not None:
                self._locks_over(over)

    async def promote(self, queue: str) -> None:
        """The tasks of one queue; never returns."""
        self._routing.lines[queue] = Promotion()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._acquire_ahead, queue)
            nursery.start_soon(self._enter, queue)
            nursery.start_soon(self._watch_room, queue)

    async def _acquire_ahead(self, queue: str) -> None:
        line = self._routing.lines[queue]
        while True:
            told = line.acquirer_told
            next_due_ms = None
            try:
                next_due_ms = await self._bring(queue)
            except StoreUnavailable as problem:
                self._presence.lost("acquire", problem)
            pause_s = float("inf")
            if next_due_ms is not None:
                pause_s = max(0.0, (next_due_ms - self._now_ms()) / 1000)
            with trio.move_on_after(pause_s):
                await told.wait()

    async def _bring(self, queue: str) -> int | None:
        """Acquires until enough is in the line, or nothing is due: then, when something will be."""
        line = self._routing.lines[queue]
        while queue not in self._routing.streams:
            if line.rests_until > trio.current_time():
                await trio.sleep_until(line.rests_until)
            async with self._turn:
                if line.rests_until > trio.current_time():
                    # It was to rest while others had their turn.
                    continue
                # One queue at a time: the memory that it finds free is for it alone.
                wanted = await self._wanted(queue)
                if not wanted.items:
                    if not await self._may_overtake(queue):
                        return None
                    wanted = Limits(1, 1)
                line.look()
                slices = await self._acquire(queue, wanted)
                line.seen_urgent(slices)
                line.join(slices)
            if not slices:
                return (await self._cold.outlook(queue, self._paused_flows(queue))).next_due_ms
        return None

    async def _acquire(self, queue: str, wanted: Limits) -> list[Slice]:
        lock = new_run_id()
        acquired = self._routing.acquiring[queue] = trio.Event()
        try:
            rows = await self._cold.acquire(
                queue, lock, wanted.items, wanted.bytes, self._acquire_s, self._paused_flows(queue)
            )
        finally:
            del self._routing.acquiring[queue]
            acquired.set()
        self._presence.found("acquire")
        if rows:
            self._locks.add(lock)
        return [slice_of(row, lock) for row in rows]

    async def _wanted(self, queue: str) -> Limits:
        """How much to acquire now."""
        line, limits = self._routing.lines[queue], self._limits(queue)
        fill = await self._warm.fill(queue)
        pending = self._routing.routed[queue] + self._routing.unrecorded[queue]
        room, in_hand = headroom(fill, pending, limits), Limits(line.items, line.bytes)
        wanted = to_acquire(room, in_hand, limits, None)
        if self._bytes_max is None or not wanted.items:
            # The memory of all can only make it less: a look at all queues, for each of them in
            # turn, took 300 ms of every 5 s where there were 500.
            return wanted
        free = await self._free_bytes(self._bytes_max)
        if free > 0:
            room = Limits(room.items, min(room.bytes, free))
            return to_acquire(room, in_hand, limits, free)
        # No queue may starve because others fill the memory: one row enters item by item.
        return Limits(0, 0) if fill.items or line.items else Limits(1, 1)

    async def _may_overtake(self, queue: str) -> bool:
        """Whether one more row is acquired although there are enough: it may be more urgent."""
        line = self._routing.lines[queue]
        line.look_again(trio.current_time(), TICK_S)
        if not line.is_overtaken or line.items > 2 * self._limits(queue).items:
            return False
        return self._bytes_max is None or await self._free_bytes(self._bytes_max) > 0

    async def _free_bytes(self, bytes_max: int) -> int:
        """Of the memory of all queues, with what is in line for it."""
        lines = sum(line.bytes for line in self._routing.lines.values())
        return bytes_max - lines - sum(fill.bytes for fill in (await self._warm.fills()).values())

    async def _enter(self, queue: str) -> None:
        """What is in the line goes to warm, as room comes."""
        line = self._routing.lines[queue]
        while True:
            told = line.enterer_told
            if not line.slices:
                await told.wait()
                continue
            stuck = await self._give_back(queue)
            entered = await self._warm.enter(queue, line.enter(), self._limits_now(queue))
            line.entered(entered.rest)
            line.put_back(stuck)
            if entered.rest or stuck:
                line.room_wanted.set()
                with trio.move_on_after(TICK_S):
                    await told.wait()

    async def _watch_room(self, queue: str) -> None:
        """Tells who enters that warm's fill has fallen, when that is waited for."""
        line = self._routing.lines[queue]
        while True:
            await line.room_wanted.wait()
            line.room_wanted = trio.Event()
            await self._warm.wait_change(queue)
            line.tell_enterer()

    async def _give_back(self, queue: str) -> list[Slice]:
        """What must not enter warm any more, since consumers claim it or its flow is paused, goes
        back to cold; what cold does not take now is still ours, and nobody else would bring it."""
        line = self._routing.lines[queue]
        stuck: list[Slice] = []
        for flow in (None,) if queue in self._routing.streams else self._paused_flows(queue):
            if back := line.withdraw(flow):
                try:
                    await self._cold.settle([unlocked(slice_) for slice_ in back])
                    self._presence.found("give back")
                except StoreUnavailable as problem:
                    self._presence.lost("give back", problem)
                    stuck += back
        return stuck

    def _limits_now(self, queue: str) -> Limits:
        """Without the room that is taken by what is not recorded yet."""
        limits = self._limits(queue)
        return Limits(max(0, limits.items - self._routing.unrecorded[queue]), limits.bytes)

    def _limits(self, queue: str) -> Limits:
        return limits_of(self._queue_settings(queue))


def slice_of(row: ColdRow, lock: bytes) -> Slice:
    run = LentRun(row.head, row.data, InCold(row.row, lock))
    return Slice(run, row.bits, row.attempt, row.due_ms, row.errors)
