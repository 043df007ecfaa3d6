"""Due slices in delivery order: one heap per flow, so that an excluded flow costs almost nothing.

A heap of heads above them holds the first slice of each flow. A head is pushed whenever another
slice becomes the first of its flow; outdated heads are skipped when they come up, and cleared when
they outnumber the flows. So a slice costs the same with one flow and with thousands, and an
excluded flow costs its head once per `take`.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Final

from actors.model.slices import Slice, SortKey

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
