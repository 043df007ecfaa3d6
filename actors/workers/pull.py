"""Pull: lends items to consumers that take them themselves, and hears what became of them.

Owns what is lent that way: every lease that a consumer has and has not settled, by queue and
token. The leases of a connection are its `Holdings`: when it ends they are given back, unless
they were taken to be kept. Called by the tasks of connections, one a request, and beside them by
`run`; what it owns is touched between awaits only.

Durable when: nothing here is. What became of items is told to the `Settling` port, and an answer
is given when that has taken note and ended the leases. It is on disk within a second after
that, dead letters and late retries once they have their new owner; a crash before that delivers
again. A report under a token that is not held is refused and changes nothing; the warm queue has
the last word. Tokens are this life's own: one of an earlier life fits no lease.

A lease that runs out is an attempt that failed, and is settled as one (`end_late`): so whoever
looks sees that the items come again, and why. In warm it lasts `MARGIN_S` longer, so that it is
ended here; what this daemon does not live to say, or cannot, warm puts back as it was.

Cancelled while it waits for items, it holds nothing. Cancelled right after a lease, it lets it run
out. A report that has begun is carried through, within a deadline.

What it can't do: notice at once that a paused queue was resumed (it looks every 250 ms), and
remember leases across a restart.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from secrets import randbits
from typing import Final, Protocol

import structlog
import trio

from actors.config.queue import QueueSettings
from actors.model.clock import lease_clock, wall_ms
from actors.model.outcomes import Failure
from actors.model.refusals import unknown_queue
from actors.model.slices import HeldBy, holder
from actors.observers.tallies import Tallies
from actors.ports.tiers import Leased, StoreUnavailable, WarmQueue
from actors.workers.consumer_reports import Ended, FailedPart, what_became
from actors.workers.in_hand import Task
from actors.workers.lease_ends import LeaseEnds
from actors.workers.shipment import Shipment, ship, unpacks_bytes
from forebay.errors import BadFrame
from forebay.lease_frames import LeasedRun, LeaseReport, LeaseWish

LEASE_S: Final = 60.0
"""Where neither the consumer nor the queue says how long."""
LOOK_S: Final = 0.25
"""How often a paused queue is looked at for a consumer that waits."""
LATE_S: Final = 1.0
"""How often it looks for leases that ran out, and how soon it tries again to say so."""
MARGIN_S: Final = 5.0
MARGIN_MS: Final = round(MARGIN_S * 1000)
RAN_OUT: Final = Failure("the lease ran out", blames_destination=False, has_waited=True)
SETTLE_S: Final = 30.0
GIVE_BACK_S: Final = 5.0
SWEEP_S: Final = 10.0
GRACE_MS: Final = 60_000
"""So long after its end a lease is remembered: until it is put back, nobody else has it."""
NAMELESS: Final = "consumer"
TOKEN_BITS: Final = 62
"""Of the first token: so no life of a daemon comes to the end of them."""
UNPACK_BYTES_MAX: Final = 128 * 1024
"""To unpack more than that is a thread's work: 128 KiB take about 0.1 ms."""

log = structlog.get_logger(__name__)


class Settling(Protocol):
    async def settle(self, queue: str, ended: Sequence[Ended]) -> list[bool]:
        """Takes note of outcomes and ends the leases. False: the lease was lost, nothing changed.

        Raises StoreUnavailable: it is unknown what was noted, and repeating it is harmless.
        """


Key = tuple[str, int]
"""Queue and token."""


@dataclass(slots=True, eq=False)
class Holdings:
    """What one connection has leased, and its requests that wait for items."""

    consumer: str = ""
    keys: set[Key] = field(default_factory=set)
    is_ending: bool = False
    _waits: set[trio.CancelScope] = field(default_factory=set)

    def end_waits(self) -> None:
        """Nothing is leased any more; what waits is answered now."""
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


class Pull:
    def __init__(
        self,
        warm: WarmQueue,
        settling: Settling,
        queue_settings: Callable[[str], QueueSettings | None],
        paused: Callable[[str], frozenset[str] | None],
        now_ms: Callable[[], int] = wall_ms,
        tallies: Tallies | None = None,
        host: str = "",
    ) -> None:
        """`paused` gives the flows of a queue that are paused; None: all of it is. `host`: this
        one's name, for the record of who had what."""
        self._host = host
        self._warm = warm
        self._settling = settling
        self._queue_settings = queue_settings
        self._paused = paused
        self._now_ms = now_ms
        self._tallies = tallies if tallies is not None else Tallies()
        self._steady_ms = lease_clock(now_ms, None)
        self._held: dict[Key, _Held] = {}
        self._ends = LeaseEnds(self._end_of)
        # Whoever kept the token of a lease may come with it in the daemon's next life, or to
        # another daemon. Where to count from is left to chance, and not to the clock: that may
        # have been set back, and daemons of a fleet are started at the same moment.
        self._tokens = count(randbits(TOKEN_BITS))
        self._sweep_at = 0.0

    @property
    def leases(self) -> int:
        """How many leases consumers have."""
        return len(self._held)

    def tasks(self) -> Iterator[Task]:
        """What consumers have in hand, a lease each."""
        for (queue, _), held in self._held.items():
            leased = held.leased
            lease_ms = leased.until_ms - held.began_ms
            yield Task(queue, held.consumer, (leased.slice,), held.began_ms, lease_ms)

    def is_awaited(self, holdings: Holdings) -> bool:
        """Whether a report may come that would count: a lease of this connection still runs."""
        now_ms = self._steady_ms()
        return any(self._held[key].ends_ms > now_ms for key in holdings.keys)

    async def run(self, stop: trio.Event) -> None:
        """Ends leases that run out, also of queues that nobody asks for items of, until `stop`.
        When it has returned, nothing that it began is under way."""
        while not stop.is_set():
            with trio.move_on_after(LATE_S):
                await stop.wait()
            for queue in self._ends.queues:
                await self.end_late(queue)
            self._sweep()

    async def end_late(self, queue: str) -> None:
        """Leases of a queue that ran out have failed. Who waits for items does this as well."""
        late = self._ends.take_late(queue, self._steady_ms())
        held = {(queue, token): self._held[queue, token] for token in late}
        ended = {key: ran_out(one.leased, self._holder(queue, one)) for key, one in held.items()}
        if not ended:
            return
        try:
            settled = await self._settle(queue, ended, GIVE_BACK_S)
        except StoreUnavailable:
            # Tried again until warm has put them back, which it says where it does.
            return
        items = sum(end.leased.slice.items for key, end in ended.items() if settled[key])
        if items:
            log.warning("dispatch.leases_ran_out", queue=queue, items=items)

    async def lease(self, wish: LeaseWish, holdings: Holdings) -> list[LeasedRun]:
        """The next items, once there are some; none if the wait is over before."""
        self._sweep()
        if wish.consumer:
            holdings.consumer = wish.consumer
        deadline = trio.current_time() + wish.wait_ms / 1000
        while not holdings.is_ending:
            await self.end_late(wish.queue)
            settings = self._queue_settings(wish.queue)
            if settings is None:
                raise unknown_queue(wish.queue)
            paused = self._paused(wish.queue) if settings.is_active else None
            if paused is not None:
                lasts_s = lease_s(wish.lease_ms, settings) + MARGIN_S
                leased = await self._warm.lease(wish.queue, wish.items, wish.bytes, lasts_s, paused)
                if leased:
                    return await self._send(wish, leased, holdings)
            seconds = deadline - trio.current_time()
            if seconds <= 0:
                break
            # A warm queue says when there is something new, not when something old is resumed.
            if paused != frozenset():
                seconds = min(seconds, LOOK_S)
            with holdings.waiting(min(seconds, self._until_late_s(wish.queue))):
                if paused is None:
                    await trio.sleep_forever()
                else:
                    await self._warm.wait(wish.queue)
        return []

    async def settle(self, queue: str, reports: Sequence[LeaseReport]) -> list[bool]:
        """What became of leased items. BadFrame if that cannot be, and then nothing is done."""
        keys = [(queue, report.token) for report in reports]
        _check_each_once(keys)
        ended = {
            key: what_became(held.leased, report.parts, self._holder(queue, held))
            for key, report in zip(keys, reports, strict=True)
            if (held := self._held.get(key)) is not None
        }
        settled = await self._settle(queue, ended, SETTLE_S)
        return [settled.get(key, False) for key in keys]

    def _holder(self, queue: str, held: _Held) -> HeldBy:
        return holder(self._host, queue, held.consumer or NAMELESS, held.began_ms)

    async def extend(self, queue: str, tokens: Sequence[int], lease_ms: int) -> list[bool]:
        """Leases last that long from now."""
        keys = [(queue, token) for token in tokens]
        _check_each_once(keys)
        settings = self._queue_settings(queue)
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
                self._ends.note(*key, ends_ms)
            else:
                self._let_go(key)
        return [extended.get(key, False) for key in keys]

    def held(self, queue: str, token: int) -> Leased | None:
        """What was leased under a token; None: it is not held, or not any more."""
        held = self._held.get((queue, token))
        return None if held is None else held.leased

    async def give_back(self, holdings: Holdings) -> None:
        """The connection has ended: others may have what it leased. Shielded, and bounded."""
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
        self, wish: LeaseWish, leased: list[Leased], holdings: Holdings
    ) -> list[LeasedRun]:
        """Notes who has the leases, and makes what is sent of them."""
        leased = [Leased(one.token, one.slice, one.until_ms - MARGIN_MS) for one in leased]
        now_ms = self._now_ms()
        keys = [(wish.queue, next(self._tokens)) for _ in leased]
        for key, lease in zip(keys, leased, strict=True):
            ends_ms = self._steady_ms() + lease.until_ms - now_ms
            owner = None if wish.keep else holdings
            self._take_back(key, _Held(lease, ends_ms, owner, holdings.consumer, now_ms))
            self._ends.note(*key, ends_ms)
        shipment = await self._ship(leased)
        fit = len(shipment.runs)
        self._tallies.leased(wish.queue, leased[:fit], now_ms)
        rest = {
            key: Ended(lease, 0, (), lease.slice.bits)
            for key, lease in zip(keys[fit:], leased[fit:], strict=True)
            # A short lease may have run out while the shipment was made.
            if key in self._held
        }
        # What cannot be given back runs out.
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

    async def _settle(self, queue: str, ended: dict[Key, Ended], seconds: float) -> dict[Key, bool]:
        """Tells the port. While it is told, nobody else can settle these leases."""
        if not ended:
            return {}
        taken = {key: self._let_go(key) for key in ended}
        settled: list[bool] | None = None
        try:
            with trio.move_on_after(seconds, shield=True):
                settled = await self._settling.settle(queue, list(ended.values()))
        finally:
            if settled is None:
                again_ms = self._steady_ms() + round(LATE_S * 1000)
                for key, held in taken.items():
                    self._take_back(key, held)
                    # While it was not held, its end may have been passed over.
                    self._ends.note(*key, max(held.ends_ms, again_ms))
        if settled is None:
            raise StoreUnavailable(f"no report was taken note of within {seconds:g} s")
        answers = dict(zip(ended, settled, strict=True))
        self._count(queue, {key: end for key, end in ended.items() if answers[key]}, taken)
        return answers

    def _count(self, queue: str, ended: dict[Key, Ended], taken: dict[Key, _Held]) -> None:
        """How long consumers had what they report on. What they give back they did not work on, and
        of a lease that ran out nobody knows for how long anybody did."""
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
        """Until a lease of the queue runs out, and its items may be had."""
        ends_ms = self._ends.next_ms(queue)
        return math.inf if ends_ms is None else max(0, ends_ms - self._steady_ms()) / 1000

    def _sweep(self) -> None:
        """Forgets leases that ran out and were never settled, once in a while."""
        self._ends.tidy(self._held, len(self._held))
        now = trio.current_time()
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_S
        before_ms = self._steady_ms() - GRACE_MS
        for key in [key for key, held in self._held.items() if held.ends_ms < before_ms]:
            self._let_go(key)


def ran_out(leased: Leased, had: HeldBy) -> Ended:
    """Nothing was said about any of the items in time."""
    return Ended(leased, 0, (FailedPart(leased.slice.bits, RAN_OUT),), 0, holder=had)


def lease_s(lease_ms: int, settings: QueueSettings) -> float:
    """How long a lease lasts: as the consumer says, or the queue, or by default."""
    return lease_ms / 1000 or settings.lease_time or LEASE_S


def _check_each_once(keys: Sequence[Key]) -> None:
    if len(set(keys)) != len(keys):
        raise BadFrame("a lease is named twice")
