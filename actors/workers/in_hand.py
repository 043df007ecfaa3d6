"""The batches that workers and consumers hold at this moment, for display.

A worker group takes a place for each batch that it sends and leaves it when the send has ended,
with any outcome. Places are numbered from 1 to the number of busy senders, so a number stands
roughly for one sender. Plain data of one group.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from actors.model.slices import Slice
from actors.ports.tiers import Leased


class Task(NamedTuple):
    """A batch that a worker or consumer works on."""

    queue: str
    worker: str
    """A number within the group, or a consumer's name."""
    slices: tuple[Slice, ...]
    began_ms: int
    lease_ms: int
    """The duration of its lease."""

    @property
    def items(self) -> int:
        return sum(slice_.items for slice_ in self.slices)


@dataclass(frozen=True, slots=True)
class _Held:
    leased: Sequence[Leased]
    began_ms: int


class InHand:
    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, leased: Sequence[Leased], now_ms: int) -> int:
        """Takes a place for a batch; the caller must `leave` it."""
        place = len(self._held) + 1
        while place in self._held:
            place -= 1
        self._held[place] = _Held(leased, now_ms)
        return place

    def leave(self, place: int) -> None:
        del self._held[place]

    def tasks(self, queue: str, lease_s: float) -> Iterator[Task]:
        for place, held in self._held.items():
            slices = tuple(lease.slice for lease in held.leased)
            yield Task(queue, str(place), slices, held.began_ms, round(lease_s * 1000))
