"""The pure part of settlement: what ended, and what the owner is told about it.

An outcome is quick if its owner can be told at once: journal items that were delivered, or that
failed and wait in warm for their next try. All others are slow (actors/workers/settlement.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from actors.model.failures import RetryNote
from actors.model.outcomes import Conclusion
from actors.model.runs import Fate
from actors.model.slices import Abroad, InCold, InJournal, Slice, indexes, ranges
from actors.ports.tiers import Ending, Leased, NewRow, RowOutcome
from actors.spooler.messages import Retried, Settled
from actors.workers.posts import make_post
from forebay.ids import new_run_id


@dataclass(frozen=True, slots=True, eq=False)
class Concluded:
    """A lease that has ended, with its conclusion."""

    queue: str
    slice: Slice
    conclusion: Conclusion
    stays: tuple[Slice, ...]
    """Slices that are back in warm."""

    @property
    def items(self) -> int:
        return self.slice.items - sum(slice_.items for slice_ in self.stays)


def ending(leased: Leased, conclusion: Conclusion, stays: tuple[Slice, ...]) -> Ending:
    is_abroad = isinstance(leased.slice.run.owner, Abroad)
    post = make_post(leased.slice, conclusion, stays) if is_abroad else b""
    return Ending(leased.token, stays, post)


def is_quick(slice_: Slice, conclusion: Conclusion, stays: tuple[Slice, ...]) -> bool:
    """Whether no item changes its owner and no row of the cold store is involved."""
    if conclusion.dead or len(stays) < len(conclusion.again):
        return False
    return not conclusion.delivered or isinstance(slice_.run.owner, InJournal)


def rows_of(batch: Iterable[Concluded]) -> list[bytes]:
    """The rows of the cold store among these outcomes, one entry per outcome."""
    owners = [concluded.slice.run.owner for concluded in batch]
    return [owner.row for owner in owners if isinstance(owner, InCold)]


def concluded_bits(concluded: Concluded) -> int:
    """The items that have an outcome: all but those given back untried."""
    untried = 0
    for again in concluded.conclusion.again:
        if again.attempt == concluded.slice.attempt:
            untried |= again.bits
    return concluded.slice.bits & ~untried


def failed(slice_: Slice, conclusion: Conclusion) -> tuple[Slice, ...]:
    """Slices to retry that have failed, without those given back untried."""
    return tuple(again for again in conclusion.again if again.attempt > slice_.attempt)


def journal_outcomes(
    slice_: Slice, delivered: int, stays: tuple[Slice, ...]
) -> list[Settled | Retried]:
    """What the spooler is told: delivered items, and failed items that stay in warm."""
    run, owner = slice_.run, slice_.run.owner
    assert isinstance(owner, InJournal)
    where = (owner.token, owner.position, run.head.run_id)
    outcomes: list[Settled | Retried] = [
        Settled(*where, first, last, Fate.DELIVERED) for first, last in ranges(delivered)
    ]
    for again in stays:
        if again.attempt > slice_.attempt:
            newest = again.errors[-1]
            note = RetryNote(
                again.attempt,
                again.due_ms,
                newest.at_ms,
                newest.text,
                newest.failure_reason,
                newest.holder,
            )
            outcomes += [Retried(*where, *span, note) for span in ranges(again.bits)]
    return outcomes


def row_outcome(slice_: Slice, conclusion: Conclusion) -> RowOutcome:
    """What the cold store is told about its row: failed items become rows on the same body."""
    run, owner = slice_.run, slice_.run.owner
    assert isinstance(owner, InCold)
    moved = [
        NewRow(new_run_id(), run.head, run.data, s.bits, s.attempt, s.due_ms, s.errors)
        for s in failed(slice_, conclusion)
    ]
    for dead in conclusion.dead:
        moved += [
            NewRow(
                new_run_id(),
                run.head,
                run.data,
                1 << index,
                dead.attempt,
                dead.due_ms,
                dead.errors,
                is_dead=True,
            )
            for index in indexes(dead.bits)
        ]
    bits = 0
    for part in (*failed(slice_, conclusion), *conclusion.dead):
        bits |= part.bits
    return RowOutcome(
        owner.row,
        owner.lock,
        conclusion.delivered,
        tuple(moved),
        bits,
        conclusion.holder,
        conclusion.results,
    )
