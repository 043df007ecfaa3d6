"""Counts what a warm queue of this process holds per flow and action, slice by slice.

A slice costs a few additions, whatever its length, and the first slice of a run one push onto a
heap. The oldest run is looked up on demand, skipping runs that are gone; those are cleared when
they outnumber the waiting runs. An empty flow is forgotten, because users choose flow names and may
use many. Plain data of one queue.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from actors.model.slices import Slice
from actors.ports.tiers import WarmFlow

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
