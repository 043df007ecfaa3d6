"""Finished items, as history has them: rows of items that ended together, and which are kept.

An item is finished when it is delivered, or when its dead letter is removed. The unit is the row:
items of one run that met the same end at the same time, with the same errors behind them. A row
here is a record for people. It owns nothing, and no promise hangs on it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from actors.model.slices import HeldBy, ItemError
from forebay.run import RunHead

Keep = Literal["none", "failures", "all"]
"""A queue's `history`."""

Keeps = Callable[[str], Keep]
"""What is kept of a queue, at this moment. May be called in any thread."""


@dataclass(frozen=True, slots=True, eq=False)
class FinishedRow:
    head: RunHead
    data: bytes
    bits: int
    attempt: int
    """Attempts that were made, the last one included."""
    outcome: Literal["delivered", "deleted"]
    finished_ms: int
    errors: tuple[ItemError, ...] = ()
    holder: HeldBy | None = None
    """Who had the items when they were delivered; None: nobody, or it is not known."""
    result: str = ""
    """What whoever had them said of it."""
    job: str = ""
    """The job that had claimed them."""


class Past(NamedTuple):
    """Some of a queue's history."""

    rows: list[FinishedRow]
    cursor: str | None
    """Where older ones begin; None: there are none."""


def by_result(delivered: int, results: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Items that were delivered, those of which the same was said together; none of them twice."""
    for bits, text in results:
        if bits & delivered:
            yield bits & delivered, text
            delivered &= ~bits
    if delivered:
        yield delivered, ""


def keep_nothing(queue: str) -> Keep:
    return "none"


def keeps_delivered(keep: Keep, has_failed: bool) -> bool:
    """Whether items that were delivered are kept; `has_failed`: before that."""
    return keep == "all" or (keep == "failures" and has_failed)
