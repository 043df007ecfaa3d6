"""The promoter: brings due runs of the cold store back to warm, in order, as far as there is room.

One lane of work a queue (`promote`). It looks when it is woken (something was handed over, came
back, or came due), when warm falls below the line, and every 5 s. A row is acquired under a lock
with a lease; the locks that are out are renewed while their rows wait or run, and a lock whose
rows are all settled is forgotten. A row that does not fit enters slice by slice. What consumers
read as a stream it leaves where it is.

It owns nothing but its locks. When it dies, or the store cannot be reached for too long, the
leases run out, and whoever is there acquires the rows at their old place in the order.

On cancel nothing is given back: warm forgets what it has, and the next life of this daemon finds
the rows free, or free soon.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
import trio

from actors.queue_settings import QueueSettings
from actors.router import Routing
from actors.slices import InCold, LentRun, Slice
from actors.tiering import headroom
from actors.tiers import ColdQueue, ColdRow, Limits, StoreUnavailable, WarmQueue, limits_of
from forebay.ids import new_run_id

log = structlog.get_logger()

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
    ) -> None:
        """`bytes_max`: of all queues in warm together."""
        self._bytes_max = bytes_max
        self._in_hand: Counter[str] = Counter()
        self._turn = trio.Lock()
        self._routing = routing
        self._warm = warm
        self._cold = cold
        self._queue_settings = queue_settings
        self._paused_flows = paused_flows
        self._acquire_s = acquire_s
        self._now_ms = now_ms
        self._wakes: dict[str, trio.Event] = {}
        self._locks: set[bytes] = set()
        self._is_away = False

    @property
    def cold_is_away(self) -> bool:
        """As of its last step with the cold store."""
        return self._is_away

    def wake(self, queue: str) -> None:
        """There may be something due."""
        event = self._wakes.get(queue)
        if event is not None:
            event.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ticks: wakes the queues that have something in cold, and renews leases."""
        task_status.started()
        renew_at = trio.current_time() + self._acquire_s / RENEW_SHARE
        while True:
            await trio.sleep(min(TICK_S, self._acquire_s / RENEW_SHARE))
            try:
                for queue, totals in (await self._cold.totals()).items():
                    if totals.held:
                        self.wake(queue)
                if trio.current_time() >= renew_at:
                    await self._renew()
                    renew_at = trio.current_time() + self._acquire_s / RENEW_SHARE
                self._see(None)
            except StoreUnavailable as problem:
                self._see(problem)

    async def _renew(self) -> None:
        locks = list(self._locks)
        if locks:
            counts = await self._cold.renew(locks, self._acquire_s)
            self._locks -= {lock for lock, rows in zip(locks, counts, strict=True) if not rows}

    async def promote(self, queue: str) -> None:
        """The lane of work of one queue; never returns."""
        while True:
            self._wakes[queue] = trio.Event()
            try:
                next_due_ms = await self._fill(queue)
                self._see(None)
            except StoreUnavailable as problem:
                self._see(problem)
                next_due_ms = None
            pause_s = float("inf")
            if next_due_ms is not None:
                pause_s = max(0.0, (next_due_ms - self._now_ms()) / 1000)
            with trio.move_on_after(pause_s):
                await self._wakes[queue].wait()

    async def _fill(self, queue: str) -> int | None:
        """Brings in what is due; when the next row comes due, if one is known to."""
        while queue not in self._routing.streams:
            room = await self._room(queue)
            if not room.items:
                outlook = await self._cold.outlook(queue, self._paused_flows(queue))
                if not outlook.has_due:
                    return outlook.next_due_ms
                self._wakes[queue] = trio.Event()
                if not (await self._room(queue)).items:
                    await self._wait_for_room(queue)
                continue
            rest = await self._bring(queue)
            if rest is None:
                return (await self._cold.outlook(queue, self._paused_flows(queue))).next_due_ms
            await self._enter(queue, rest)
        return None

    async def _bring(self, queue: str) -> Sequence[Slice] | None:
        """Acquires and enters as much as there is room for; what did not fit, or None if nothing
        was due. One queue at a time: the memory that it finds free is for it alone."""
        async with self._turn:
            room = await self._room(queue)
            if not room.items:
                return ()
            lock = new_run_id()
            acquired = self._routing.acquiring[queue] = trio.Event()
            try:
                rows = await self._cold.acquire(
                    queue,
                    lock,
                    room.items,
                    room.bytes,
                    self._acquire_s,
                    self._paused_flows(queue),
                )
            finally:
                del self._routing.acquiring[queue]
                acquired.set()
            if not rows:
                return None
            self._locks.add(lock)
            slices = [slice_of(row, lock) for row in rows]
            rest = (await self._warm.enter(queue, slices, self._limits_now(queue))).rest
            self._hold(queue, rest)
            return rest

    async def _wait_for_room(self, queue: str) -> None:
        """Until warm has become emptier, or outcomes were recorded; or a while."""
        with trio.move_on_after(TICK_S):
            async with trio.open_nursery() as nursery:

                async def first(wait: Callable[[], Awaitable[None]]) -> None:
                    await wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(first, lambda: self._warm.wait_change(queue))
                nursery.start_soon(first, self._wakes[queue].wait)

    async def _room(self, queue: str) -> Limits:
        fill = await self._warm.fill(queue)
        pending = self._routing.routed[queue] + self._routing.unrecorded[queue]
        room = headroom(fill, pending, self._limits(queue))
        if self._bytes_max is None or not room.items:
            return room
        used = sum(other.bytes for other in (await self._warm.fills()).values())
        left = self._bytes_max - used - sum(self._in_hand.values())
        if left > 0:
            return Limits(room.items, min(room.bytes, left))
        # No queue may starve because others fill the memory: one row enters item by item.
        return Limits(0, 0) if fill.items or any(self._in_hand.values()) else Limits(1, 1)

    async def _enter(self, queue: str, rest: Sequence[Slice]) -> None:
        """All of them, as room comes."""
        try:
            while rest:
                self._wakes[queue] = trio.Event()
                await self._wait_for_room(queue)
                rest = (await self._warm.enter(queue, rest, self._limits_now(queue))).rest
                self._hold(queue, rest)
        finally:
            self._hold(queue, ())

    def _hold(self, queue: str, slices: Sequence[Slice]) -> None:
        self._routing.promoted[queue] = sum(slice_.items for slice_ in slices)
        self._in_hand[queue] = sum(slice_.bytes for slice_ in slices)

    def _see(self, problem: StoreUnavailable | None) -> None:
        if (problem is not None) != self._is_away:
            self._is_away = problem is not None
            if problem is None:
                log.info("promoter.cold_is_back")
            else:
                log.error("promoter.cold_is_away", error=str(problem))

    def _limits_now(self, queue: str) -> Limits:
        """Without the room that is taken by what is not recorded yet."""
        limits = self._limits(queue)
        return Limits(max(0, limits.items - self._routing.unrecorded[queue]), limits.bytes)

    def _limits(self, queue: str) -> Limits:
        return limits_of(self._queue_settings(queue))


def slice_of(row: ColdRow, lock: bytes) -> Slice:
    run = LentRun(row.head, row.data, InCold(row.row, lock))
    return Slice(run, row.bits, row.attempt, row.due_ms, row.errors)
