"""Worker groups: one per queue, so that a slow queue cannot starve another.

A worker leases the next items from warm, sends them over its own connection and settles the
outcome. Before it leases, it waits until there are items, the queue is not paused and the
destination's breaker admits it: a waiting group costs nothing and spends no attempt. Under a rate
limit, workers queue up before they lease. With `pipeline_split`, leasing and preparing are separate
tasks (actors/workers/split_workers.py).

actors/workers/sending.py handles a leased batch. On `drain` no worker leases more; each finishes
its current batch. On cancel nothing is settled, and the owner delivers again after the restart.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import trio

from actors.breaker.breaker import Admission
from actors.config.queue import QueueSettings
from actors.model.rates import Rate
from actors.observers.events import QueueStaffed
from actors.ports.handler import Handler
from actors.ports.tiers import Leased
from actors.workers.adaptive import AdaptiveCount
from actors.workers.rate import DestinationRate
from actors.workers.sending import Delivering, SendBatch, Task, WorkerShared


class Gate:
    """The gate of a queue: open while the queue may deliver, except for its paused flows.

    Plain state that dispatch sets and the queue's workers read; waiting for it costs nothing.
    """

    def __init__(self) -> None:
        self._open = trio.Event()
        self.except_flows: frozenset[str] = frozenset()

    def set(self, *, is_open: bool, except_flows: frozenset[str]) -> None:
        self.except_flows = except_flows
        if is_open:
            self._open.set()
        elif self._open.is_set():
            self._open = trio.Event()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    async def wait(self) -> None:
        await self._open.wait()


ADAPT_S: Final = 1.0
LOOK_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Staff:
    """The workers of a queue at this moment, for the metrics."""

    alive: int
    busy: int
    """Workers that are sending, which is the number of sends in flight."""
    preparers: int
    """0: each worker prepares what it sends."""
    latency_s: float | None
    """Smoothed latency of a send; None before the first send."""


class WorkerGroup:
    def __init__(
        self,
        queue: str,
        settings: QueueSettings,
        handler: Handler,
        rate: DestinationRate,
        gate: Gate,
        shared: WorkerShared,
    ) -> None:
        self._queue = queue
        self._settings = settings
        self._handler = handler
        self._rate = rate
        self._gate = gate
        self._shared = shared
        self._count = AdaptiveCount(settings.workers, shared.cores)
        self._alive = 0
        self._preparers = 0
        self._delivering = Delivering(queue, settings, handler, rate.requests, self._count, shared)
        self._idle: set[trio.CancelScope] = set()
        self._waiting: set[trio.CancelScope] = set()
        """Cancel scopes of workers that have nothing to do."""
        self._is_draining = False

    @property
    def queue(self) -> str:
        return self._queue

    @property
    def destination(self) -> str:
        return self._handler.destination

    def figures(self) -> dict[str, int | str]:
        sent = self._delivering.sent
        return {
            "destination": self._handler.destination,
            "count": self._alive,
            "busy": self._delivering.busy,
            "batches": sent.batches,
            "items": sent.items,
            "failures": sent.failures,
        }

    def staff(self) -> Staff:
        return Staff(self._alive, self._delivering.busy, self._preparers, self._count.latency_s)

    def tasks(self) -> Iterator[Task]:
        """The batches that are being sent."""
        return self._delivering.tasks()

    async def run(self) -> None:
        """Runs until `drain`, and then until all workers are done."""
        self._shared.breakers.name(self._handler.destination, self._settings.breaker)
        self._note_staff()
        try:
            await self._run_workers()
        finally:
            with trio.CancelScope(shield=True):
                await self._handler.aclose()

    def drain(self) -> None:
        self._is_draining = True
        for scope in self._idle:
            scope.cancel()

    # One task leases, prepares, sends and settles.

    async def _run_workers(self) -> None:
        async with trio.open_nursery() as nursery:
            self._hire(nursery)
            if self._settings.workers.adaptive:
                with self._until_drain():
                    while True:
                        await trio.sleep(ADAPT_S)
                        waiting = await self._shared.warm.waiting(self._queue)
                        before = self._wanted
                        self._count.decide(waiting, self._delivering.busy_max)
                        if self._wanted != before:
                            self._note_staff()
                        self._delivering.busy_max = self._delivering.busy
                        self._hire(nursery)
                        self._dismiss()

    def _hire(self, nursery: trio.Nursery) -> None:
        while self._alive < self._wanted and not self._is_draining:
            self._alive += 1
            nursery.start_soon(self._work)

    def _dismiss(self) -> None:
        """Ends surplus workers: waiting ones now, busy ones after their batch."""
        too_many = max(0, self._alive - self._wanted)
        for scope in list(self._waiting)[:too_many]:
            scope.cancel()

    def _note_staff(self) -> None:
        """Notes the number of workers and their limits in the event log."""
        shared, settings, split = self._shared, self._settings, self._settings.pipeline_split
        workers = self._wanted
        if split.enabled and split.sender_count:
            workers = split.sender_count * settings.workers.max_concurrent_sends
        shared.events.note(
            QueueStaffed(
                shared.now_ms(),
                self._queue,
                self._handler.destination,
                workers,
                self._handler.batch_items,
                items_per_s(settings.rate_limit, self._handler.batch_items),
                settings.warm_max_items,
            )
        )

    @property
    def _wanted(self) -> int:
        return self._count.count * self._settings.workers.max_concurrent_sends

    async def _work(self) -> None:
        to = self._delivering.open_sender()
        try:
            while not self._is_draining and self._alive <= self._wanted:
                batch = await self._next_batch()
                if batch is not None:
                    await self._delivering.deliver(to, *batch)
        finally:
            self._alive -= 1
            with trio.CancelScope(shield=True):
                await to.sender.aclose()

    async def _next_batch(self) -> tuple[Admission, SendBatch] | None:
        """A batch and the admission to send it; None if draining began or others took the items."""
        if not await self._may_send():
            return None
        found: tuple[Admission, SendBatch] | None = None

        async def take(items_max: int) -> int:
            nonlocal found
            found = await self._take(items_max)
            return 0 if found is None else found[1].items

        if self._rate.is_limited:
            await self._in_turn(take)
        else:
            found = await self._take(self._handler.batch_items)
        if found is None:
            await self._wait()
        return found

    async def _take(self, items_max: int) -> tuple[Admission, SendBatch] | None:
        breakers = self._shared.breakers
        admission = breakers.admit_nowait(self._handler.destination)
        if admission is None:
            return None
        leased: list[Leased] = []
        try:
            leased = await self._lease(items_max)
        finally:
            if not leased:
                breakers.give_up(admission)
        if not leased:
            return None
        prepared = self._handler.prepare([lease.slice for lease in leased])
        return admission, SendBatch(leased, prepared, trio.current_time())

    # Shared with SplitWorkerGroup.

    async def _may_send(self) -> bool:
        """Waits until the queue is not paused and the breaker admits a send; False if draining
        begins first. Awaits nothing if nothing is in the way."""
        breakers, destination = self._shared.breakers, self._handler.destination
        if self._gate.is_open and breakers.state(destination).phase == "closed":
            return True
        with self._until_drain():
            while True:
                await self._gate.wait()
                breakers.give_up(await breakers.admit(destination))
                if self._gate.is_open:
                    return True
        return False

    async def _in_turn(self, take: Callable[[int], Awaitable[int]]) -> None:
        """Calls `take` with the size of a batch when the destination's rate allows one, unless
        draining begins first."""
        items_max = self._handler.batch_items
        if not self._rate.is_limited:
            await take(items_max)
            return
        with self._until_drain():
            await self._rate.take_turn(items_max, take)

    async def _lease(self, items_max: int) -> list[Leased]:
        """Leases the next items, if there are any and the queue may deliver."""
        if not self._gate.is_open:
            return []
        shared = self._shared
        leased = await shared.warm.lease(
            self._queue,
            items_max,
            self._handler.batch_bytes,
            self._delivering.lease_s,
            self._gate.except_flows,
        )
        shared.tallies.leased(self._queue, leased, shared.now_ms())
        return leased

    async def _wait(self) -> None:
        """Waits until there may be items or draining begins. Warm announces new items, but not that
        a paused flow was resumed."""
        with self._until_drain(), trio.CancelScope() as scope:
            if self._gate.except_flows or not self._gate.is_open:
                scope.deadline = trio.current_time() + LOOK_S
            self._waiting.add(scope)
            try:
                await self._shared.warm.wait(self._queue)
            finally:
                self._waiting.remove(scope)

    @contextmanager
    def _until_drain(self) -> Iterator[None]:
        """Cancels its body when draining begins."""
        with trio.CancelScope() as scope:
            if self._is_draining:
                scope.cancel()
            self._idle.add(scope)
            try:
                yield
            finally:
                self._idle.remove(scope)


def items_per_s(rate: Rate, batch_items: int) -> float:
    """The most items per second that a rate allows; 0: no limit."""
    return rate.per_s * (batch_items if rate.unit == "requests" else 1)
