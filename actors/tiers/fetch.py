"""Fetch: leases items of a queue from the cold store at the moment they are asked for.

For queues with unique keys, and for queues that daemons share without a shared warm queue. Nothing
of such a queue is acquired ahead, so a row that is locked is truly leased: an operator, a newer
item of the same key, or another daemon finds every other item free.

Demand is added up. While one fetch is under way, workers and consumers that ask for items join the
next one, which acquires for all of them in one step (`acquire` with `cuts`) and shares the rows
out. A fetch that finds nothing answers all that had joined it. After that `wait` returns when the
queue is woken (an item came, came back, or another daemon says so) or when its next item comes due.

It owns the leases that it has given out, by token; the rows and their locks belong to the cold
store, where a lease that is neither ended nor extended runs out. While the cold store is away
nothing is leased. On cancel a lease that was not received expires.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import trio

from actors.model.clock import Clock, lease_clock
from actors.model.slices import InCold, LentRun, Slice
from actors.ports.tiers import (
    ColdQueue,
    ColdRow,
    Ending,
    Fill,
    Leased,
    NewRow,
    RowOutcome,
    StoreUnavailable,
    WarmFlow,
    Whereabouts,
)
from forebay.ids import new_run_id

TOKENS_FROM: Final = 1 << 55
"""Tokens of MemoryWarm are far below, those of a shared warm queue above."""
AWAY_S: Final = 1.0
"""How often an unreachable cold store is asked again."""
BYTES_MIN: Final = 4 * 1024 * 1024
"""Rows on whole bodies of at least this size may be fetched, however small the items wanted."""

_tokens = count(TOKENS_FROM)


def slice_of(row: ColdRow, lock: bytes) -> Slice:
    run = LentRun(row.head, row.data, InCold(row.row, lock))
    return Slice(run, row.bits, row.attempt, row.due_ms, row.errors)


def unlocked(slice_: Slice) -> RowOutcome:
    """An acquired part of a row, as a row without a lock."""
    run, owner = slice_.run, slice_.run.owner
    assert isinstance(owner, InCold)
    row = NewRow(
        new_run_id(), run.head, run.data, slice_.bits, slice_.attempt, slice_.due_ms, slice_.errors
    )
    return RowOutcome(owner.row, owner.lock, 0, (row,), slice_.bits)


@dataclass(slots=True, eq=False)
class _Demand:
    """What one worker or consumer asks for."""

    items_max: int
    bytes_max: int
    lease_s: float
    except_flows: frozenset[str]
    found: list[Slice] | None = None
    """None: not answered yet."""
    ends_ms: int = 0
    """When the lease of what was found ends, on the clock of leases."""
    until_ms: int = 0
    """The same on the wall clock."""

    def items_wanted(self, item_bytes: int) -> int:
        return max(1, min(self.items_max, self.bytes_max // item_bytes))

    def is_like(self, other: "_Demand") -> bool:
        return (self.lease_s, self.except_flows) == (other.lease_s, other.except_flows)


@dataclass(slots=True, eq=False)
class _FetchedQueue:
    turn: trio.Lock = field(default_factory=trio.Lock)
    demands: list[_Demand] = field(default_factory=list)
    told: trio.Event = field(default_factory=trio.Event)
    wakes: int = 0
    found_nothing_at: int = -1
    """The value of `wakes` when the last fetch began that found nothing; -1: it found something."""
    next_due_ms: int | None = None
    item_bytes: int = 1
    """Bytes per item of the last rows, by which a demand in bytes is translated into items."""
    waiting: int = 0
    """Items that wait for workers, as far as the last fetch shows: 0, or as many as it found."""
    leases: dict[int, "_FetchedLease"] = field(default_factory=dict)
    items: int = 0
    bytes: int = 0
    """Of all leases."""

    def take(self, token: int, lease: "_FetchedLease") -> None:
        self.leases[token] = lease
        self.items += lease.slice.items
        self.bytes += lease.slice.bytes

    def let_go(self, token: int) -> "_FetchedLease | None":
        lease = self.leases.pop(token, None)
        if lease is not None:
            self.items -= lease.slice.items
            self.bytes -= lease.slice.bytes
        return lease

    def fill(self) -> Fill:
        return Fill(self.items, self.bytes, 0, self.items, self.items)


@dataclass(slots=True, eq=False)
class _FetchedLease:
    slice: Slice
    ends_ms: int
    """On the clock of leases."""


class Fetch:
    def __init__(self, cold: ColdQueue, now_ms: Clock) -> None:
        self._cold = cold
        self._now_ms = now_ms
        self._lease_ms = lease_clock(now_ms, None)
        self._queues: dict[str, _FetchedQueue] = {}

    def is_used(self, queue: str) -> bool:
        """Whether anything of the queue was ever asked for here."""
        return queue in self._queues

    def has(self, queue: str, token: int) -> bool:
        """Whether a lease was taken here and has not ended."""
        state = self._queues.get(queue)
        return state is not None and token in state.leases

    def wake(self, queue: str) -> None:
        """The cold store may have something due."""
        state = self._queues.get(queue)
        if state is not None:
            state.wakes += 1
            state.told.set()
            state.told = trio.Event()

    async def lease(
        self,
        queue: str,
        items_max: int,
        bytes_max: int,
        lease_s: float,
        except_flows: frozenset[str],
    ) -> list[Leased]:
        state = self._queue(queue)
        demand = _Demand(items_max, bytes_max, lease_s, except_flows)
        state.demands.append(demand)
        try:
            async with state.turn:
                if demand.found is None:
                    await self._fetch(queue, state, demand)
        finally:
            if demand in state.demands:
                state.demands.remove(demand)
        leased: list[Leased] = []
        for slice_ in demand.found or ():
            token = next(_tokens)
            state.take(token, _FetchedLease(slice_, demand.ends_ms))
            leased.append(Leased(token, slice_, demand.until_ms))
        return leased

    async def _fetch(self, queue: str, state: _FetchedQueue, first: _Demand) -> None:
        """Acquires for this demand and for those like it that have joined meanwhile."""
        demands = [demand for demand in state.demands if demand.is_like(first)]
        wakes, lock, lease_ms = state.wakes, new_run_id(), round(first.lease_s * 1000)
        # Taken before the step: here a lease never lasts longer than in the store.
        ends_ms, until_ms = self._lease_ms() + lease_ms, self._now_ms() + lease_ms
        items = sum(demand.items_wanted(state.item_bytes) for demand in demands)
        size = max(BYTES_MIN, sum(demand.bytes_max for demand in demands))
        try:
            rows = await self._cold.acquire(
                queue, lock, items, size, first.lease_s, first.except_flows, cuts=True
            )
            if rows:
                state.found_nothing_at = -1
            else:
                outlook = await self._cold.outlook(queue, first.except_flows)
                state.found_nothing_at = -1 if outlook.has_due else wakes
                state.next_due_ms = outlook.next_due_ms
        except StoreUnavailable:
            rows = []
            state.found_nothing_at = wakes
            state.next_due_ms = self._now_ms() + round(AWAY_S * 1000)
        slices = [slice_of(row, lock) for row in rows]
        fetched = sum(slice_.items for slice_ in slices)
        state.waiting = fetched if fetched >= items else 0
        if slices:
            state.item_bytes = max(slice_.run.item_bytes for slice_ in slices)
        for demand in demands:
            demand.found, slices = share(slices, demand.items_max, demand.bytes_max)
            demand.ends_ms, demand.until_ms = ends_ms, until_ms
            state.demands.remove(demand)
        if slices:
            # Their items are larger than those before, so more were acquired than the demands take.
            await self._give_back(queue, slices)

    async def wait(self, queue: str) -> None:
        state = self._queue(queue)
        await trio.lowlevel.checkpoint()
        while state.found_nothing_at == state.wakes:
            told, due_ms = state.told, state.next_due_ms
            pause_s = float("inf")
            if due_ms is not None:
                pause_s = max(0.0, (due_ms - self._now_ms()) / 1000)
            with trio.move_on_after(pause_s) as scope:
                await told.wait()
            if scope.cancelled_caught:
                return

    async def end(self, queue: str, endings: Sequence[Ending]) -> list[bool]:
        """Items in `again` were not tried: they are free again at once."""
        state = self._queue(queue)
        ended = [state.let_go(ending.token) for ending in endings]
        again = [
            slice_
            for ending, lease in zip(endings, ended, strict=True)
            if lease is not None
            for slice_ in ending.again
        ]
        if again:
            await self._give_back(queue, again)
        return [lease is not None for lease in ended]

    async def _give_back(self, queue: str, slices: Sequence[Slice]) -> None:
        # What the cold store does not take back now is free when its lease ends.
        with suppress(StoreUnavailable):
            await self._cold.settle([unlocked(slice_) for slice_ in slices])
        self.wake(queue)

    async def extend(self, queue: str, tokens: Sequence[int], lease_s: float) -> list[bool]:
        leases = [self._queue(queue).leases.get(token) for token in tokens]
        locks = list({lock_of(lease.slice) for lease in leases if lease is not None})
        ends_ms = self._lease_ms() + round(lease_s * 1000)
        try:
            counts = dict(zip(locks, await self._cold.renew(locks, lease_s), strict=True))
        except StoreUnavailable:
            # No other daemon gets them before the store is back.
            return [lease is not None for lease in leases]
        for lease in leases:
            if lease is not None:
                lease.ends_ms = ends_ms
        return [lease is not None and counts[lock_of(lease.slice)] > 0 for lease in leases]

    async def expire(self) -> dict[str, int]:
        """Forgets leases that have ended; the cold store lends their items again by itself."""
        now_ms = self._lease_ms()
        expired: dict[str, int] = {}
        for queue, state in self._queues.items():
            late = [token for token, lease in state.leases.items() if lease.ends_ms <= now_ms]
            before = state.items
            for token in late:
                state.let_go(token)
            if late:
                expired[queue] = before - state.items
                self.wake(queue)
        return expired

    def locate(self, queue: str, run_ids: Collection[bytes]) -> dict[bytes, Whereabouts]:
        found: dict[bytes, Whereabouts] = {}
        for lease in self._queue(queue).leases.values():
            run_id = lease.slice.run.head.run_id
            if run_id in run_ids:
                leased = found.get(run_id, Whereabouts()).leased | lease.slice.bits
                found[run_id] = Whereabouts(leased=leased)
        return found

    def waiting(self, queue: str) -> int:
        """About how many items wait for workers: at least these, if not 0."""
        state = self._queues.get(queue)
        return 0 if state is None else state.waiting

    def fill(self, queue: str) -> Fill:
        state = self._queues.get(queue)
        return Fill() if state is None else state.fill()

    def fills(self) -> dict[str, Fill]:
        return {queue: state.fill() for queue, state in self._queues.items() if state.leases}

    def flows(self) -> list[WarmFlow]:
        items: dict[tuple[str, str, str], int] = {}
        for queue, state in self._queues.items():
            for lease in state.leases.values():
                head = lease.slice.run.head
                flow = (queue, head.flow, head.action)
                items[flow] = items.get(flow, 0) + lease.slice.items
        return [WarmFlow(*flow, 0, leased, None) for flow, leased in items.items()]

    def _queue(self, queue: str) -> _FetchedQueue:
        state = self._queues.get(queue)
        if state is None:
            state = self._queues[queue] = _FetchedQueue()
        return state


def share(
    slices: Sequence[Slice], items_max: int, bytes_max: int
) -> tuple[list[Slice], list[Slice]]:
    """The first slices within both limits, at least one item; and the rest."""
    taken: list[Slice] = []
    for order, slice_ in enumerate(slices):
        room = min(items_max, bytes_max // slice_.run.item_bytes)
        if room < 1:
            if taken:
                return taken, list(slices[order:])
            room = 1
        part, rest = slice_.split(room)
        taken.append(part)
        items_max -= part.items
        bytes_max -= part.bytes
        if rest is not None:
            return taken, [rest, *slices[order + 1 :]]
    return taken, []


def lock_of(slice_: Slice) -> bytes:
    owner = slice_.run.owner
    assert isinstance(owner, InCold)
    return owner.lock
