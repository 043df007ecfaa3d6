"""How fast and how many at once: token buckets per destination, and limits on sends.

A destination has two buckets, one for items and one for requests. Queues that send there share
them. A worker takes its turn at both before it leases: tokens for its items, and one for a request.
A sender that makes further requests for its batch reserves a token for each of them.

It owns the lines of waiting workers. They are served first come, first served. Nothing polls: the
first in line sleeps until its tokens are there, the others until they are first. A reservation
overtakes the line, because the batch it is for is leased already. A cancelled waiter has taken
nothing; tokens that were used are not given back, whether the send succeeds or not.

If daemons share their rates (`FleetRate`), tokens come from the fleet's bucket: one request per
turn, and none without a limit. While the fleet's bucket is unreachable, each daemon continues alone
at its share of the rate: the rate divided by the last known number of daemons. Its own bucket is
empty at first, because the fleet has just used the tokens. A daemon that has not reached the
fleet's bucket since its start knows no other daemon, and continues at the whole rate. The first in
line asks for the fleet's bucket every second until it answers.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, Protocol

import trio

from actors.model.rates import NO_LIMIT, Rate, RateUnit
from actors.ports.tiers import StoreUnavailable

LEAST_S: Final = 1.0
"""A turn waits for what the rate allows in this time, and takes more if there is more."""
CLOSE_S: Final = 1e-6
"""Tokens due within this time count as present: floating-point time may never reach the rest."""
ALONE_S: Final = 1.0
"""How long a daemon continues alone before it asks the fleet's bucket again."""


class Wish(NamedTuple):
    """A request for tokens. Daemons that share a bucket all say how big it is."""

    refill: float
    """How many tokens come per second."""
    burst: float
    """How many tokens the bucket holds."""
    least: int
    most: int
    """A negative number gives tokens back."""
    on_credit: bool = False
    """Takes the tokens at once, even if they come later."""


class Granted(NamedTuple):
    items: int
    """From `least` to `most`, or 0 if there are too few."""
    wait_s: float
    """If there are too few: seconds until there may be enough. On credit: until they come."""


class FleetRate(Protocol):
    """The buckets that daemons share. A bucket starts full."""

    @property
    def daemons(self) -> int:
        """The last known number of daemons, this one included."""

    async def run(self) -> None:
        """Counts the daemons from time to time; never returns."""

    async def take(self, bucket: str, wish: Wish) -> Granted:
        """Raises StoreUnavailable if the bucket is unreachable."""


class _Source(NamedTuple):
    """Tokens, and which bucket they came from."""

    granted: Granted
    is_fleet: bool


class TokenBucket:
    """The tokens of one destination, of one unit. Without a rate it awaits nothing, not
    even a checkpoint."""

    def __init__(self, name: str, fleet: FleetRate | None = None) -> None:
        """Without a rate at first. `name` is that of the fleet's bucket."""
        self._name = name
        self._rate = NO_LIMIT
        self._fleet = fleet
        self._alone_until = -math.inf
        self._is_led = False
        """Whether the fleet's bucket has answered the last time."""
        self._tokens = math.inf
        """Of this daemon's own bucket. More than fit: it is full."""
        self._seen_at = 0.0
        self._line = trio.StrictFIFOLock()
        self._changed = trio.Event()

    @property
    def rate(self) -> Rate:
        return self._rate

    @property
    def waiting(self) -> int:
        statistics = self._line.statistics()
        return statistics.tasks_waiting + statistics.locked

    async def take_turn(self, most: int, take: Callable[[int], Awaitable[int]]) -> None:
        """Calls `take` with how many may go, at most `most`; `take` returns how many did.

        For callers that do not know the number before: if they leased first, they would hold the
        lease while they wait in line, and the line may outlast the lease.
        """
        if not self._rate:
            await take(most)
            return
        async with self._line:
            granted, is_fleet = await self._wait_for(most)
            used = 0
            try:
                used = await take(granted.items)
            finally:
                await self._give_back(granted.items - used, is_fleet=is_fleet)

    async def reserve(self) -> None:
        """Takes one token, on credit if the bucket is empty, and returns when it is due."""
        if not self._rate:
            return
        granted, is_fleet = await self._ask(1, on_credit=True)
        owed = granted.wait_s * self._refill(is_fleet=is_fleet)
        is_due = False
        try:
            while self._rate and owed > 0 and not is_due:
                began, changed = trio.current_time(), self._changed
                refill = self._refill(is_fleet=is_fleet)
                with trio.move_on_after(owed / refill) as waiting:
                    await changed.wait()
                is_due = waiting.cancelled_caught
                owed -= (trio.current_time() - began) * refill
            is_due = True
        finally:
            if not is_due:
                await self._give_back(1, is_fleet=is_fleet)

    def change(self, rate: Rate) -> None:
        """Changes the rate from now on, also for waiting callers. A debt stays a debt; the bucket
        is full if there was no rate before."""
        if rate == self._rate:
            return
        if not self._rate:
            self._tokens = math.inf
        elif self._tokens != math.inf:
            # A full bucket needs no clock: queues join before trio runs.
            self._fill(self._wish(1, is_fleet=False))
        self._rate = rate
        self._changed.set()
        self._changed = trio.Event()

    async def _wait_for(self, most: int) -> _Source:
        """Waits for tokens and takes them."""
        while True:
            changed = self._changed
            granted, is_fleet = await self._ask(most)
            if granted.items:
                return _Source(granted, is_fleet)
            is_alone = self._fleet is not None and not is_fleet
            with trio.move_on_after(min(granted.wait_s, ALONE_S) if is_alone else granted.wait_s):
                await changed.wait()

    async def _ask(self, most: int, *, on_credit: bool = False) -> _Source:
        """Asks the fleet's bucket, or this daemon's own while the fleet cannot be reached."""
        fleet = self._fleet
        if fleet is not None and self._rate and trio.current_time() >= self._alone_until:
            try:
                wish = self._wish(most, is_fleet=True)._replace(on_credit=on_credit)
                granted = await fleet.take(self._name, wish)
            except StoreUnavailable:
                self._go_on_alone()
            else:
                self._is_led = True
                return _Source(granted, is_fleet=True)
        if not self._rate:
            return _Source(Granted(most, 0.0), is_fleet=False)
        wish = self._wish(most, is_fleet=False)._replace(on_credit=on_credit)
        return _Source(self._take(wish), is_fleet=False)

    def _parts(self, *, is_fleet: bool) -> int:
        """How many parts of the rate there are: this daemon's own bucket has one of them."""
        return 1 if is_fleet or self._fleet is None else self._fleet.daemons

    def _refill(self, *, is_fleet: bool) -> float:
        return self._rate.refill / self._parts(is_fleet=is_fleet)

    def _wish(self, most: int, *, is_fleet: bool) -> Wish:
        refill = self._refill(is_fleet=is_fleet)
        burst = max(1.0, self._rate.at_once / self._parts(is_fleet=is_fleet))
        least = max(1, int(min(most, refill * LEAST_S, burst)))
        return Wish(refill, burst, least, most)

    async def _give_back(self, items: int, *, is_fleet: bool) -> None:
        """Returns tokens; if the fleet cannot be reached they are lost, and all slow down."""
        if items <= 0 or not self._rate:
            return
        if not is_fleet:
            self._tokens += items
        elif self._fleet is not None:
            wish = Wish(self._rate.refill, self._rate.at_once, -items, -items, on_credit=True)
            with suppress(StoreUnavailable), trio.CancelScope(shield=True):
                await self._fleet.take(self._name, wish)

    # This daemon's own bucket.

    def _go_on_alone(self) -> None:
        now = trio.current_time()
        self._alone_until = now + ALONE_S
        if self._is_led:
            self._is_led = False
            self._tokens, self._seen_at = min(self._tokens, 0.0), now

    def _fill(self, wish: Wish) -> None:
        now = trio.current_time()
        filled = self._tokens + (now - self._seen_at) * wish.refill
        self._tokens, self._seen_at = min(wish.burst, filled), now

    def _take(self, wish: Wish) -> Granted:
        self._fill(wish)
        present = self._tokens + wish.refill * CLOSE_S
        if present < wish.least and not wish.on_credit:
            return Granted(0, (wish.least - self._tokens) / wish.refill)
        items = max(wish.least, min(wish.most, math.floor(present)))
        self._tokens -= items
        return Granted(items, max(0.0, -self._tokens) / wish.refill)


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


class DestinationRate:
    """The buckets of one destination."""

    def __init__(self, items: TokenBucket, requests: TokenBucket) -> None:
        self.items = items
        self.requests = requests

    @property
    def is_limited(self) -> bool:
        return bool(self.items.rate) or bool(self.requests.rate)

    async def take_turn(self, items_max: int, take: Callable[[int], Awaitable[int]]) -> None:
        """Calls `take` with how many items may go now, in one request; `take` returns how many
        did."""

        async def take_items(allowed: int) -> int:
            items = 0

            async def take_request(_: int) -> int:
                nonlocal items
                items = await take(allowed)
                return min(items, 1)

            await self.requests.take_turn(1, take_request)
            return items

        await self.items.take_turn(items_max, take_items)


@dataclass(frozen=True, slots=True)
class _Share:
    """The destination and the rate that one queue asks for."""

    destination: str
    rate: Rate


class Destinations:
    """The buckets of all destinations, shared by the queues that send there.

    The smallest of the queues' rates applies to all of them, of each unit by itself: by the mean
    rate, and by the burst among equals.
    """

    def __init__(self, fleet: FleetRate | None = None) -> None:
        """`fleet`: the buckets shared with other daemons."""
        self._fleet = fleet
        self._shares: dict[str, _Share] = {}
        self._rates: dict[str, DestinationRate] = {}

    @property
    def rates(self) -> Mapping[str, DestinationRate]:
        return self._rates

    def join(self, queue: str, destination: str, rate: Rate) -> DestinationRate:
        """The buckets of a queue's destination; call it again on reload, with the new values."""
        before = self._shares.get(queue)
        self._shares[queue] = _Share(destination, rate)
        if before is not None and before.destination != destination:
            self._reckon(before.destination)
        self._reckon(destination)
        return self._rates[destination]

    def leave(self, queue: str) -> None:
        """Removes the queue and its rate."""
        share = self._shares.pop(queue, None)
        if share is not None:
            self._reckon(share.destination)

    def _reckon(self, destination: str) -> None:
        rates = [each.rate for each in self._shares.values() if each.destination == destination]
        if not rates:
            # Workers still waiting at these buckets continue at their rates.
            del self._rates[destination]
            return
        if destination not in self._rates:
            self._rates[destination] = DestinationRate(
                TokenBucket(f"items {destination}", self._fleet),
                TokenBucket(f"requests {destination}", self._fleet),
            )
        self._rates[destination].items.change(smallest(rates, "items"))
        self._rates[destination].requests.change(smallest(rates, "requests"))


def smallest(rates: Iterable[Rate], unit: RateUnit) -> Rate:
    """The smallest limit of this unit; none if no rate is of this unit."""
    limits = [rate for rate in rates if rate and rate.unit == unit]
    return min(limits, key=lambda rate: (rate.per_s, rate.at_once), default=NO_LIMIT)
