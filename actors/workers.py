"""Workers: a group for each queue, so that a slow queue cannot starve another.

A worker leases the next items from warm, sends them over a connection of its own, and settles
what became of them. Before it leases, it waits until there is something, until the queue is not
paused, and until the destination's breaker lets it: a group that waits costs nothing and spends
no attempt. Under a rate limit workers stand in line before they lease. With `pipeline_split`
leasing and preparing are tasks of their own (actors/split_workers.py).

Leases outlive the handler's deadline, so that they run out only if the process hangs; what comes
back after that changes nothing. On `drain` no worker leases more; each finishes what it has in
hand. On cancel nothing is settled, and the owner's next life delivers it again.
"""

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from actors.adaptive import AdaptiveCount
from actors.breaker import Admission, Breakers, SendOutcome
from actors.event_log import EventLog
from actors.events import QueueStaffed, Sending
from actors.handling import DeliveryFailed, Failure, Handler, Prepared, Report, Sender
from actors.in_hand import InHand, Task, holder
from actors.queue_settings import QueueSettings
from actors.rate import SendLimit, TokenBucket
from actors.retry import conclude
from actors.settlement import Settlement
from actors.tallies import Tallies
from actors.tiers import Ending, Leased, WarmQueue

log = structlog.get_logger()

ADAPT_S: Final = 1.0
LOOK_S: Final = 0.25
LEASE_MARGIN_S: Final = 30.0
RATE_SLICE_S: Final = 1.0
"""Under a rate limit a batch is at most what may go in that time."""


@dataclass(slots=True)
class Sent:
    """What a group has done, for the metrics."""

    batches: int = 0
    items: int = 0
    failures: int = 0
    """Batches of which something failed."""

    def note(self, items: int, *, is_failed: bool) -> None:
        self.batches += 1
        self.items += items
        self.failures += is_failed


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Leased items, ready to be sent."""

    leased: list[Leased]
    prepared: Prepared
    leased_at: float

    @property
    def items(self) -> int:
        return sum(lease.slice.items for lease in self.leased)


@dataclass(frozen=True, slots=True)
class Shared:
    """What all groups use."""

    warm: WarmQueue
    settlement: Settlement
    breakers: Breakers
    send_limit: SendLimit
    now_ms: Callable[[], int]
    cores: int
    events: EventLog | None = None
    tallies: Tallies = field(default_factory=Tallies)
    host: str = ""
    """This one's name, for the record of who had what."""


@dataclass(frozen=True, slots=True)
class Staff:
    """Who works for a queue at this moment, for the metrics."""

    alive: int
    busy: int
    """Those that send: as many sends are in flight."""
    preparers: int
    """0: each worker prepares what it sends."""
    latency_s: float | None
    """Of a send, smoothed; None: there was none yet."""


class Gate:
    """Open while the queue may deliver. Others wait without cost."""

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


class WorkerGroup:
    def __init__(
        self,
        queue: str,
        settings: QueueSettings,
        handler: Handler,
        bucket: TokenBucket,
        gate: Gate,
        shared: Shared,
    ) -> None:
        self._queue = queue
        self._settings = settings
        self._handler = handler
        self._bucket = bucket
        self._gate = gate
        self._shared = shared
        self._count = AdaptiveCount(settings.workers, shared.cores)
        self._alive = 0
        self._preparers = 0
        self._busy = self._busy_max = 0
        self._in_hand = InHand()
        self._idle: set[trio.CancelScope] = set()
        self._waiting: set[trio.CancelScope] = set()
        """Of workers that have nothing to do."""
        self._is_draining = False
        self.sent = Sent()

    @property
    def queue(self) -> str:
        return self._queue

    def figures(self) -> dict[str, int | str]:
        return {
            "destination": self._handler.destination,
            "count": self._alive,
            "busy": self._busy,
            "batches": self.sent.batches,
            "items": self.sent.items,
            "failures": self.sent.failures,
        }

    def staff(self) -> Staff:
        return Staff(self._alive, self._busy, self._preparers, self._count.latency_s)

    def tasks(self) -> Iterator[Task]:
        """The batches that are being sent."""
        return self._in_hand.tasks(self._queue, self.lease_s)

    @property
    def lease_s(self) -> float:
        """Longer than any send: `lease_time` can make it longer still, not shorter."""
        return max(self._settings.lease_time, 2 * self._handler.timeout_s + LEASE_MARGIN_S)

    async def run(self) -> None:
        """Until `drain`, and then until all are done."""
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
                        fill = await self._shared.warm.fill(self._queue)
                        before = self._wanted
                        self._count.decide(fill.waiting, self._busy_max)
                        if self._wanted != before:
                            self._note_staff()
                        self._busy_max = self._busy
                        self._hire(nursery)
                        self._dismiss()

    def _hire(self, nursery: trio.Nursery) -> None:
        while self._alive < self._wanted and not self._is_draining:
            self._alive += 1
            nursery.start_soon(self._work)

    def _dismiss(self) -> None:
        """Those that are too many and wait go now; those that are busy when they are done."""
        too_many = max(0, self._alive - self._wanted)
        for scope in list(self._waiting)[:too_many]:
            scope.cancel()

    def _note_staff(self) -> None:
        """How many may send, and in which bounds: for the event log."""
        shared, settings, split = self._shared, self._settings, self._settings.pipeline_split
        if shared.events is None:
            return
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
                settings.rate_limit,
                settings.warm_max_items,
            )
        )

    @property
    def _wanted(self) -> int:
        return self._count.count * self._settings.workers.max_concurrent_sends

    async def _work(self) -> None:
        sender = self._handler.open_sender()
        try:
            while not self._is_draining and self._alive <= self._wanted:
                batch = await self._next_batch()
                if batch is not None:
                    await self._send_admitted(sender, *batch)
        finally:
            self._alive -= 1
            with trio.CancelScope(shield=True):
                await sender.aclose()

    async def _next_batch(self) -> tuple[Admission, Batch] | None:
        """A batch, and leave to send it; None if draining began, or others were faster."""
        if not await self._may_send():
            return None
        found: tuple[Admission, Batch] | None = None

        async def take() -> int:
            nonlocal found
            admission = self._shared.breakers.admit_nowait(self._handler.destination)
            if admission is None:
                return 0
            leased: list[Leased] = []
            try:
                leased = await self._lease()
            finally:
                if not leased:
                    self._shared.breakers.give_up(admission)
            if leased:
                prepared = self._handler.prepare([lease.slice for lease in leased])
                found = admission, Batch(leased, prepared, trio.current_time())
            return sum(lease.slice.items for lease in leased)

        await self._in_turn(take)
        if found is None:
            await self._wait()
        return found

    # What those with split tasks do as well.

    async def _may_send(self) -> bool:
        """Waits until the queue is not paused and the breaker lets something through; False if
        draining begins first. Nothing is awaited where nothing is in the way."""
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

    async def _in_turn(self, take: Callable[[], Awaitable[int]]) -> None:
        """Calls `take` when the destination's rate allows it, if it does before draining."""
        if not self._bucket.rate:
            await take()
            return
        with self._until_drain():
            await self._bucket.take_turn(self._items_max, take)

    @property
    def _items_max(self) -> int:
        items_max = self._handler.batch_items
        if self._bucket.rate:
            items_max = max(1, min(items_max, int(self._bucket.rate * RATE_SLICE_S)))
        return items_max

    async def _lease(self) -> list[Leased]:
        """The next items, if there are any and the queue may deliver."""
        if not self._gate.is_open:
            return []
        shared = self._shared
        leased = await shared.warm.lease(
            self._queue,
            self._items_max,
            self._handler.batch_bytes,
            self.lease_s,
            self._gate.except_flows,
        )
        shared.tallies.leased(self._queue, leased, shared.now_ms())
        return leased

    async def _wait(self) -> None:
        """Until there may be something, or draining begins. Warm says when something comes, not
        when a flow that was paused is resumed."""
        with self._until_drain(), trio.CancelScope() as scope:
            if self._gate.except_flows or not self._gate.is_open:
                scope.deadline = trio.current_time() + LOOK_S
            self._waiting.add(scope)
            try:
                await self._shared.warm.wait(self._queue)
            finally:
                self._waiting.remove(scope)

    async def _send_admitted(self, sender: Sender, admission: Admission, batch: Batch) -> None:
        """Sends a batch and settles it."""
        shared = self._shared
        try:
            async with shared.send_limit:
                if not await self._still_ours(batch):
                    return
                began, started_ms = trio.current_time(), shared.now_ms()
                report, place = await self._send(sender, batch, started_ms)
            took_s = trio.current_time() - began
            self._count.sent(took_s)
            shared.breakers.report(outcome_of(admission, report))
        finally:
            shared.breakers.give_up(admission)
        is_failed = isinstance(report, Failure) or bool(report.failures)
        self.sent.note(batch.items, is_failed=is_failed)
        shared.tallies.sent(self._queue, batch.items, took_s, is_failed=is_failed)
        conclusions = conclude(
            batch.prepared.batch,
            report,
            self._settings,
            shared.now_ms(),
            random.random,
            holder(shared.host, self._queue, str(place), started_ms),
        )
        sending = Sending(
            self._handler.destination, batch.items, started_ms, round(took_s * 1000, 3)
        )
        await shared.settlement.settle(self._queue, batch.leased, conclusions, sending)

    async def _still_ours(self, batch: Batch) -> bool:
        """What has waited long may have run out: then it is somebody else's, and not sent."""
        if trio.current_time() - batch.leased_at < self.lease_s / 4:
            return True
        warm, queue = self._shared.warm, self._queue
        tokens = [lease.token for lease in batch.leased]
        kept = await warm.extend(queue, tokens, self.lease_s)
        if all(kept):
            return True
        await self._give_back([one for one, ok in zip(batch.leased, kept, strict=True) if ok])
        log.warning("delivery.lease_lost", queue=queue, leases=kept.count(False))
        return False

    async def _give_back(self, leased: Sequence[Leased]) -> None:
        endings = [Ending(lease.token, (lease.slice,)) for lease in leased]
        await self._shared.warm.end(self._queue, endings)

    async def _send(
        self, sender: Sender, batch: Batch, now_ms: int
    ) -> tuple[Report | Failure, int]:
        """What became of it, and the number of who sent it."""
        self._busy += 1
        self._busy_max = max(self._busy_max, self._busy)
        place = self._in_hand.take(batch.leased, now_ms)
        try:
            return await sender.send(batch.prepared), place
        except DeliveryFailed as failed:
            return failed.failure, place
        finally:
            self._busy -= 1
            self._in_hand.leave(place)

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


def outcome_of(admission: Admission, report: Report | Failure) -> SendOutcome:
    """What the breaker is told: an answer that refuses items is still an answer."""
    failures = [report] if isinstance(report, Failure) else [f.failure for f in report.failures]
    for failure in failures:
        if failure.blames_destination:
            return SendOutcome(admission, ok=False, error=failure.text)
    return SendOutcome(admission, ok=True)
