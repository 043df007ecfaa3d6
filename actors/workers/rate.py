"""How fast and how many at once: a token bucket per destination, and limits on sends.

It owns the lines of waiting workers. They are served first come, first served, even if a smaller
batch behind could go now. Nothing polls: the first in line sleeps until its tokens are there, the
others until they are first. A cancelled waiter leaves the line and has taken nothing; tokens that
were taken are not given back, whether the send succeeds or not.

Without a limit, or if tokens are available and the line is empty, `take` awaits nothing. That is
not a checkpoint; the send that follows is one.

If daemons share their rates (`FleetRate`), tokens come from the fleet's bucket instead of the
clock: one request per batch, and none without a limit; unused tokens are given back. While the
fleet's bucket is unreachable, each daemon continues alone, at the whole rate.
"""

import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple, Protocol

import trio

from actors.ports.tiers import StoreUnavailable

BURST_S: Final = 1.0
"""How many seconds' worth of the rate may be saved up, unless a batch is bigger."""
CLOSE_S: Final = 1e-6
"""Tokens due within this time count as present: floating-point time may never reach the rest."""


ALONE_S: Final = 1.0
"""How long a daemon continues alone before it asks the fleet's bucket again."""


class Granted(NamedTuple):
    items: float
    """All tokens that were wanted, or 0."""
    wait_s: float
    """Seconds until there may be enough."""


class FleetRate(Protocol):
    async def take(self, destination: str, rate: float, burst: float, want: float) -> Granted:
        """Takes tokens from the bucket of all daemons; a negative number gives some back. The
        bucket starts full, and a batch bigger than the burst leaves a debt, as in `TokenBucket`.
        Raises StoreUnavailable if the bucket is unreachable."""


Share = Callable[[float, float, float], Awaitable[Granted]]
"""The fleet's bucket of one destination: rate, burst, number of tokens."""


class TokenBucket:
    """Lets `rate` items per second through, and at most `burst` at once after a pause; 0: no limit.

    A batch bigger than the burst goes when the bucket is full and leaves a debt that the next batch
    waits for: the mean rate holds for batches of any size.
    """

    def __init__(self, rate: float, burst: float = 0.0, share: Share | None = None) -> None:
        """`burst` 0: one second's worth, at least one item. The bucket starts full."""
        self._share = share
        self._alone_until = -math.inf
        self._rate = rate
        self._burst = _burst(rate, burst)
        self._tokens = self._burst
        self._seen_at = -math.inf
        self._line = trio.StrictFIFOLock()
        self._changed = trio.Event()

    @property
    def rate(self) -> float:
        return self._rate

    @property
    def burst(self) -> float:
        return self._burst

    @property
    def waiting(self) -> int:
        statistics = self._line.statistics()
        return statistics.tasks_waiting + statistics.locked

    async def take(self, items: int) -> None:
        """Returns when this many items may go; their tokens are then taken."""
        if not self._rate:
            return
        if self._share is None and not self._line.locked() and self._try(items):
            return
        async with self._line:
            if not await self._granted(items):
                await self._until_has(items)
                self._tokens -= items

    async def take_turn(self, items_max: int, take: Callable[[], Awaitable[int]]) -> None:
        """Calls `take` when `items_max` items may go; `take` returns how many did.

        For callers that do not know the number before: if they leased first, they would hold the
        lease while they wait in line, and the line may outlast the lease.
        """
        if not self._rate:
            await take()
            return
        async with self._line:
            if not await self._granted(items_max):
                await self._until_has(items_max)
                self._tokens -= await take()
                return
            items = 0
            try:
                items = await take()
            finally:
                await self._give_back(items_max - items)

    def change(self, rate: float, burst: float = 0.0) -> None:
        """Changes the rate from now on, also for waiting callers. A debt stays a debt."""
        # Before the first take there may be no clock yet: queues join before trio runs.
        is_full = not self._rate or self._seen_at == -math.inf
        if not is_full:
            self._fill()
        self._rate = rate
        self._burst = _burst(rate, burst)
        self._tokens = self._burst if is_full else min(self._tokens, self._burst)
        self._changed.set()
        self._changed = trio.Event()

    async def _until_has(self, items: int) -> None:
        while not self._has(items):
            with trio.move_on_at(self._ready_at(items)):
                await self._changed.wait()

    async def _granted(self, items: int) -> bool:
        """Waits for tokens of the fleet and takes them. False: there is no reachable fleet, or the
        limit was removed meanwhile, so this bucket decides."""
        while self._share is not None and self._rate:
            if trio.current_time() < self._alone_until:
                return False
            try:
                granted = await self._share(self._rate, self._burst, items)
            except StoreUnavailable:
                self._alone_until = trio.current_time() + ALONE_S
                return False
            if granted.items:
                return True
            with trio.move_on_after(granted.wait_s):
                await self._changed.wait()
        return False

    async def _give_back(self, items: int) -> None:
        """Returns tokens to the fleet; if that fails they are lost, and all daemons slow down."""
        if items > 0 and self._share is not None and self._rate:
            with suppress(StoreUnavailable), trio.CancelScope(shield=True):
                await self._share(self._rate, self._burst, -items)

    def _try(self, items: int) -> bool:
        if not self._has(items):
            return False
        self._tokens -= items
        return True

    def _has(self, items: int) -> bool:
        if not self._rate:
            return True
        self._fill()
        return min(items, self._burst) - self._tokens <= self._rate * CLOSE_S

    def _ready_at(self, items: int) -> float:
        return self._seen_at + (min(items, self._burst) - self._tokens) / self._rate

    def _fill(self) -> None:
        now = trio.current_time()
        self._tokens = min(self._burst, self._tokens + (now - self._seen_at) * self._rate)
        self._seen_at = now


class SendLimit:
    """At most `limit` tasks are inside `async with`, first come, first served; 0: no limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside = 0
        self._lot = trio.lowlevel.ParkingLot()

    @property
    def inside(self) -> int:
        return self._inside

    @property
    def waiting(self) -> int:
        return len(self._lot)

    def change(self, limit: int) -> None:
        """Changes the limit. Tasks that are inside stay."""
        self._limit = limit
        self._let_in()

    async def __aenter__(self) -> None:
        # If there is room, no task waits: a task that leaves lets in all that now fit.
        if self._has_room():
            self._inside += 1
        else:
            # The task that lets this one in counts it, before it wakes up.
            await self._lot.park()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inside -= 1
        self._let_in()

    def _has_room(self) -> bool:
        return not self._limit or self._inside < self._limit

    def _let_in(self) -> None:
        while self._lot and self._has_room():
            self._inside += 1
            self._lot.unpark()


@dataclass(frozen=True, slots=True)
class _Share:
    """The destination and the rate that one queue asks for."""

    destination: str
    rate: float


class Destinations:
    """The buckets, one per destination, shared by the queues that send there.

    The smallest of the queues' rates applies (0 means none); the burst is one second's worth.
    """

    def __init__(self, fleet: FleetRate | None = None) -> None:
        """`fleet`: the bucket shared with other daemons."""
        self._fleet = fleet
        self._shares: dict[str, _Share] = {}
        self._buckets: dict[str, TokenBucket] = {}

    @property
    def buckets(self) -> Mapping[str, TokenBucket]:
        return self._buckets

    def join(self, queue: str, destination: str, rate: float) -> TokenBucket:
        """The bucket of a queue's destination; call it again on reload, with the new values."""
        before = self._shares.get(queue)
        self._shares[queue] = _Share(destination, rate)
        if before is not None and before.destination != destination:
            self._reckon(before.destination)
        self._reckon(destination)
        return self._buckets[destination]

    def leave(self, queue: str) -> None:
        """Removes the queue and its rate."""
        share = self._shares.pop(queue, None)
        if share is not None:
            self._reckon(share.destination)

    def _reckon(self, destination: str) -> None:
        shares = [share for share in self._shares.values() if share.destination == destination]
        if not shares:
            # Workers still waiting at that bucket continue at its rate.
            del self._buckets[destination]
            return
        rate = min((share.rate for share in shares if share.rate), default=0.0)
        # Workers send at most this much at once, however big their batches may be.
        burst = max(rate * BURST_S, 1.0)
        bucket = self._buckets.get(destination)
        if bucket is None:
            fleet = self._fleet
            share = None if fleet is None else partial(fleet.take, destination)
            self._buckets[destination] = TokenBucket(rate, burst, share)
        elif (bucket.rate, bucket.burst) != (rate, burst):
            bucket.change(rate, burst)


def _burst(rate: float, burst: float) -> float:
    return burst or max(rate * BURST_S, 1.0)
