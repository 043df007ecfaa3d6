"""Portions: what the owner of a run knows about items that have failed and will be retried.

A run's items begin together: attempt 0, no error. Items that fail together form a portion, with
their attempts, their errors and the time of the next attempt. Marks record the same on disk, so the
portions survive a restart unchanged. Plain data.

A destination may word each refusal differently, so that a run has as many portions as items:
nothing here may take time per item in proportion to the number of portions.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from actors.model.clock import retry_due_ms
from actors.model.slices import (
    HeldBy,
    ItemError,
    LentRun,
    Slice,
    indexes,
    item_bits,
    lowest_bit,
    remember,
)
from forebay.item import FailureReason


class Portion(NamedTuple):
    bits: int
    attempt: int
    due_ms: int
    errors: tuple[ItemError, ...]


class RetryNote(NamedTuple):
    """Items failed for the `attempt`th time and are retried at `due_ms`."""

    attempt: int
    due_ms: int
    at_ms: int
    text: str
    failure_reason: FailureReason = "application"
    holder: HeldBy | None = None
    """Not on disk: after a restart it is unknown which worker had them."""


Portions = tuple[Portion, ...]


class Failures:
    """The portions of one run, while it is lent."""

    __slots__ = ("_by_item",)

    def __init__(self, portions: Iterable[Portion] = ()) -> None:
        self._by_item: dict[int, Portion] = {}
        for portion in portions:
            self._put(portion)

    def _put(self, portion: Portion) -> None:
        for index in indexes(portion.bits):
            self._by_item[index] = portion

    def note(self, bits: int, note: RetryNote) -> None:
        """These items have failed once more; each keeps its history."""
        said = (note.attempt, note.at_ms, note.text, note.failure_reason)
        error = ItemError(*said, *(note.holder or ()))
        before: dict[int, tuple[Portion | None, int]] = {}
        for index in indexes(bits):
            portion = self._by_item.get(index)
            _, hit = before.get(id(portion), (None, 0))
            before[id(portion)] = (portion, hit | 1 << index)
        for portion, hit in before.values():
            history = remember(() if portion is None else portion.errors, error)
            self._put(Portion(hit, note.attempt, note.due_ms, history))

    def drop(self, bits: int) -> None:
        """These items are settled."""
        if self._by_item:
            for index in indexes(bits):
                self._by_item.pop(index, None)

    def portions(self) -> Portions:
        found: dict[int, tuple[Portion, int]] = {}
        for index, portion in self._by_item.items():
            _, bits = found.get(id(portion), (portion, 0))
            found[id(portion)] = (portion, bits | 1 << index)
        return _in_order(portion._replace(bits=bits) for portion, bits in found.values())


def retried(portions: Portions, bits: int, note: RetryNote) -> Portions:
    """The portions after these items have failed once more."""
    failures = Failures(portions)
    failures.note(bits, note)
    return failures.portions()


def without(portions: Portions, bits: int) -> Portions:
    """The portions after these items are settled."""
    left = (portion._replace(bits=portion.bits & ~bits) for portion in portions)
    return _in_order(portion for portion in left if portion.bits)


def bounded(portions: Portions, now_ms: int) -> Portions:
    """Shortens due times that a wall clock which was set back would have lengthened."""
    return tuple(
        portion._replace(due_ms=retry_due_ms(portion.due_ms, portion.errors[-1].at_ms, now_ms))
        for portion in portions
    )


def _in_order(portions: Iterable[Portion]) -> Portions:
    """Sorted by first item, so that equal portions compare equal regardless of their history."""
    return tuple(sorted(portions, key=lambda portion: lowest_bit(portion.bits)))


def slices_of(run: LentRun, done: int, portions: Sequence[Portion]) -> list[Slice]:
    """A run's unsettled items as slices: those never tried, then those that have failed."""
    fresh = item_bits(0, run.head.count) & ~done
    slices = []
    for portion in portions:
        bits = portion.bits & ~done
        fresh &= ~bits
        if bits:
            slices.append(Slice(run, bits, portion.attempt, portion.due_ms, portion.errors))
    if fresh:
        slices.insert(0, Slice(run, fresh, run.head.attempt, run.head.due_ms))
    return slices
