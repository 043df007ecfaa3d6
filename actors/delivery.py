"""Delivery: one pump for each queue, so that a slow queue holds up no other.

A pump takes runs from the spooler in order, hands them to the queue's handler, and settles them,
a batch at a time. What a handler does not take is tried again with growing pauses; meanwhile the
queue waits, and it alone. What cannot be unpacked is dropped, counted and logged.

Durable when: the spooler says so; between a delivery and its mark lies a moment in which a crash
delivers again, with the same ids. On drain each pump finishes the run it is at, settles, and ends.
On cancel nothing is settled, and the spooler's next life lends it again.
"""

from collections.abc import Callable
from typing import Final

import structlog
import trio

from actors.messages import (
    Fate,
    GiveBack,
    Lease,
    QueueSeen,
    Settle,
    Settled,
    SpoolerMessage,
    Take,
)
from actors.ports import DeliveryFailed, Handler, Undeliverable
from forebay.ids import format_run_id

log = structlog.get_logger()

TAKE_RUNS_MAX: Final = 64
TAKE_BYTES_MAX: Final = 8 * 1024 * 1024
PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 30.0


class Delivery:
    def __init__(
        self,
        inbox: trio.MemoryReceiveChannel[QueueSeen],
        spooler: trio.MemorySendChannel[SpoolerMessage],
        open_handler: Callable[[str], Handler | None],
    ) -> None:
        """`open_handler` gives None for a queue whose items wait for consumers that pull."""
        self._inbox = inbox
        self._spooler = spooler
        self._open_handler = open_handler
        self._listening = trio.CancelScope()
        self._taking: set[trio.CancelScope] = set()
        self._is_draining = False

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with self._spooler, trio.open_nursery() as nursery:
            task_status.started()
            with self._listening:
                async for seen in self._inbox:
                    handler = self._open_handler(seen.queue)
                    if handler is not None:
                        nursery.start_soon(self._pump, seen.queue, handler)

    def drain(self) -> None:
        """No pump takes more than it has. `run` returns when all are done."""
        self._is_draining = True
        self._listening.cancel()
        for scope in self._taking:
            scope.cancel()

    async def _pump(self, queue: str, handler: Handler) -> None:
        try:
            while not self._is_draining:
                leases = await self._take(queue)
                done: list[Settled] = []
                try:
                    for lease in leases:
                        if self._is_draining:
                            break
                        done.append(_settled(lease, await self._deliver(queue, handler, lease)))
                finally:
                    # Delivered is delivered, even if this task is cancelled over the next run.
                    with trio.move_on_after(PAUSE_MIN_S, shield=True):
                        await self._spooler.send(Settle(tuple(done)))
                rest = tuple(leases[len(done) :])
                if rest:
                    await self._spooler.send(GiveBack(rest))
        except trio.BrokenResourceError:
            log.debug("delivery.spooler_gone", queue=queue)
        finally:
            with trio.CancelScope(shield=True):
                await handler.aclose()

    async def _take(self, queue: str) -> list[Lease]:
        """The next runs; none if draining begins first."""
        taken: list[Lease] = []
        there = trio.Event()

        def answer(leases: list[Lease]) -> None:
            taken.extend(leases)
            there.set()

        with trio.CancelScope() as scope:
            self._taking.add(scope)
            await self._spooler.send(Take(queue, TAKE_RUNS_MAX, TAKE_BYTES_MAX, answer))
            await there.wait()
        self._taking.discard(scope)
        return taken

    async def _deliver(self, queue: str, handler: Handler, lease: Lease) -> Fate:
        """Tries until the handler takes it."""
        pause = PAUSE_MIN_S
        while True:
            try:
                await handler.deliver(lease.run, lease.done)
            except DeliveryFailed as failure:
                if pause == PAUSE_MIN_S:
                    log.warning("delivery.failing", queue=queue, error=str(failure))
                await trio.sleep(pause)
                pause = min(pause * 2, PAUSE_MAX_S)
            except Undeliverable as problem:
                run = format_run_id(lease.run.head.run_id)
                log.error("delivery.undeliverable", queue=queue, run=run, error=str(problem))
                return Fate.DROPPED
            else:
                if pause != PAUSE_MIN_S:
                    log.info("delivery.working_again", queue=queue)
                return Fate.DELIVERED


def _settled(lease: Lease, fate: Fate) -> Settled:
    run = lease.run
    return Settled(lease.token, run.position, run.head.run_id, 0, run.head.count, fate)
