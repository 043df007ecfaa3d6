"""The books: how many items of every queue came in, and their outcomes.

    accepted + moved_in = delivered + dead + dropped + deleted + lost + held + moved_out

holds at every moment and across restarts, because `held` is not counted but follows from the
others, and because each of the others is either in the fsynced base or derived from live blocks and
marks. The base takes over a chunk's totals when the chunk is freed; by then the chunk holds
nothing, so the equation holds for the base alone as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, assert_never

from actors.model.runs import Fate


@dataclass(slots=True)
class Totals:
    """The counts of one queue, of one queue in one chunk, or of a whole daemon; in items."""

    accepted: int = 0
    delivered: int = 0
    dead: int = 0
    dropped: int = 0
    deleted: int = 0
    lost: int = 0
    """Destroyed by damage on disk."""
    duplicate: int = 0
    """Items of runs that were stored before. Outside the equation."""
    moved_in: int = 0
    moved_out: int = 0
    handed_over: int = 0
    """Only in the journal's books: items that the cold store owns now."""

    @property
    def finished(self) -> int:
        gone = self.delivered + self.dead + self.dropped + self.deleted + self.lost
        return gone + self.moved_out + self.handed_over

    @property
    def held(self) -> int:
        return self.accepted + self.moved_in - self.finished

    def add(self, other: "Totals") -> None:
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in COUNTS}


COUNTS = tuple(field.name for field in fields(Totals))

Books = dict[str, Totals]
"""Totals by queue."""


def merge(into: Books, other: Mapping[str, Totals]) -> None:
    for queue, totals in other.items():
        into.setdefault(queue, Totals()).add(totals)


def total(books: Mapping[str, Totals]) -> Totals:
    result = Totals()
    for totals in books.values():
        result.add(totals)
    return result


def count_fate(totals: Totals, fate: Fate, items: int) -> None:
    match fate:
        case Fate.DELIVERED:
            totals.delivered += items
        case Fate.DROPPED:
            totals.dropped += items
        case Fate.HANDED_OVER:
            totals.handed_over += items
        case Fate.DELETED:
            totals.deleted += items
        case Fate.MOVED:
            totals.moved_out += items
        case Fate.LOST:
            totals.lost += items
        case Fate.RETRY:
            pass
        case _:
            assert_never(fate)


def parse_books(content: Mapping[str, Any]) -> Books:
    """Reads books from JSON; raises ValueError if they are not valid."""
    books: Books = {}
    for queue, counts in content.items():
        if not isinstance(counts, dict):
            raise ValueError(f"the totals of {queue!r} are not an object")
        numbers = {name: counts.get(name, 0) for name in COUNTS}
        if not all(isinstance(number, int) and number >= 0 for number in numbers.values()):
            raise ValueError(f"the totals of {queue!r} are not counts")
        books[queue] = Totals(**numbers)
    return books
