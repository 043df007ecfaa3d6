"""Portions: what the owner of a run knows of items that have failed and will be tried again.

A run's items begin as one: attempt 0, no error. Those that fail together form a portion, with
their attempts, their errors and the time of the next one. Marks say the same on disk, so that
the portions after a restart are those before it. Plain data.
"""

from collections.abc import Sequence
from typing import NamedTuple

from actors.slices import ItemError, LentRun, Slice, item_bits, remember


class Portion(NamedTuple):
    bits: int
    attempt: int
    due_ms: int
    errors: tuple[ItemError, ...]


class RetryNote(NamedTuple):
    """Items failed, for the `attempt`th time, and are to be tried again at `due_ms`."""

    attempt: int
    due_ms: int
    at_ms: int
    text: str


Portions = tuple[Portion, ...]


def retried(portions: Portions, bits: int, note: RetryNote) -> Portions:
    """These items have failed once more; each keeps the history it had."""
    error = ItemError(note.attempt, note.at_ms, note.text)
    changed = []
    for portion in portions:
        hit = portion.bits & bits
        if hit:
            history = remember(portion.errors, error)
            changed.append(Portion(hit, note.attempt, note.due_ms, history))
            bits &= ~hit
        if portion.bits & ~hit:
            changed.append(portion._replace(bits=portion.bits & ~hit))
    if bits:
        changed.append(Portion(bits, note.attempt, note.due_ms, remember((), error)))
    return tuple(changed)


def without(portions: Portions, bits: int) -> Portions:
    """What is left when these items are settled."""
    left = (portion._replace(bits=portion.bits & ~bits) for portion in portions)
    return tuple(portion for portion in left if portion.bits)


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
