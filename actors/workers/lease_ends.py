"""When leases end, per queue: which have expired, and when the next one will. Plain data.

It owns only the order. The holder knows whether a lease is still held, and until when: a settled or
extended lease leaves its old entry behind, which is skipped when it comes up and cleared when such
entries outnumber the leases. So a lease costs one entry, and a query almost nothing.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final

SPARE: Final = 1024
"""How many entries beyond twice the number of leases may be listed before the lists are rebuilt."""

EndOf = Callable[[str, int], int | None]
"""Queue and token: when that lease ends now; None: it is not held."""


class LeaseEnds:
    __slots__ = ("_end_of", "_entries", "_queues")

    def __init__(self, end_of: EndOf) -> None:
        self._end_of = end_of
        self._queues: dict[str, list[tuple[int, int]]] = {}
        """Per queue a heap of (end, token); no heap is empty."""
        self._entries = 0

    def __len__(self) -> int:
        """The number of entries, including outdated ones."""
        return self._entries

    @property
    def queues(self) -> list[str]:
        return list(self._queues)

    def note(self, queue: str, token: int, ends_ms: int) -> None:
        """Adds a lease that was taken or extended, or that must be checked again at that time."""
        heappush(self._queues.setdefault(queue, []), (ends_ms, token))
        self._entries += 1

    def take_late(self, queue: str, now_ms: int) -> list[int]:
        """The expired leases of a queue; each is returned once."""
        late: dict[int, None] = {}
        while (heap := self._queues.get(queue)) and heap[0][0] <= now_ms:
            token = self._pop(queue, heap)
            ends_ms = self._end_of(queue, token)
            if ends_ms is not None and ends_ms <= now_ms:
                late[token] = None
        return list(late)

    def next_ms(self, queue: str) -> int | None:
        """When the next lease of a queue may expire."""
        while heap := self._queues.get(queue):
            if self._end_of(queue, heap[0][1]) is not None:
                return heap[0][0]
            self._pop(queue, heap)
        return None

    def tidy(self, held: Iterable[tuple[str, int]], leases: int) -> None:
        """Rebuilds the lists from `held` if too many entries are outdated."""
        if self._entries <= 2 * leases + SPARE:
            return
        self._queues, self._entries = {}, 0
        for queue, token in held:
            ends_ms = self._end_of(queue, token)
            if ends_ms is not None:
                self._queues.setdefault(queue, []).append((ends_ms, token))
                self._entries += 1
        for heap in self._queues.values():
            heapify(heap)

    def _pop(self, queue: str, heap: list[tuple[int, int]]) -> int:
        _, token = heappop(heap)
        self._entries -= 1
        if not heap:
            del self._queues[queue]
        return token
