"""The lines of every queue in /metrics, kept from one scrape to the next.

Most queues look as they did a second ago. What a queue showed is remembered beside the lines that
were made of it, and these are made again only where it shows something else: to look whether 500
queues have changed takes 0.5 ms, to make the 9,000 lines of all of them 9 ms.

Owned by whoever renders, one at a time. A queue that is gone is forgotten with its lines.
"""

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from daemon.http.prometheus.exposition import Family, Page

T = TypeVar("T")


class _Made(NamedTuple):
    of: object
    """What they show."""
    lines: tuple[str, ...]
    """By family, in the order of the part's; empty where a queue has none of one."""


class QueueLines(Generic[T]):
    """One part of what is shown of a queue: some families, of which each queue has lines."""

    def __init__(self, make: Callable[[Page, str, T], None]) -> None:
        """`make` adds the lines of one queue, given its labels. It names the same families in the
        same order whatever there is to show."""
        self._make = make
        self._known: dict[str, _Made] = {}
        self._families: dict[str, Family] = {}
        """Without lines: their names, kinds and texts."""

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
