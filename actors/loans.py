"""Loans: which runs are lent to workers, which items are settled, and the marks that say so.

An outcome counts only with the token of the lease and the id of the run that it is about; any
other is stale and changes nothing. The books learn of an outcome when its mark is written, not
before. Plain data, touched by the spooler's task alone.
"""

from dataclasses import dataclass

import structlog

from actors.backlog import Dropped
from actors.ledger import ItemsFinished, Ledger
from actors.messages import Fate, Lease, Place, Settled, StoredRun
from actors.ports import ItemMark
from forebay.ids import format_run_id

log = structlog.get_logger()


@dataclass(slots=True)
class Loan:
    token: int
    run: StoredRun
    done: int


@dataclass(frozen=True, slots=True)
class PendingMark:
    """A mark that is not written yet, and what it means for the books."""

    mark: ItemMark
    fact: ItemsFinished


class Loans:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._loans: dict[int, Loan] = {}
        self._done: dict[int, int] = {}
        """Runs that nobody holds and that are settled in part: a bit for each settled item."""
        self._next_token = 1
        self.running: dict[str, int] = {}
        """Items that are lent and not settled, by queue."""
        self.marks: list[PendingMark] = []

    def remember_done(self, position: int, done: int) -> None:
        """A run that recovery found settled in part."""
        self._done[position] = done

    def lend(self, run: StoredRun) -> Lease:
        token = self._next_token
        self._next_token += 1
        done = self._done.pop(run.position, 0)
        self._loans[run.position] = Loan(token, run, done)
        queue = run.head.queue
        self.running[queue] = self.running.get(queue, 0) + run.head.count - done.bit_count()
        return Lease(token, run, done)

    def settle(self, outcome: Settled) -> None:
        loan = self._loan(outcome.position, outcome.token, outcome.run_id)
        if loan is None:
            log.info("spooler.stale_outcome", run=format_run_id(outcome.run_id))
            return
        head = loan.run.head
        bits = item_bits(outcome.first, min(outcome.last, head.count)) & ~loan.done
        if not bits:
            return
        loan.done |= bits
        self.running[head.queue] -= bits.bit_count()
        is_last = loan.done == item_bits(0, head.count)
        if is_last:
            del self._loans[outcome.position]
        self._mark(
            Place(loan.run.position, loan.run.size, bits.bit_count()),
            head.queue,
            head.run_id,
            (outcome.first, min(outcome.last, head.count)),
            outcome.fate,
            is_last=is_last,
        )

    def take_back(self, lease: Lease) -> StoredRun | None:
        """Ends a lease; the run, if the lease still stood."""
        run = lease.run
        loan = self._loan(run.position, lease.token, run.head.run_id)
        if loan is None:
            return None
        del self._loans[run.position]
        self.running[run.head.queue] -= run.head.count - loan.done.bit_count()
        if loan.done:
            self._done[run.position] = loan.done
        return run

    def drop(self, dropped: Dropped) -> int:
        """A waiting run goes, to make room or because it cannot be read; how many items that is."""
        place = dropped.place
        done = self._done.get(place.position, 0)
        # A run from memory counts all of its items, one from disk only those not settled.
        items = place.items - (done.bit_count() if dropped.run is not None else 0)
        self._mark(
            place._replace(items=items),
            dropped.queue,
            None if dropped.run is None else dropped.run.head.run_id,
            (0, 0xFFFF),
            Fate.DROPPED,
            is_last=True,
        )
        return items

    def take_marks(self) -> list[PendingMark]:
        marks, self.marks = self.marks, []
        return marks

    def written(self, marks: list[PendingMark]) -> None:
        """These are on disk: now the books know."""
        for pending in marks:
            self._ledger.finish(pending.fact)
            if pending.fact.run_bytes:
                self._done.pop(pending.fact.position, None)

    def unwritten(self, marks: list[PendingMark], dropped: list[Dropped]) -> None:
        """These are not: they come again, but for drops that made room in vain."""
        kept = {entry.place.position for entry in dropped}
        self.marks[:0] = [mark for mark in marks if mark.fact.position not in kept]

    def _loan(self, position: int, token: int, run_id: bytes) -> Loan | None:
        loan = self._loans.get(position)
        if loan is None or loan.token != token or loan.run.head.run_id != run_id:
            return None
        return loan

    def _mark(
        self,
        place: Place,
        queue: str,
        run_id: bytes | None,
        items: tuple[int, int],
        fate: Fate,
        *,
        is_last: bool,
    ) -> None:
        number = self._ledger.number_of(place.position)
        self.marks.append(
            PendingMark(
                ItemMark(number, place.position - number, run_id, *items, fate),
                ItemsFinished(
                    place.position, queue, place.items, fate, place.size if is_last else 0
                ),
            )
        )


def item_bits(first: int, last: int) -> int:
    """A bit for each item from `first` to `last` (exclusive)."""
    return (1 << last) - (1 << first) if first < last else 0
