"""Keeps the /metrics lines of every queue from one scrape to the next.

Most queues have not changed since the last scrape. Each queue's figures are kept with its lines,
and the lines are made again only if the figures differ. Comparing 500 queues takes 0.5 ms; making
all their 9,000 lines takes 9 ms.

Used by one scrape at a time. The lines of a queue that is gone are forgotten.
"""

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from daemon.http.prometheus.exposition import Family, Page

T = TypeVar("T")


class _Made(NamedTuple):
    of: object
    """The figures that the lines were made from."""
    lines: tuple[str, ...]
    """One entry per family, in the part's order; empty if the queue has no lines of it."""


class QueueLines(Generic[T]):
    """The lines of all queues for one group of families."""

    def __init__(self, make: Callable[[Page, str, T], None]) -> None:
        """`make` adds the lines of one queue, given its labels. It must name the same families in
        the same order for every queue."""
        self._make = make
        self._known: dict[str, _Made] = {}
        self._families: dict[str, Family] = {}
        """Used for names, kinds and help texts only, not for their lines."""

    def add_to(self, page: Page, queues: Mapping[str, T], labels: Mapping[str, str]) -> None:
        known: dict[str, _Made] = {}
        for queue, value in queues.items():
            made = self._known.get(queue)
            if made is None or made.of != value:
                made = self._made(labels[queue], value)
            known[queue] = made
        self._known = known
        together = zip(*(made.lines for made in known.values()), strict=True)
        for (name, family), lines in zip(self._families.items(), together, strict=False):
            page.family(name, family.kind, family.help).lines.extend(filter(None, lines))

    def _made(self, labels: str, value: T) -> _Made:
        part = Page()
        self._make(part, labels, value)
        self._families = part.families
        return _Made(value, tuple("".join(family.lines) for family in part.families.values()))
