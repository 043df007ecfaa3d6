"""What a fleet's tiers do with the shared warm queue: fill it from cold, and compare the two.

`SharedEntry` is the last step of a hand-over: a run for which there is room enters the shared queue
right after it is stored. `SharedPromoter` brings due rows from cold as room comes, in one task per
queue. It holds no row itself: what it acquires is locked under the epoch and enters at once.

`Reconciliation` compares the oldest rows that count as warm with the queue, every RECONCILE_S, in
one daemon at a time. A row that should be there and is not is free again: a daemon was killed
between locking and entering it, or between taking it out and settling it. A row is only looked at
when it has been locked for GRACE_S: until then the daemon that locked it may still enter it. And it
counts as lost only if it still has items after it was missed, because an item leaves the queue
after its row. Rows under an epoch that the server has forgotten are due again when the leases on
them must have ended.

Nothing here is durable. On cancel a row may stay locked and not entered; the reconciliation frees
it. It cannot repair a queue of which the server has lost a part: then the queue drops the rest
itself and gets a new epoch.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import structlog
import trio

from actors.ports.tiers import Limits, NewRow, StoreUnavailable
from actors.spooler.arrivals import Arrivals
from actors.tiers.hysteresis import headroom
from actors.tiers.queue_tiers import QueueTiers, TierStates
from actors.tiers.shared_warm import SharedWarm, slice_of_row

log = structlog.get_logger()

TICK_S: Final = 5.0
REFILL_SHARE: Final = 0.1
"""The queue is refilled when at least this share of it is free."""
RECONCILE_S: Final = 30.0
GRACE_S: Final = 60.0
LOST_S: Final = 60.0
"""At least how long after a loss rows of a forgotten epoch stay leased."""
ROWS_MAX: Final = 500


class SharedEntry:
    def __init__(self, shared: SharedWarm, states: TierStates) -> None:
        self._shared = shared
        self._states = states

    async def confirm(self, rows: Sequence[NewRow], *, enters_warm: bool) -> None:
        shared = self._shared
        entering: dict[str, tuple[bytes, list[NewRow]]] = {}
        """By queue: its epoch, and the rows that enter."""
        if enters_warm and shared.takes_rows:
            for queue in {row.head.queue for row in rows}:
                fitting = await self._fitting(queue, [r for r in rows if r.head.queue == queue])
                epoch = await shared.epoch(queue)
                if fitting and epoch is not None:
                    entering[queue] = epoch, fitting
        locked = {epoch: [row.row for row in fitting] for epoch, fitting in entering.values()}
        chosen = {row for ids in locked.values() for row in ids}
        before_ms = shared.deadline_ms()
        await shared.rows.confirm([row.row for row in rows if row.row not in chosen], locked)
        for queue, (epoch, fitting) in entering.items():
            slices = [slice_of_row(row, epoch) for row in fitting]
            await shared.enter_rows(queue, slices, self._states.limits(queue), before_ms)

    async def _fitting(self, queue: str, rows: Sequence[NewRow]) -> list[NewRow]:
        """The first rows for which there is room."""
        fill, limits = await self._shared.fill(queue), self._states.limits(queue)
        items, size = limits.items - fill.items, limits.bytes - fill.bytes
        fitting: list[NewRow] = []
        for row in rows:
            items -= row.bits.bit_count()
            size -= len(row.data)
            if items < 0 or size < 0:
                break
            fitting.append(row)
        return fitting


class SharedPromoter:
    def __init__(self, states: TierStates, shared: SharedWarm, arrivals: Arrivals) -> None:
        self._states = states
        self._shared = shared
        self._arrivals = arrivals
        self._told: dict[str, trio.Event] = {}

    def wake(self, queue: str, priority: int | None = None) -> None:
        """Cold may have something due."""
        self._states.warm.wake(queue)
        told = self._told.get(queue)
        if told is not None:
            told.set()
            self._told[queue] = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wakes the queues that have something in cold, every 5 s."""
        task_status.started()
        while True:
            await trio.sleep(TICK_S)
            with suppress(StoreUnavailable):
                for queue, totals in (await self._states.cold.totals()).items():
                    if totals.held:
                        self.wake(queue)
                    if totals.held or totals.dead:
                        self._arrivals.see_shared(queue)

    async def promote(self, queue: str) -> None:
        """Runs the task of one queue; never returns."""
        self._told[queue] = trio.Event()
        while True:
            told = self._told[queue]
            pause_s = TICK_S
            with suppress(StoreUnavailable):
                pause_s = await self._bring(queue, self._states.of(queue))
            with trio.move_on_after(pause_s):
                await told.wait()

    async def _bring(self, queue: str, state: QueueTiers) -> float:
        """Brings rows until the queue is full or nothing is due; returns when to look again."""
        while not (self._states.is_stream(queue) or self._states.is_fetched(queue)):
            limits = self._states.limits(queue)
            fill = await self._shared.fill(queue)
            room = headroom(fill, state.unrecorded, limits)
            if room.items < max(1, limits.items * REFILL_SHARE) or room.bytes <= 0:
                with trio.move_on_after(TICK_S):
                    await self._shared.wait_change(queue)
                continue
            paused = self._states.paused_flows(queue)
            acquired = state.acquired = trio.Event()
            try:
                brought = await self._shared.bring(
                    queue, Limits(room.items, room.bytes), limits, paused
                )
            finally:
                state.acquired = None
                acquired.set()
            if not brought:
                outlook = await self._states.cold.outlook(queue, paused)
                if outlook.next_due_ms is None or outlook.has_due:
                    return TICK_S
                return max(0.0, (outlook.next_due_ms - self._states.now_ms()) / 1000)
        return TICK_S


class Reconciliation:
    def __init__(self, states: TierStates, shared: SharedWarm) -> None:
        self._states = states
        self._shared = shared
        self.repaired_total = 0
        """Rows that should have been in the shared queue and were not; 0 in a healthy fleet."""

    async def run(self) -> None:
        while True:
            forgotten = self._shared.forgotten
            with trio.move_on_after(RECONCILE_S) as waiting:
                await forgotten.wait()
            try:
                if not self._shared.is_away:
                    has_turn = await self._shared.remote.take_turn(RECONCILE_S / 2)
                    if has_turn or not waiting.cancelled_caught:
                        await self.reconcile()
            except StoreUnavailable:
                # The next round repeats it.
                continue

    async def reconcile(self) -> None:
        for queue, totals in (await self._states.cold.totals()).items():
            if totals.held:
                await self._reconcile(queue)

    async def _reconcile(self, queue: str) -> None:
        shared, cold = self._shared, self._states.cold
        epoch = await shared.remote.epoch(queue)
        lease_s = max(LOST_S, self._states.catalogue.settings_of(queue).lease_time)
        ended = await shared.rows.end_epochs(queue, epoch, lease_s)
        if ended:
            log.warning("warm.epoch_ended", queue=queue, rows=ended)
        rows = await shared.rows.entered(queue, epoch, GRACE_S, ROWS_MAX)
        if not rows:
            return
        now, there = await shared.remote.present(queue, rows)
        missing = [row for row, bits in zip(rows, there, strict=True) if not bits]
        if now != epoch or not missing:
            return
        # What left the queue meanwhile has left its row before.
        lost = list(await shared.rows.left(epoch, missing))
        if lost:
            await cold.release(epoch, lost)
            self.repaired_total += len(lost)
            log.warning("warm.rows_were_missing", queue=queue, rows=len(lost))
