"""What a worker does with a leased batch: it sends the batch and settles the outcome.

There is one per worker group. It keeps the group's counts: sends in flight, batches being sent,
totals. It awaits only the send limit, the send itself, and warm if that is outside this process.

A batch that has waited long may have lost its lease and is then not sent. Leases outlive the
handler's deadline, so they expire only if the process hangs; a late outcome changes nothing. On
cancel nothing is settled, and the owner delivers again after the restart.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import structlog
import trio

from actors.breaker.breaker import Admission, Breakers, SendOutcome
from actors.config.queue import QueueSettings
from actors.model.clock import Clock
from actors.model.outcomes import Failure, Report
from actors.model.slices import HeldBy, Slice, holder
from actors.observers.event_log import EventLog
from actors.observers.events import Sending
from actors.observers.tallies import Tallies
from actors.ports.handler import DeliveryFailed, Handler, Prepared, Sender
from actors.ports.tiers import Ending, Leased, WarmQueue
from actors.tiers.leasing import Leasing
from actors.workers.adaptive import AdaptiveCount
from actors.workers.rate import SendLimit, TokenBucket
from actors.workers.retry import conclude, takes_long
from actors.workers.settlement import Settlement


class Task(NamedTuple):
    """A batch that a worker or consumer works on."""

    queue: str
    worker: str
    """A number within the group, or a consumer's name."""
    slices: tuple[Slice, ...]
    began_ms: int
    lease_ms: int
    """The duration of its lease."""

    @property
    def items(self) -> int:
        return sum(slice_.items for slice_ in self.slices)


@dataclass(frozen=True, slots=True)
class _Held:
    leased: Sequence[Leased]
    began_ms: int


class InHand:
    """The batches that workers and consumers hold at this moment, for display.

    A worker group takes a place for each batch that it sends and leaves it when the send has ended,
    with any outcome. Places are numbered from 1 to the number of busy senders, so a number stands
    roughly for one sender. Plain data of one group.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, leased: Sequence[Leased], now_ms: int) -> int:
        """Takes a place for a batch; the caller must `leave` it."""
        place = len(self._held) + 1
        while place in self._held:
            place -= 1
        self._held[place] = _Held(leased, now_ms)
        return place

    def leave(self, place: int) -> None:
        del self._held[place]

    def tasks(self, queue: str, lease_s: float) -> Iterator[Task]:
        for place, held in self._held.items():
            slices = tuple(lease.slice for lease in held.leased)
            yield Task(queue, str(place), slices, held.began_ms, round(lease_s * 1000))


log = structlog.get_logger()

LEASE_MARGIN_S: Final = 30.0


@dataclass(slots=True)
class Sent:
    """What a group has sent, for the metrics."""

    batches: int = 0
    items: int = 0
    failures: int = 0
    """Batches with at least one failed item."""

    def note(self, items: int, *, is_failed: bool) -> None:
        self.batches += 1
        self.items += items
        self.failures += is_failed


@dataclass(frozen=True, slots=True, eq=False)
class SendBatch:
    """Leased items, ready to be sent."""

    leased: list[Leased]
    prepared: Prepared
    leased_at: float

    @property
    def items(self) -> int:
        return items_of(self.leased)


@dataclass(frozen=True, slots=True)
class WorkerShared:
    """What all groups share."""

    warm: Leasing
    settlement: Settlement
    breakers: Breakers
    send_limit: SendLimit
    now_ms: Clock
    events: EventLog
    tallies: Tallies
    cores: int
    host: str = ""
    """This host's name, for the record of which worker held an item."""


class BatchPace:
    """The pace of one sender: it waits for tokens, and keeps the leases of the batch meanwhile."""

    def __init__(self, requests: TokenBucket, warm: WarmQueue, queue: str, lease_s: float) -> None:
        self._requests = requests
        self._warm = warm
        self._queue = queue
        self._lease_s = lease_s
        self._leased: Sequence[Leased] = ()
        self._kept_at = 0.0
        self.waited_s = 0.0
        """How long the batch has waited so far."""

    def begin(self, batch: SendBatch, kept_at: float) -> None:
        """A batch is about to be sent; its leases were last extended at `kept_at`."""
        self._leased = batch.leased
        self._kept_at = kept_at
        self.waited_s = 0.0

    async def request(self) -> None:
        if not self._requests.rate:
            return
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_leases)
            await self._requests.reserve()
            nursery.cancel_scope.cancel()
        self.waited_s += trio.current_time() - began

    async def _keep_leases(self) -> None:
        tokens = [lease.token for lease in self._leased]
        while True:
            due = self._kept_at + self._lease_s / 4
            if trio.current_time() < due:
                await trio.sleep_until(due)
            with trio.CancelScope(shield=True):
                # The outcome for a lease that was lost nevertheless changes nothing.
                await self._warm.extend(self._queue, tokens, self._lease_s)
            self._kept_at = trio.current_time()


class BatchSender(NamedTuple):
    sender: Sender
    pace: BatchPace


class Delivering:
    def __init__(
        self,
        queue: str,
        settings: QueueSettings,
        handler: Handler,
        requests: TokenBucket,
        count: AdaptiveCount,
        shared: WorkerShared,
    ) -> None:
        """`requests`: the tokens for further requests of a batch. `count` is told how long each
        send took."""
        self._queue = queue
        self._settings = settings
        self._handler = handler
        self._requests = requests
        self._destination = handler.destination
        self._count = count
        self._shared = shared
        self._in_hand = InHand()
        self._names: dict[int, str] = {}
        """Names of the senders, by place."""
        self.lease_s = max(settings.lease_time, 2 * handler.timeout_s + LEASE_MARGIN_S)
        """Longer than any send, which may wait for its pace besides; `lease_time` can only make it
        longer."""
        self.busy = 0
        """Sends in flight."""
        self.busy_max = 0
        """The highest value of `busy` since a reader last reset it."""
        self.sent = Sent()

    def tasks(self) -> Iterator[Task]:
        """The batches that are being sent."""
        return self._in_hand.tasks(self._queue, self.lease_s)

    def open_sender(self) -> BatchSender:
        """A sender for one worker, which must close it."""
        pace = BatchPace(self._requests, self._shared.warm, self._queue, self.lease_s)
        return BatchSender(self._handler.open_sender(pace), pace)

    async def deliver(self, to: BatchSender, admission: Admission, batch: SendBatch) -> None:
        """Sends a batch and settles it."""
        shared = self._shared
        try:
            async with shared.send_limit:
                began, kept_at = trio.current_time(), batch.leased_at
                if began - batch.leased_at >= self.lease_s / 4:
                    if not await self._is_still_ours(batch):
                        return
                    began = kept_at = trio.current_time()
                started_ms = shared.now_ms()
                to.pace.begin(batch, kept_at)
                report, place = await self._send(to.sender, batch, started_ms)
            took_s = trio.current_time() - began - to.pace.waited_s
            shared.breakers.report(outcome_of(admission, report))
        finally:
            shared.breakers.give_up(admission)
        items = batch.items
        if isinstance(report, Report):
            items -= sum(bits.bit_count() for _, bits in report.untried)
        self._note(items, report, took_s)
        conclude_batch = partial(
            conclude,
            batch.prepared.batch,
            report,
            self._settings,
            shared.now_ms(),
            random.random,
            HeldBy(self._name(place), started_ms),
        )
        # A failure of the whole batch is concluded for each of its slices.
        failures = batch.leased if isinstance(report, Failure) else report.failures
        if takes_long(len(failures), self._settings):
            conclusions = await trio.to_thread.run_sync(conclude_batch)
        else:
            conclusions = conclude_batch()
        sending = Sending(self._destination, items, started_ms, round(took_s * 1000, 3))
        await shared.settlement.settle(self._queue, batch.leased, conclusions, sending)

    async def give_back(self, leased: Sequence[Leased]) -> None:
        """Puts leased items back into warm untried; no attempt is spent."""
        endings = [Ending(lease.token, (lease.slice,)) for lease in leased]
        await self._shared.warm.end(self._queue, endings)

    def _note(self, items: int, report: Report | Failure, took_s: float) -> None:
        is_failed = isinstance(report, Failure) or bool(report.failures)
        self._count.sent(took_s)
        self.sent.note(items, is_failed=is_failed)
        self._shared.tallies.sent(self._queue, items, took_s, is_failed=is_failed)
        if _is_suspect(report):
            self._shared.tallies.of(self._queue).suspect_answers += 1

    async def _is_still_ours(self, batch: SendBatch) -> bool:
        """Extends the leases of a batch that has waited long. False: one has expired, and another
        worker may have its items, so the batch is not sent."""
        tokens = [lease.token for lease in batch.leased]
        kept = await self._shared.warm.extend(self._queue, tokens, self.lease_s)
        if all(kept):
            return True
        await self.give_back([one for one, ok in zip(batch.leased, kept, strict=True) if ok])
        log.warning("delivery.lease_lost", queue=self._queue, leases=kept.count(False))
        return False

    async def _send(
        self, sender: Sender, batch: SendBatch, now_ms: int
    ) -> tuple[Report | Failure, int]:
        """Sends the batch; returns the outcome and the place it was sent from."""
        self.busy += 1
        self.busy_max = max(self.busy_max, self.busy)
        place = self._in_hand.take(batch.leased, now_ms)
        try:
            return await sender.send(batch.prepared), place
        except DeliveryFailed as failed:
            return failed.failure, place
        finally:
            self.busy -= 1
            self._in_hand.leave(place)

    def _name(self, place: int) -> str:
        name = self._names.get(place)
        if name is None:
            name = holder(self._shared.host, self._queue, str(place), 0).by
            self._names[place] = name
        return name


def _is_suspect(report: Report | Failure) -> bool:
    if isinstance(report, Failure):
        return report.is_suspect
    return report.is_suspect or any(one.failure.is_suspect for one in report.failures)


def items_of(leased: Sequence[Leased]) -> int:
    return sum([lease.slice.items for lease in leased])


def outcome_of(admission: Admission, report: Report | Failure) -> SendOutcome:
    """What the breaker is told: an answer that refuses items is still an answer."""
    failures = [report] if isinstance(report, Failure) else [f.failure for f in report.failures]
    for failure in failures:
        if failure.blames_destination:
            return SendOutcome(admission, ok=False, error=failure.text)
    return SendOutcome(admission, ok=True)
