"""One warm queue of this process: what is due, what is not due yet, what is leased, and how much.

Plain data and two events for those who wait: something has come that a lease may find, and the
queue has become emptier. The counts change with the slices, in the same step, and say exactly
what is here.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

import trio

from actors.model.clock import retry_due_ms
from actors.model.slices import InCold, Slice, SortKey
from actors.ports.tiers import Fill, Whereabouts
from actors.tiers.warm_flows import WarmFlows
from actors.tiers.warm_order import DueSlices

SLEEP_MAX_S: Final = 1.0
"""How long a waiter trusts its clock: when the host's time is set, it notices that late."""


@dataclass(slots=True)
class Lease:
    slice: Slice
    ends_ms: int
    """On the clock of leases."""


class WarmSlices:
    def __init__(self) -> None:
        self.items = 0
        self.bytes = 0
        self.cold_items = 0
        self.leased_items = 0
        self.scheduled_items = 0
        self.leases: dict[int, Lease] = {}
        self.due = DueSlices()
        self.flows = WarmFlows()
        self.has_news = False
        """Something has come since a lease found nothing."""
        self.came = 0
        """How often something came that is due."""
        self._later: list[tuple[int, SortKey, int, Slice]] = []
        self._arrivals = count()
        self._news: trio.Event | None = None
        self._fallen: trio.Event | None = None

    def count(self, slice_: Slice, sign: int) -> None:
        """Counts a slice that has come (1) or gone (-1)."""
        run = slice_.run
        items = sign * slice_.items
        self.items += items
        self.bytes += items * run.item_bytes
        if isinstance(run.owner, InCold):
            self.cold_items += items
            self.flows.borrows(slice_, sign)
        assert self.items >= 0 <= self.bytes
        assert self.items or not self.bytes

    def place(self, slice_: Slice, now_ms: int) -> None:
        """Puts a slice that is counted, and not leased, where it belongs."""
        self.flows.waits(slice_, 1)
        if slice_.due_ms > now_ms:
            slice_ = _bounded(slice_, now_ms)
        if slice_.due_ms <= now_ms:
            self._place_due(slice_)
            return
        scheduled = (slice_.due_ms, slice_.sort_key, next(self._arrivals), slice_)
        heappush(self._later, scheduled)
        self.scheduled_items += slice_.items
        if self._later[0] is scheduled:
            # Those who wait sleep until the one that was the next to come due.
            self._wake()

    def put_off_anew(self, now_ms: int) -> None:
        """The wall clock was set back: retries wait for their pause, and no longer."""
        later, self._later = self._later, []
        self.scheduled_items = 0
        for *_, slice_ in later:
            self.flows.waits(slice_, -1)
            self.place(slice_, now_ms)

    def bring_due(self, now_ms: int) -> None:
        """Moves what has come due. To be called before anything is taken or said."""
        later = self._later
        while later and later[0][0] <= now_ms:
            slice_ = heappop(later)[3]
            self.scheduled_items -= slice_.items
            self._place_due(slice_)

    def lease(self, token: int, slice_: Slice, ends_ms: int) -> None:
        """Of a slice that was taken from those that wait."""
        self.flows.waits(slice_, -1)
        self.leases[token] = Lease(slice_, ends_ms)
        self.leased_items += slice_.items

    def end_lease(self, token: int) -> Slice | None:
        """The slice, which is still counted and is nowhere now. None: there is no such lease."""
        lease = self.leases.pop(token, None)
        if lease is None:
            return None
        self.leased_items -= lease.slice.items
        return lease.slice

    def take_matching(self, matches: Callable[[Slice], bool]) -> list[Slice]:
        """Takes out all that match and are not leased, in order; they are still counted."""
        taken = self.due.take_matching(matches)
        scheduled = [entry[3] for entry in self._later if matches(entry[3])]
        if scheduled:
            self._later = [entry for entry in self._later if not matches(entry[3])]
            heapify(self._later)
            self.scheduled_items -= sum(slice_.items for slice_ in scheduled)
        for slice_ in (*taken, *scheduled):
            self.flows.waits(slice_, -1)
        return sorted(taken + scheduled, key=lambda slice_: slice_.sort_key)

    def locate(self, run_ids: frozenset[bytes], now_ms: int) -> dict[bytes, Whereabouts]:
        """What is here of these runs."""
        self.bring_due(now_ms)
        found: dict[bytes, Whereabouts] = {}

        def note(slice_: Slice, **bits: int) -> None:
            run_id = slice_.run.head.run_id
            if run_id in run_ids:
                here = found.get(run_id, Whereabouts())._asdict()
                found[run_id] = Whereabouts(**{n: b | bits.get(n, 0) for n, b in here.items()})

        for slice_ in self.due:
            note(slice_, waiting=slice_.bits)
        for *_, slice_ in self._later:
            note(slice_, scheduled=slice_.bits)
        for lease in self.leases.values():
            note(lease.slice, leased=lease.slice.bits)
        return found

    def fill(self, now_ms: int) -> Fill:
        self.bring_due(now_ms)
        return Fill(
            self.items, self.bytes, self.scheduled_items, self.leased_items, self.cold_items
        )

    async def sleep(self, now_ms: int) -> None:
        """Until something comes, or what is scheduled may have come due; or too early."""
        if self._news is None:
            self._news = trio.Event()
        sleep_s = math.inf
        if self._later:
            sleep_s = min((self._later[0][0] - now_ms) / 1000, SLEEP_MAX_S)
        with trio.move_on_after(sleep_s):
            await self._news.wait()

    async def until_fallen(self) -> None:
        if self._fallen is None:
            self._fallen = trio.Event()
        await self._fallen.wait()

    def tell_fallen(self) -> None:
        if self._fallen is not None:
            self._fallen.set()
            self._fallen = None

    def _place_due(self, slice_: Slice) -> None:
        self.due.push(slice_)
        self.has_news = True
        self.came += 1
        self._wake()

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None


def _bounded(slice_: Slice, now_ms: int) -> Slice:
    if not slice_.errors:
        return slice_
    due_ms = retry_due_ms(slice_.due_ms, slice_.errors[-1].at_ms, now_ms)
    return slice_ if due_ms == slice_.due_ms else replace(slice_, due_ms=due_ms)


def check_again(leased: Slice, again: Iterable[Slice]) -> None:
    """Only what was leased can be put back, and only once."""
    left = leased.bits
    for slice_ in again:
        if slice_.run.head.run_id != leased.run.head.run_id:
            raise ValueError("a slice of another run is put back")
        if not slice_.bits or slice_.bits & ~left:
            raise ValueError("items are put back that were not leased, or twice, or none")
        left &= ~slice_.bits
