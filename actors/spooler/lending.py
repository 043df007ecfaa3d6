"""Lends runs of the journal to their takers, reading them back from disk if necessary.

A part of the spooler. The takers of a queue are served in order as soon as there are runs, from
memory first; if the head of a lane is only on disk, a task reads it and wakes the spooler. A taker
may want nothing just now; it is then asked again each time, before the others.

Every read is awaited under a shield, because a thread cannot be stopped. A run that cannot be read
counts as lost, and its bytes go to the quarantine; a disk that fails temporarily is tried again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from actors.model.books import parse_account
from actors.model.clock import wall_ms
from actors.model.failures import Failures, Portions, RetryNote, without
from actors.model.moves import SETTLED_FATES, WAITING_FATES
from actors.model.runs import DURABLE_FATES, Fate, Place, StoredRun
from actors.model.slices import item_bits, ranges
from actors.ports.journal import ItemMark, Journal, LiveRun, Unreadable
from actors.spooler.arrivals import Arrivals
from actors.spooler.backlog import Backlog, Dropped, Lane
from actors.spooler.ledger import ItemsFinished, Ledger
from actors.spooler.messages import (
    Borrow,
    HandedOver,
    Retried,
    RunLoan,
    Settled,
    Take,
    Taken,
    Voided,
)
from forebay.ids import format_run_id


@dataclass(slots=True)
class Loan:
    """Loans: which runs are lent to workers, which items are settled, and the marks for them.

    An outcome counts only with the token of the lease and the id of its run. Any other outcome is
    stale and changes nothing; the same holds for an outcome that the state machine does not allow
    (actors/model/moves.py). The books learn of an outcome when its mark is written, not before.
    Plain data of the spooler's task.
    """

    token: int
    run: StoredRun
    done: int
    failures: Failures | None
    """None: no item has failed."""


@dataclass(frozen=True, slots=True)
class PendingMark:
    """A mark that is not written yet, and its meaning for the books."""

    mark: ItemMark
    fact: ItemsFinished


class Loans:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._loans: dict[int, Loan] = {}
        self._done: dict[int, int] = {}
        """Settled items, as bits, of partly settled runs that are not lent."""
        self._portions: dict[int, Portions] = {}
        """Failed items of runs that are not lent."""
        # Tokens from before a restart may still be known to other actors: none is used again.
        self._next_token = wall_ms() << 16
        self.lent: dict[str, int] = {}
        """Items that are lent and not settled, by queue."""
        self.marks: list[PendingMark] = []
        self.must_be_durable = False
        """Whether there are marks that must be synced before the answer."""

    def remember(self, position: int, done: int, portions: Portions) -> None:
        """Notes a run that recovery found partly settled or partly failed."""
        if done:
            self._done[position] = done
        if portions:
            self._portions[position] = portions

    def disown(self, live: LiveRun, bits: int) -> int:
        """Marks items of a recovered run that the cold store owns; returns all settled items."""
        done = live.done
        for first, last in ranges(bits & ~live.done):
            done |= item_bits(first, last)
            self._add_mark(
                Place(live.position, live.size, last - first),
                parse_account(live.account).queue,
                live.run_id,
                (first, last),
                Fate.HANDED_OVER,
                is_last=done == item_bits(0, live.items),
            )
        return done

    def lend(self, run: StoredRun) -> RunLoan:
        token = self._next_token
        self._next_token += 1
        done = self._done.pop(run.position, 0)
        portions = self._portions.pop(run.position, ())
        failures = Failures(portions) if portions else None
        self._loans[run.position] = Loan(token, run, done, failures)
        queue = run.head.queue
        self.lent[queue] = self.lent.get(queue, 0) + run.head.count - done.bit_count()
        return RunLoan(token, run, done, portions)

    def lease_of(self, position: int, run_id: bytes) -> RunLoan | None:
        """The current lease of a run; None if it is not lent."""
        loan = self._loans.get(position)
        if loan is None or loan.run.head.run_id != run_id:
            return None
        portions = loan.failures.portions() if loan.failures is not None else ()
        return RunLoan(loan.token, loan.run, loan.done, portions)

    def settle(self, outcome: Settled | Retried | HandedOver) -> bool:
        """Applies an outcome; False if it is stale. Items that are already settled are skipped, but
        items that change their owner do so together or not at all."""
        loan = self._loan(outcome.position, outcome.token, outcome.run_id)
        is_possible = not isinstance(outcome, Settled) or outcome.fate in SETTLED_FATES
        if loan is None or not is_possible:
            log.info("spooler.stale_outcome", run=format_run_id(outcome.run_id))
            return False
        if isinstance(outcome, HandedOver):
            if outcome.bits & loan.done:
                return False
            self._finish(loan, outcome.bits, ranges(outcome.bits), Fate.HANDED_OVER)
            return True
        span = (outcome.first, min(outcome.last, loan.run.head.count))
        bits = item_bits(*span)
        is_new = not bits & loan.done
        bits &= ~loan.done
        if isinstance(outcome, Retried):
            if bits:
                loan.failures = loan.failures or Failures()
                loan.failures.note(bits, outcome.note)
                self._mark(loan, bits, span, Fate.RETRY, outcome.note)
        elif bits:
            self._finish(loan, bits, (span,), outcome.fate)
        return is_new

    def _finish(self, loan: Loan, bits: int, spans: Iterable[tuple[int, int]], fate: Fate) -> None:
        for span in spans:
            hit = bits & item_bits(*span)
            loan.done |= hit
            if loan.failures is not None:
                loan.failures.drop(hit)
            self.lent[loan.run.head.queue] -= hit.bit_count()
            self._mark(loan, hit, span, fate)

    def _mark(
        self,
        loan: Loan,
        bits: int,
        items: tuple[int, int],
        fate: Fate,
        note: RetryNote | None = None,
    ) -> None:
        run, head = loan.run, loan.run.head
        is_last = loan.done == item_bits(0, head.count)
        if is_last:
            del self._loans[run.position]
        place = Place(run.position, run.size, bits.bit_count())
        self._add_mark(place, head.queue, head.run_id, items, fate, is_last=is_last, note=note)

    def take_back(self, lease: RunLoan) -> StoredRun | None:
        """Ends a lease; returns its run, or None if the lease was stale."""
        run = lease.run
        loan = self._loan(run.position, lease.token, run.head.run_id)
        if loan is None:
            return None
        del self._loans[run.position]
        self.lent[run.head.queue] -= run.head.count - loan.done.bit_count()
        portions = loan.failures.portions() if loan.failures is not None else ()
        self.remember(run.position, loan.done, portions)
        return run

    def drop(self, dropped: Dropped, fate: Fate) -> int:
        """Drops a waiting run to make room, or as unreadable; returns the number of its items."""
        place = dropped.place
        done = self._done.get(place.position, 0)
        # A run from memory counts all of its items, one from disk only those not settled.
        items = place.items - (done.bit_count() if dropped.run is not None else 0)
        self._add_mark(
            place._replace(items=items),
            dropped.queue,
            None if dropped.run is None else dropped.run.head.run_id,
            (0, 0xFFFF),
            fate,
            is_last=True,
        )
        return items

    def void(self, voided: Voided, backlog: Backlog) -> bool:
        """Gives items of a waiting run their fate; False if it does not wait, or they have one."""
        position, bits = voided.position, voided.bits
        done = self._done.get(position, 0)
        left = item_bits(0, voided.items) & ~done & ~bits
        if position in self._loans or voided.fate not in WAITING_FATES:
            return False
        if bits & done or not bits or bits >> voided.items:
            return False
        waits = (voided.queue, voided.priority, position)
        if not backlog.shrink(*waits, bits.bit_count(), is_gone=not left):
            return False
        self._done[position] = done | bits
        if position in self._portions:
            self._portions[position] = without(self._portions[position], bits)
        spans = list(ranges(bits))
        for span in spans:
            place = Place(position, voided.size, span[1] - span[0])
            is_last = not left and span == spans[-1]
            mark = (place, voided.queue, voided.run_id, span, voided.fate)
            self._add_mark(*mark, is_last=is_last)
        return True

    def lent_runs(self, queue: str) -> list[StoredRun]:
        return [loan.run for loan in self._loans.values() if loan.run.head.queue == queue]

    def lent_by_id(self, run_id: bytes) -> list[StoredRun]:
        return [loan.run for loan in self._loans.values() if loan.run.head.run_id == run_id]

    def is_lent(self, position: int) -> bool:
        return position in self._loans

    def state_of(self, position: int) -> tuple[int, Portions]:
        """The settled items of a run, as bits, and its failed items; lent or not."""
        loan = self._loans.get(position)
        if loan is None:
            return self._done.get(position, 0), self._portions.get(position, ())
        return loan.done, loan.failures.portions() if loan.failures is not None else ()

    def take_marks(self) -> list[PendingMark]:
        marks, self.marks = self.marks, []
        return marks

    def written(self, marks: list[PendingMark]) -> None:
        """These marks are on disk: enters them into the books."""
        for pending in marks:
            self._ledger.finish(pending.fact)
            if pending.fact.run_bytes:
                self._done.pop(pending.fact.position, None)
                self._portions.pop(pending.fact.position, None)

    def unwritten(self, marks: list[PendingMark], dropped: list[Dropped]) -> None:
        """Keeps marks that were not written for the next commit, except drops that were undone."""
        kept = {(entry.place.position, Fate.DROPPED) for entry in dropped}
        self.marks[:0] = [m for m in marks if (m.fact.position, m.fact.fate) not in kept]

    def _loan(self, position: int, token: int, run_id: bytes) -> Loan | None:
        loan = self._loans.get(position)
        if loan is None or loan.token != token or loan.run.head.run_id != run_id:
            return None
        return loan

    def _add_mark(
        self,
        place: Place,
        queue: str,
        run_id: bytes | None,
        items: tuple[int, int],
        fate: Fate,
        *,
        is_last: bool,
        note: RetryNote | None = None,
    ) -> None:
        number = self._ledger.number_of(place.position)
        run_bytes = place.size if is_last else 0
        self.must_be_durable |= fate in DURABLE_FATES
        self.marks.append(
            PendingMark(
                ItemMark(number, place.position - number, run_id, *items, fate, note),
                ItemsFinished(place.position, queue, place.items, fate, run_bytes),
            )
        )


log = structlog.get_logger()

READ_RUNS_MAX: Final = 256
READ_BYTES_MAX: Final = 4 * 1024 * 1024
READ_BYTES_MIN: Final = 256 * 1024


class Lending:
    def __init__(
        self,
        journal: Journal,
        ledger: Ledger,
        backlog: Backlog,
        loans: Loans,
        reader: trio.Lock,
        arrivals: Arrivals,
        wake: Callable[[], None],
    ) -> None:
        """`reader` allows one read at a time. `wake` is called when runs were read."""
        self._journal = journal
        self._ledger = ledger
        self._backlog = backlog
        self._loans = loans
        self._reader = reader
        self._arrivals = arrivals
        self._wake = wake
        self._takes: dict[str, deque[Take]] = {}
        self._queues_seen: set[str] = set()
        self.ready: set[str] = set()
        """Queues whose takers may find new runs."""
        self._waiting: dict[str, None] = {}
        """Queues whose takers want nothing just now, in the order of their answers."""

    def take(self, take: Take) -> None:
        self._takes.setdefault(take.queue, deque()).append(take)
        self.ready.add(take.queue)

    def is_wanted(self, queue: str) -> bool:
        """Whether a taker waits for this queue's runs, or has taken some."""
        return queue in self._takes

    def lend(self, nursery: trio.Nursery) -> None:
        """Serves the takers of queues that may have new runs."""
        ready, self.ready = self.ready, set()
        for queue in ready - self._queues_seen:
            self._announce(queue)
        # Takers that wanted nothing last time come first, in their order.
        waiting, self._waiting = self._waiting, {}
        for queue in waiting | dict.fromkeys(ready):
            takes = self._takes.get(queue)
            while takes:
                take = takes[0]
                bytes_max = take.budget.bytes_max()
                if not bytes_max:
                    self._waiting[queue] = None
                    break
                runs = self._backlog.take(queue, take.runs_max, bytes_max, take.items_max)
                if not runs:
                    self._start_reading(queue, nursery)
                    break
                takes.popleft()
                leases = [self._loans.lend(run) for run in runs]
                taken = Taken(leases, self._backlog.has_spilled(queue))
                take.budget.spend(taken.bytes)
                take.reply.put(taken)

    async def borrow(self, wish: Borrow) -> None:
        """Lends runs out of turn. Runs that cannot be read stay in line and are lent in turn."""
        waiting = {
            position: found[1]
            for position in wish.runs
            if (found := self._backlog.locate(wish.queue, position)) is not None
        }
        try:
            runs = await self._read_at(waiting)
        except OSError as error:
            wish.reply.refuse(error)
            return
        leases: dict[int, tuple[RunLoan, bool]] = {}
        for position, run_id in wish.runs.items():
            run = runs.get(position)
            # Only after the read is it known whether the run still waits.
            found = self._backlog.locate(wish.queue, position)
            if run is not None and found is not None and run.head.run_id == run_id:
                items = run.head.count - self._loans.state_of(position)[0].bit_count()
                self._backlog.shrink(wish.queue, found[0], position, items, is_gone=True)
                leases[position] = self._loans.lend(run), True
            elif (lease := self._loans.lease_of(position, run_id)) is not None:
                leases[position] = lease, False
        wish.reply.put(leases)

    async def _read_at(self, waiting: Mapping[int, StoredRun | Place]) -> dict[int, StoredRun]:
        runs = {at: run for at, run in waiting.items() if isinstance(run, StoredRun)}
        places = [place for place in waiting.values() if isinstance(place, Place)]
        if places:
            async with self._reader:
                wanted = [(self._ledger.number_of(place.position), place) for place in places]
                with trio.CancelScope(shield=True):
                    found = await trio.to_thread.run_sync(self._journal.read, wanted)
            runs |= {run.position: run for run in found if isinstance(run, StoredRun)}
        return runs

    def _announce(self, queue: str) -> None:
        """Tells dispatch about a queue it may not know; later, if dispatch is busy."""
        if self._arrivals.see_nowait(queue):
            self._queues_seen.add(queue)
        else:
            self.ready.add(queue)

    def _start_reading(self, queue: str, nursery: trio.Nursery) -> None:
        lane = self._backlog.lane_to_read(queue)
        if lane is not None:
            lane.reading = True
            nursery.start_soon(self._read, queue, lane)

    async def _read(self, queue: str, lane: Lane) -> None:
        """Reads the head of a lane into memory, in order. Reads a little even if memory is full: no
        queue may starve because others fill the cap."""
        async with self._reader:
            room = min(READ_BYTES_MAX, max(READ_BYTES_MIN, self._backlog.room_bytes()))
            places = self._backlog.begin_reading(lane, READ_RUNS_MAX, room)
            wanted = [(self._ledger.number_of(place.position), place) for place in places]
            try:
                with trio.CancelScope(shield=True):
                    found = await trio.to_thread.run_sync(self._journal.read, wanted)
            except OSError as error:
                # The runs themselves may be intact: the next tick tries again.
                log.error("spooler.cannot_read", queue=queue, error=str(error))
                self._backlog.end_reading(lane, [], places)
                self.ready.add(queue)
                return
            self._end_reading(queue, lane, places, found)
        self._wake()

    def _end_reading(
        self,
        queue: str,
        lane: Lane,
        places: Sequence[Place],
        found: Sequence[StoredRun | Unreadable],
    ) -> None:
        runs = [run for run in found if isinstance(run, StoredRun)]
        self._backlog.end_reading(lane, runs, [])
        for place, run in zip(places, found, strict=True):
            if isinstance(run, Unreadable):
                items = self._loans.drop(Dropped(queue, lane, place, None), Fate.LOST)
                log.error(
                    "spooler.block_unreadable",
                    queue=queue,
                    position=place.position,
                    items_lost=items,
                    reason=run.reason,
                )
        self.ready.add(queue)

    def drop(self, dropped: Dropped) -> int:
        """Drops a waiting run to make room; returns the number of its items."""
        items = self._loans.drop(dropped, Fate.DROPPED)
        position = dropped.place.position
        log.warning("spooler.dropped_oldest", queue=dropped.queue, position=position, items=items)
        return items
