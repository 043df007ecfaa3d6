"""One warm queue of this process: due, scheduled and leased slices, and their counts.

Plain data with two events: something has come that a lease may find, and the fill has fallen. The
counts change in the same step as the slices and are always exact.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Final

import trio

from actors.model.clock import retry_due_ms
from actors.model.slices import InCold, Slice, SortKey
from actors.ports.tiers import Fill, WarmFlow, Whereabouts

# Due slices in delivery order: one heap per flow, so that an excluded flow costs almost nothing.
#
# A heap of heads above them holds the first slice of each flow. A head is pushed whenever another
# slice becomes the first of its flow; outdated heads are skipped when they come up, and cleared
# when they outnumber the flows. So a slice costs the same with one flow and with thousands, and an
# excluded flow costs its head once per `take`.

HEADS_SPARE: Final = 16
"""How many heads beyond twice the number of flows may be listed before the list is rebuilt."""

_Ranked = tuple[SortKey, int, Slice]


class DueSlices:
    """Plain data of one queue. Slices with equal sort keys come out in the order they came in."""

    __slots__ = ("_arrivals", "_flows", "_heads")

    def __init__(self) -> None:
        self._arrivals = count()
        self._flows: dict[str, list[_Ranked]] = {}
        """No heap here is empty."""
        self._heads: list[tuple[SortKey, str]] = []

    def __iter__(self) -> Iterator[Slice]:
        """All slices, in no particular order."""
        return (slice_ for heap in self._flows.values() for _, _, slice_ in heap)

    def push(self, slice_: Slice) -> None:
        key = slice_.sort_key
        ranked = (key, next(self._arrivals), slice_)
        flow = slice_.run.head.flow
        heap = self._flows.get(flow)
        if heap is None:
            self._flows[flow] = [ranked]
        else:
            heappush(heap, ranked)
            if heap[0] is not ranked:
                return
        heappush(self._heads, (key, flow))
        if len(self._heads) > 2 * len(self._flows) + HEADS_SPARE:
            self._list_heads()

    def take(self, items_max: int, bytes_max: int, except_flows: frozenset[str]) -> list[Slice]:
        """Takes out the first slices within both limits, but at least one item if there is one.

        A slice that is too long is cut, and its rest stays. No slice is skipped for its length:
        that would change the order.
        """
        heads = self._heads
        flows = self._flows
        taken: list[Slice] = []
        left_out: list[tuple[SortKey, str]] = []
        while heads:
            key, flow = heads[0]
            heap = flows.get(flow)
            if heap is None or heap[0][0] != key:
                heappop(heads)
                continue
            if flow in except_flows:
                left_out.append(heappop(heads))
                continue
            slice_ = heap[0][2]
            item_bytes = slice_.run.item_bytes
            room = min(items_max, bytes_max // item_bytes)
            if room < 1:
                if taken:
                    break
                room = 1
            items = slice_.items
            if items > room:
                part, rest = slice_.split(room)
                assert rest is not None
                taken.append(part)
                heapreplace(heap, (rest.sort_key, next(self._arrivals), rest))
                heapreplace(heads, (heap[0][0], flow))
                break
            taken.append(slice_)
            items_max -= items
            bytes_max -= items * item_bytes
            heappop(heap)
            if heap:
                heapreplace(heads, (heap[0][0], flow))
            else:
                heappop(heads)
                del flows[flow]
        for head in left_out:
            heappush(heads, head)
        return taken

    def take_matching(self, matches: Callable[[Slice], bool]) -> list[Slice]:
        """Takes out all matching slices, in no particular order. Looks at every slice."""
        taken: list[Slice] = []
        for flow, heap in list(self._flows.items()):
            kept = [ranked for ranked in heap if not matches(ranked[2])]
            if len(kept) == len(heap):
                continue
            taken.extend(ranked[2] for ranked in heap if matches(ranked[2]))
            heapify(kept)
            if kept:
                self._flows[flow] = kept
            else:
                del self._flows[flow]
        if taken:
            self._list_heads()
        return taken

    def _list_heads(self) -> None:
        self._heads = [(heap[0][0], flow) for flow, heap in self._flows.items()]
        heapify(self._heads)


SPARE: Final = 16
"""How many entries beyond twice the number of runs may be listed before the list is rebuilt."""


class _Flow:
    __slots__ = ("_enqueued", "_runs", "from_cold", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.from_cold = 0
        self._runs: dict[tuple[int, bytes], int] = {}
        """Waiting items per run, by enqueue time and run id."""
        self._enqueued: list[tuple[int, bytes]] = []
        """A heap of these runs, and of some that are gone."""

    def wait(self, slice_: Slice, items: int) -> None:
        head = slice_.run.head
        run = (head.enqueued_ms, head.run_id)
        self.waiting += items
        before = self._runs.get(run)
        if before is None:
            self._runs[run] = items
            heappush(self._enqueued, run)
        elif before + items:
            self._runs[run] = before + items
        else:
            del self._runs[run]
            if len(self._enqueued) > 2 * len(self._runs) + SPARE:
                self._enqueued = list(self._runs)
                heapify(self._enqueued)

    def oldest_ms(self) -> int | None:
        while self._enqueued and self._enqueued[0] not in self._runs:
            heappop(self._enqueued)
        return self._enqueued[0][0] if self._enqueued else None


class WarmFlows:
    """Counts what a warm queue of this process holds per flow and action, slice by slice.

    A slice costs a few additions, whatever its length, and the first slice of a run one push onto a
    heap. The oldest run is looked up on demand, skipping runs that are gone; those are cleared when
    they outnumber the waiting runs. An empty flow is forgotten, because users choose flow names and
    may use many. Plain data of one queue.
    """

    def __init__(self) -> None:
        self._flows: dict[tuple[str, str], _Flow] = {}

    def waits(self, slice_: Slice, sign: int) -> None:
        """A slice starts (1) or stops (-1) waiting."""
        key, flow = self._flow(slice_)
        flow.wait(slice_, sign * slice_.items)
        self._forget_empty(key, flow)

    def borrows(self, slice_: Slice, sign: int) -> None:
        """A slice owned by the cold store has come (1) or gone (-1), leased or not."""
        key, flow = self._flow(slice_)
        flow.from_cold += sign * slice_.items
        self._forget_empty(key, flow)

    def counts(self, queue: str) -> Iterator[WarmFlow]:
        for (name, action), flow in self._flows.items():
            yield WarmFlow(queue, name, action, flow.waiting, flow.from_cold, flow.oldest_ms())

    def _flow(self, slice_: Slice) -> tuple[tuple[str, str], _Flow]:
        head = slice_.run.head
        key = (head.flow, head.action)
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = _Flow()
        return key, flow

    def _forget_empty(self, key: tuple[str, str], flow: _Flow) -> None:
        if not flow.waiting and not flow.from_cold:
            del self._flows[key]


SLEEP_MAX_S: Final = 1.0
"""How long a waiter sleeps at most, and so how late it notices that the host's time was set."""


@dataclass(slots=True)
class WarmLease:
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
        self.leases: dict[int, WarmLease] = {}
        self.due = DueSlices()
        self.flows = WarmFlows()
        self.has_news = False
        """Something has come due or entered since a lease found nothing."""
        self.came = 0
        """How many times a due slice came."""
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
        """Puts a slice that is counted and not leased among the due or the scheduled ones."""
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
            # Waiters sleep until the slice that was next to come due before this one.
            self._wake()

    def put_off_anew(self, now_ms: int) -> None:
        """After the wall clock was set back: no retry waits longer than its pause."""
        later, self._later = self._later, []
        self.scheduled_items = 0
        for *_, slice_ in later:
            self.flows.waits(slice_, -1)
            self.place(slice_, now_ms)

    def bring_due(self, now_ms: int) -> None:
        """Moves slices that have come due. Call it before slices are taken or counts are read."""
        later = self._later
        while later and later[0][0] <= now_ms:
            slice_ = heappop(later)[3]
            self.scheduled_items -= slice_.items
            self._place_due(slice_)

    def lease(self, token: int, slice_: Slice, ends_ms: int) -> None:
        """Leases a slice that was taken from the waiting ones."""
        self.flows.waits(slice_, -1)
        self.leases[token] = WarmLease(slice_, ends_ms)
        self.leased_items += slice_.items

    def end_lease(self, token: int) -> Slice | None:
        """Ends a lease and returns its slice, still counted but in no list. None: no such lease."""
        lease = self.leases.pop(token, None)
        if lease is None:
            return None
        self.leased_items -= lease.slice.items
        return lease.slice

    def take_matching(self, matches: Callable[[Slice], bool]) -> list[Slice]:
        """Takes out all matching slices that are not leased, in order; they are still counted."""
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
        """Where the items of these runs are in this queue."""
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
        """Sleeps until something comes or comes due; may return early."""
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
    """Checks that only leased items are put back, and each only once."""
    left = leased.bits
    for slice_ in again:
        if slice_.run.head.run_id != leased.run.head.run_id:
            raise ValueError("a slice of another run is put back")
        if not slice_.bits or slice_.bits & ~left:
            raise ValueError("items are put back that were not leased, or twice, or none")
        left &= ~slice_.bits
