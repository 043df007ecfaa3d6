"""Finished items in the history: rows of items that ended together, and which are kept.

An item is finished when it is delivered, or when its dead letter is removed. The unit is the row:
items of one run with the same outcome at the same time and the same errors before. A row is a
record for people. It owns nothing, and nothing depends on it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from actors.model.slices import HeldBy, ItemError
from forebay.run import RunHead

Keep = Literal["none", "failures", "all"]
"""A queue's `history`."""

Keeps = Callable[[str], Keep]
"""What is kept of a queue at this moment. May be called in any thread."""


@dataclass(frozen=True, slots=True, eq=False)
class FinishedRow:
    head: RunHead
    data: bytes
    bits: int
    attempt: int
    """Attempts made, including the last one."""
    outcome: Literal["delivered", "deleted"]
    finished_ms: int
    errors: tuple[ItemError, ...] = ()
    holder: HeldBy | None = None
    """Which worker or consumer had the items when they were delivered; None if unknown."""
    result: str = ""
    """The result text reported by the worker or consumer."""
    job: str = ""
    """The job that had claimed them."""


class Past(NamedTuple):
    """A part of a queue's history."""

    rows: list[FinishedRow]
    cursor: str | None
    """Where older ones begin; None: there are none."""


def by_result(delivered: int, results: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Delivered items grouped by result text; no item twice."""
    for bits, text in results:
        if bits & delivered:
            yield bits & delivered, text
            delivered &= ~bits
    if delivered:
        yield delivered, ""


def keep_nothing(queue: str) -> Keep:
    return "none"


def keeps_delivered(keep: Keep, has_failed: bool) -> bool:
    """Whether delivered items are kept; `has_failed`: they had failed before."""
    return keep == "all" or (keep == "failures" and has_failed)
