"""Pull: leases items to consumers that fetch them, and takes their reports.

It owns these leases: every lease that a consumer has and has not settled, by queue and token. The
leases of a connection are its `Holdings`: they are given back when the connection ends, unless the
consumer asked to keep them. Its callers are the tasks of connections, one per request, and its own
`run`; its state changes only between awaits.

Leases are not durable; outcomes are. Reports go to the `Settling` port, which notes them and ends
the leases, and the consumer is answered when they are on disk (actors/workers/recording.py), or at
once if the queue's `settle_durability` is lazy. A report that is repeated before that waits for the
first one. A report under a token that is not held is refused and changes nothing; the warm queue
decides last. Tokens belong to one run of the daemon: a token from before a restart fits no lease.

A lease that expires is settled as a failed attempt (`end_late`), so that the item's history shows
why it comes again. In warm it lasts `MARGIN_S` longer, so that it is ended here; if this daemon
dies or cannot report it, warm puts the items back unchanged.

Cancelled while it waits for items, it holds nothing. Cancelled right after a lease, it lets the
lease expire. A report that has begun is noted, within a deadline, and then recorded in any case.

It cannot notice at once that a paused queue was resumed (it looks every 250 ms), and it does not
remember leases across a restart.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from secrets import randbits
from typing import Final, Protocol

import structlog
import trio

from actors.config.queue import QueueSettings
from actors.model.clock import Clock, lease_clock, wall_ms
from actors.model.outcomes import Failure
from actors.model.refusals import unknown_queue
from actors.model.slices import HeldBy, holder
from actors.observers.tallies import Tallies
from actors.ports.tiers import Leased, StoreUnavailable, WarmQueue
from actors.workers.lease_ends import LeaseEnds
from actors.workers.pull_reports import Ended, FailedPart, what_became
from actors.workers.recording import Key, Recording, Recordings
from actors.workers.sending import Task
from actors.workers.shipment import Shipment, ship, unpacks_bytes
from forebay.errors import BadFrame
from forebay.lease_frames import LeasedRun, LeaseReport, LeaseWish

LEASE_S: Final = 60.0
"""Used if neither the consumer nor the queue names a lease time."""
LOOK_S: Final = 0.25
"""How often a paused queue is checked for a waiting consumer."""
LATE_S: Final = 1.0
"""How often expired leases are looked for, and how soon a failed report of one is repeated."""
MARGIN_S: Final = 5.0
MARGIN_MS: Final = round(MARGIN_S * 1000)
RAN_OUT: Final = Failure("the lease ran out", blames_destination=False, has_waited=True)
SETTLE_S: Final = 30.0
GIVE_BACK_S: Final = 5.0
SWEEP_S: Final = 10.0
GRACE_MS: Final = 60_000
"""How long an expired lease is remembered: until warm puts it back, no other consumer has it."""
NAMELESS: Final = "consumer"
TOKEN_BITS: Final = 62
"""Size of the first token: small enough that the daemon never reaches the end of the range."""
UNPACK_BYTES_MAX: Final = 128 * 1024
"""Above this size a thread unpacks: 128 KiB take about 0.1 ms."""

log = structlog.get_logger(__name__)


class PullQueues(Protocol):
    """What the catalogue knows about a queue."""

    def queue(self, name: str) -> QueueSettings | None: ...

    def except_flows(self, queue: str) -> frozenset[str] | None: ...


class Settling(Protocol):
    async def settle(self, queue: str, ended: Sequence[Ended]) -> list[Recording]:
        """Notes outcomes and ends the leases, unless a lease was lost: then nothing is changed.

        Raises StoreUnavailable: it is unknown what was noted, and repeating it is harmless.
        """


@dataclass(slots=True, eq=False)
class Holdings:
    """The leases of one connection, and its requests that wait for items."""

    consumer: str = ""
    keys: set[Key] = field(default_factory=set)
    is_ending: bool = False
    _waits: set[trio.CancelScope] = field(default_factory=set)

    def end_waits(self) -> None:
        """Stops leasing for this connection; its waiting requests are answered now."""
        self.is_ending = True
        for scope in self._waits:
            scope.cancel()

    @contextmanager
    def waiting(self, seconds: float) -> Iterator[None]:
        with trio.move_on_after(seconds) as scope:
            self._waits.add(scope)
            try:
                yield
            finally:
                self._waits.remove(scope)


@dataclass(slots=True, eq=False)
class _Held:
    leased: Leased
    ends_ms: int
    """On the steady clock."""
    holdings: Holdings | None
    """None: the lease outlives its connection."""
    consumer: str = ""
    began_ms: int = 0
    """In wall time."""
    lease_ms: int = 0
    """How long the lease was asked for."""


class Pull:
    def __init__(
        self,
        warm: WarmQueue,
        settling: Settling,
        catalogue: PullQueues,
        tallies: Tallies,
        now_ms: Clock = wall_ms,
        host: str = "",
    ) -> None:
        """`host`: this host's name, for the record of which consumer held an item."""
        self._host = host
        self._warm = warm
        self._settling = settling
        self._catalogue = catalogue
        self._now_ms = now_ms
        self._tallies = tallies
        self._steady_ms = lease_clock(now_ms, None)
        self._held: dict[Key, _Held] = {}
        self._recordings = Recordings()
        self._ends = LeaseEnds(self._end_of)
        # A consumer may bring a token to the restarted daemon, or to another daemon. The first
        # token is random and not taken from the clock: the clock may have been set back, and
        # daemons of a fleet may start at the same moment.
        self._tokens = count(randbits(TOKEN_BITS))
        self._sweep_at = 0.0

    @property
    def leases(self) -> int:
        """How many leases consumers hold."""
        return len(self._held)

    def tasks(self) -> Iterator[Task]:
        """What consumers hold, one task per lease."""
        for (queue, _), held in self._held.items():
            slices = (held.leased.slice,)
            yield Task(queue, held.consumer, slices, held.began_ms, held.lease_ms)

    def is_awaited(self, holdings: Holdings) -> bool:
        """Whether a report that counts may still come: a lease of this connection still runs."""
        now_ms = self._steady_ms()
        return any(self._held[key].ends_ms > now_ms for key in holdings.keys)

    async def run(self, stop: trio.Event) -> None:
        """Ends expired leases until `stop`, also of queues that no consumer asks for. When it
        returns, none of its steps is under way."""
        while not stop.is_set():
            with trio.move_on_after(LATE_S):
                await stop.wait()
            for queue in self._ends.queues:
                await self.end_late(queue)
            self._sweep()

    async def end_late(self, queue: str) -> None:
        """Settles a queue's expired leases as failed. Consumers that wait for items call it too."""
        late = self._ends.take_late(queue, self._steady_ms())
        held = {(queue, token): self._held[queue, token] for token in late}
        ended = {key: ran_out(one.leased, self._holder(queue, one)) for key, one in held.items()}
        if not ended:
            return
        try:
            recordings = await self._settle(queue, ended, GIVE_BACK_S)
        except StoreUnavailable:
            # Tried again until warm has put them back; warm logs that itself.
            return
        items = sum(one.leased.slice.items for one in recordings.values() if one.is_held)
        if items:
            log.warning("dispatch.leases_ran_out", queue=queue, items=items)

    async def lease(self, wish: LeaseWish, holdings: Holdings) -> list[LeasedRun]:
        """Leases the next items as soon as there are some; none if the wait ends before."""
        self._sweep()
        if wish.consumer:
            holdings.consumer = wish.consumer
        deadline = trio.current_time() + wish.wait_ms / 1000
        while not holdings.is_ending:
            await self.end_late(wish.queue)
            settings = self._catalogue.queue(wish.queue)
            if settings is None:
                raise unknown_queue(wish.queue)
            paused = self._catalogue.except_flows(wish.queue) if settings.is_active else None
            if paused is not None:
                lasts_s = lease_s(wish.lease_ms, settings)
                leased = await self._warm.lease(
                    wish.queue, wish.items, wish.bytes, lasts_s + MARGIN_S, paused
                )
                if leased:
                    return await self._send(wish, leased, holdings, round(lasts_s * 1000))
            seconds = deadline - trio.current_time()
            if seconds <= 0:
                break
            # A warm queue announces new items, but not that paused ones were resumed.
            if paused != frozenset():
                seconds = min(seconds, LOOK_S)
            with holdings.waiting(min(seconds, self._until_late_s(wish.queue))):
                if paused is None:
                    await trio.sleep_forever()
                else:
                    await self._warm.wait(wish.queue)
        return []

    async def settle(self, queue: str, reports: Sequence[LeaseReport]) -> list[bool]:
        """Settles what consumers report; True: the outcome is on disk, as far as the queue's
        `settle_durability` asks for that. An impossible report raises BadFrame, changing nothing.
        StoreUnavailable: the outcome is known later; the report may be repeated."""
        keys = [(queue, report.token) for report in reports]
        _check_each_once(keys)
        ended = {
            key: what_became(held.leased, report.parts, self._holder(queue, held))
            for key, report in zip(keys, reports, strict=True)
            if (held := self._held.get(key)) is not None
        }
        begun = {key: one for key in keys if (one := self._recordings.of(key)) is not None}
        recordings = begun | await self._settle(queue, ended, SETTLE_S)
        settled = await self._recordings.wait(recordings)
        return [settled.get(key, False) for key in keys]

    def _holder(self, queue: str, held: _Held) -> HeldBy:
        return holder(self._host, queue, held.consumer or NAMELESS, held.began_ms)

    async def extend(self, queue: str, tokens: Sequence[int], lease_ms: int) -> list[bool]:
        """Extends leases to last that long from now."""
        keys = [(queue, token) for token in tokens]
        _check_each_once(keys)
        settings = self._catalogue.queue(queue)
        if settings is None:
            raise unknown_queue(queue)
        seconds = lease_s(lease_ms, settings)
        known = {key: held.leased.token for key in keys if (held := self._held.get(key))}
        ends_ms = self._steady_ms() + round(seconds * 1000)
        answers = (
            await self._warm.extend(queue, list(known.values()), seconds + MARGIN_S)
            if known
            else []
        )
        extended = dict(zip(known, answers, strict=True))
        for key, is_extended in extended.items():
            held = self._held.get(key)
            if held is None:
                # It was ended, or is about to be, while warm was asked.
                extended[key] = False
            elif is_extended:
                held.ends_ms = ends_ms
                held.lease_ms = round(seconds * 1000)
                self._ends.note(*key, ends_ms)
            else:
                self._let_go(key)
        return [extended.get(key, False) for key in keys]

    def held(self, queue: str, token: int) -> Leased | None:
        """What was leased under a token; None: it is not held, or no longer. A lease whose outcome
        is being recorded counts."""
        held = self._held.get((queue, token)) or self._recordings.of((queue, token))
        return None if held is None else held.leased

    async def give_back(self, holdings: Holdings) -> None:
        """Releases the leases of a connection that has ended. Shielded, and bounded."""
        holdings.end_waits()
        for queue in sorted({queue for queue, _ in holdings.keys}):
            ended = {
                key: Ended(held.leased, 0, (), held.leased.slice.bits)
                for key in holdings.keys
                if key[0] == queue and (held := self._held.get(key)) is not None
            }
            items = sum(end.released.bit_count() for end in ended.values())
            try:
                await self._settle(queue, ended, GIVE_BACK_S)
            except StoreUnavailable as problem:
                log.warning(
                    "pull.left_to_run_out",
                    queue=queue,
                    items=items,
                    consumer=holdings.consumer,
                    error=str(problem),
                )
                for key in ended:
                    self._let_go(key)
            else:
                log.info("pull.given_back", queue=queue, items=items, consumer=holdings.consumer)

    async def _send(
        self, wish: LeaseWish, leased: list[Leased], holdings: Holdings, lease_ms: int
    ) -> list[LeasedRun]:
        """Records the holder of the leases and makes the answer."""
        leased = [Leased(one.token, one.slice, one.until_ms - MARGIN_MS) for one in leased]
        now_ms = self._now_ms()
        keys = [(wish.queue, next(self._tokens)) for _ in leased]
        for key, lease in zip(keys, leased, strict=True):
            ends_ms = self._steady_ms() + lease.until_ms - now_ms
            owner = None if wish.keep else holdings
            held = _Held(lease, ends_ms, owner, holdings.consumer, now_ms, lease_ms)
            self._take_back(key, held)
            self._ends.note(*key, ends_ms)
        shipment = await self._ship(leased)
        fit = len(shipment.runs)
        self._tallies.leased(wish.queue, leased[:fit], now_ms)
        rest = {
            key: Ended(lease, 0, (), lease.slice.bits)
            for key, lease in zip(keys[fit:], leased[fit:], strict=True)
            # A short lease may have expired while the shipment was made.
            if key in self._held
        }
        # Leases that cannot be given back expire.
        with suppress(StoreUnavailable):
            await self._settle(wish.queue, rest, GIVE_BACK_S)
        return [
            run._replace(token=token, due_ms=lease.slice.due_ms if wish.times else None)
            for run, (_, token), lease in zip(shipment.runs, keys, leased, strict=False)
        ]

    async def _ship(self, leased: list[Leased]) -> Shipment:
        if unpacks_bytes(leased) <= UNPACK_BYTES_MAX:
            return ship(leased)
        return await trio.to_thread.run_sync(ship, leased)

    async def _settle(
        self, queue: str, ended: dict[Key, Ended], seconds: float
    ) -> dict[Key, Recording]:
        """Tells the port. Meanwhile no other task can settle these leases."""
        if not ended:
            return {}
        taken = {key: self._let_go(key) for key in ended}
        settled: list[Recording] | None = None
        try:
            with trio.move_on_after(seconds, shield=True):
                settled = await self._settling.settle(queue, list(ended.values()))
        finally:
            if settled is None:
                again_ms = self._steady_ms() + round(LATE_S * 1000)
                for key, held in taken.items():
                    self._take_back(key, held)
                    # While it was not held, its end may have been skipped.
                    self._ends.note(*key, max(held.ends_ms, again_ms))
        if settled is None:
            raise StoreUnavailable(f"no report was noted within {seconds:g} s")
        recordings = dict(zip(ended, settled, strict=True))
        self._count(
            queue, {key: end for key, end in ended.items() if recordings[key].is_held}, taken
        )
        return recordings

    def _count(self, queue: str, ended: dict[Key, Ended], taken: dict[Key, _Held]) -> None:
        """Tallies how long consumers held the items they report on. Items given back do not count,
        nor those of expired leases: how long they were worked on is unknown."""
        now_ms = self._now_ms()
        for key, end in ended.items():
            items = end.delivered.bit_count()
            items += sum(bits.bit_count() for bits, why in end.failed if why is not RAN_OUT)
            if items:
                self._tallies.pulled(queue, items, (now_ms - taken[key].began_ms) / 1000)

    def _let_go(self, key: Key) -> _Held:
        held = self._held.pop(key)
        if held.holdings is not None:
            held.holdings.keys.discard(key)
        return held

    def _take_back(self, key: Key, held: _Held) -> None:
        self._held[key] = held
        if held.holdings is not None:
            held.holdings.keys.add(key)

    def _end_of(self, queue: str, token: int) -> int | None:
        held = self._held.get((queue, token))
        return None if held is None else held.ends_ms

    def _until_late_s(self, queue: str) -> float:
        """Seconds until a lease of the queue expires and its items become available."""
        ends_ms = self._ends.next_ms(queue)
        return math.inf if ends_ms is None else max(0, ends_ms - self._steady_ms()) / 1000

    def _sweep(self) -> None:
        """From time to time, forgets expired leases that were never settled."""
        self._ends.tidy(self._held, len(self._held))
        now = trio.current_time()
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_S
        self._recordings.sweep()
        before_ms = self._steady_ms() - GRACE_MS
        for key in [key for key, held in self._held.items() if held.ends_ms < before_ms]:
            self._let_go(key)


def ran_out(leased: Leased, had: HeldBy) -> Ended:
    """The outcome of a lease without any report in time: all items failed."""
    return Ended(leased, 0, (FailedPart(leased.slice.bits, RAN_OUT),), 0, holder=had)


def lease_s(lease_ms: int, settings: QueueSettings) -> float:
    """How long a lease lasts: as the consumer says, or the queue, or the default."""
    return lease_ms / 1000 or settings.lease_time or LEASE_S


def _check_each_once(keys: Sequence[Key]) -> None:
    if len(set(keys)) != len(keys):
        raise BadFrame("a lease is named twice")
