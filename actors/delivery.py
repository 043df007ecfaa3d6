"""Delivery: one pump for each queue, so that a slow queue holds up no other.

A pump takes runs from the spooler in order, hands them to the queue's handler, and settles them,
a batch at a time. What a handler does not take is tried again with growing pauses; meanwhile the
queue waits, and it alone. What cannot be unpacked is dropped, counted and logged.

Durable when: the spooler says so; between a delivery and its mark lies a moment in which a crash
delivers again, with the same ids. On drain each pump finishes the run it is at, settles, and ends.
On cancel nothing is settled, and the spooler's next life lends it again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
LAST_SETTLE_S: Final = 1.0
"""What a cancelled pump may still take to say what it has delivered."""


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
        self._idle: set[trio.CancelScope] = set()
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
        """No pump takes or tries more than it has in hand. `run` returns when all are done."""
        self._is_draining = True
        self._listening.cancel()
        for scope in self._idle:
            scope.cancel()

    async def _pump(self, queue: str, handler: Handler) -> None:
        try:
            while not self._is_draining:
                leases = await self._take(queue)
                await self._deliver_all(queue, handler, leases)
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

        with self._until_drain():
            await self._spooler.send(Take(queue, TAKE_RUNS_MAX, TAKE_BYTES_MAX, answer))
            await there.wait()
        return taken

    async def _deliver_all(self, queue: str, handler: Handler, leases: list[Lease]) -> None:
        """Delivers, settles what was delivered, gives back what was not."""
        done: list[Settled] = []
        try:
            for lease in leases:
                fate = None if self._is_draining else await self._deliver(queue, handler, lease)
                if fate is None:
                    break
                done.append(_settled(lease, fate))
        except trio.Cancelled:
            # Delivered is delivered, even if this task is cancelled over the next run.
            with trio.move_on_after(LAST_SETTLE_S, shield=True):
                await self._settle(done)
            raise
        await self._settle(done)
        if len(done) < len(leases):
            await self._spooler.send(GiveBack(tuple(leases[len(done) :])))

    async def _settle(self, done: list[Settled]) -> None:
        if done:
            await self._spooler.send(Settle(tuple(done)))

    async def _deliver(self, queue: str, handler: Handler, lease: Lease) -> Fate | None:
        """Tries until the handler takes it; None if draining ends that."""
        pause = PAUSE_MIN_S
        while True:
            try:
                await handler.deliver(lease.run, lease.done)
            except DeliveryFailed as failure:
                if pause == PAUSE_MIN_S:
                    log.warning("delivery.failing", queue=queue, error=str(failure))
                with self._until_drain():
                    await trio.sleep(pause)
                if self._is_draining:
                    return None
                pause = min(pause * 2, PAUSE_MAX_S)
            except Undeliverable as problem:
                run = format_run_id(lease.run.head.run_id)
                log.error("delivery.undeliverable", queue=queue, run=run, error=str(problem))
                return Fate.DROPPED
            else:
                if pause != PAUSE_MIN_S:
                    log.info("delivery.working_again", queue=queue)
                return Fate.DELIVERED

    @contextmanager
    def _until_drain(self) -> Iterator[None]:
        """What is done in it ends when draining begins."""
        with trio.CancelScope() as scope:
            if self._is_draining:
                scope.cancel()
            self._idle.add(scope)
            try:
                yield
            finally:
                self._idle.remove(scope)


def _settled(lease: Lease, fate: Fate) -> Settled:
    run = lease.run
    return Settled(lease.token, run.position, run.head.run_id, 0, run.head.count, fate)
