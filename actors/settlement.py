"""Settlement: what was concluded about leased items goes to their owners, and their leases end.

The lease ends first: from then on the outcome is certain, and nobody else's. A lease that has run
out concludes nothing: somebody else has the items, or will. Then the spooler is told, at once, of
journal items that were delivered, or have failed and wait in warm for their next try. The rest
takes its time and is the settler's: outcomes of rows of the cold store, many in one transaction,
and journal items that change their owner (dead letters, retries due later than a minute).

Durable when: the owners say so. On drain what was concluded is recorded before `run` returns. On
cancel it is lost, and the owners deliver again. What the cold store does not take is the
failover's; what that lets go enters warm again. History hears of journal items that were delivered
when their owner has been told. Outcomes of another daemon's runs go to its mailbox with the end of
the lease (actors/posts.py).
"""

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import structlog
import trio

from actors.event_log import EventLog
from actors.events import Sending
from actors.failover import Failover, Held
from actors.failure_log import FailureLog
from actors.handover import HandOver
from actors.history import History
from actors.messages import Fate, Retried, Settle, Settled, SpoolerMessage
from actors.notifications import Notifier
from actors.portions import RetryNote
from actors.posts import make_post
from actors.presence import Presence
from actors.retry import Conclusion
from actors.slices import Abroad, InCold, InJournal, Slice, indexes, ranges
from actors.tallies import Tallies
from actors.tiering import belongs_in_cold
from actors.tiers import (
    ColdQueue,
    Ending,
    Leased,
    Limits,
    NewRow,
    RowOutcome,
    StoreUnavailable,
    WarmQueue,
)
from forebay.ids import new_run_id

log = structlog.get_logger()


NO_LIMITS: Final = Limits(sys.maxsize, sys.maxsize)

INBOX: Final = 256
AT_ONCE_MAX: Final = 256
SYNC_S: Final = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Concluded:
    """A lease that has ended, with an outcome that takes its time."""

    queue: str
    slice: Slice
    conclusion: Conclusion
    stays: tuple[Slice, ...]
    """What is back in warm."""

    @property
    def items(self) -> int:
        return self.slice.items - sum(slice_.items for slice_ in self.stays)


class Settlement:
    def __init__(
        self,
        warm: WarmQueue,
        cold: ColdQueue,
        spooler: trio.MemorySendChannel[SpoolerMessage],
        hand_over: HandOver,
        failover: Failover,
        wake_promoter: Callable[[str], None],
        unrecorded: Counter[str],
        limits: Callable[[str], Limits],
        now_ms: Callable[[], int],
        events: EventLog | None = None,
        history: History | None = None,
        tallies: Tallies | None = None,
        notifier: Notifier | None = None,
        presence: Presence | None = None,
    ) -> None:
        """`unrecorded` counts, by queue, the items that have left warm and are still to be
        recorded: others read it."""
        self._unrecorded = unrecorded
        self._limits = limits
        self._warm = warm
        self._cold = cold
        self._spooler = spooler
        self._hand_over = hand_over
        self._failover = failover
        self._wake_promoter = wake_promoter
        self._now_ms = now_ms
        self._events = events
        self._history = history
        self._tallies = tallies
        self._failure_log = FailureLog()
        self._notifier = notifier
        self._presence = presence or Presence()
        self._to_settler, self._inbox = trio.open_memory_channel[Concluded](INBOX)
        self._left: deque[Concluded] = deque()
        """What somebody was cancelled with while the settler's inbox was full: no more than there
        were leases, and the settler takes them behind what is in the inbox."""
        self._untold: deque[Settle] = deque()
        """The same, of a spooler whose inbox was full."""
        self.stale_total = 0
        """Outcomes of leases that had run out."""
        self._rows: Counter[bytes] = Counter()
        """How many outcomes of each row of the cold store are still to be recorded."""

    async def settle(
        self,
        queue: str,
        leased: Sequence[Leased],
        conclusions: Sequence[Conclusion],
        sending: Sending | None = None,
    ) -> list[bool]:
        """Ends leases with what was concluded. False: the lease had run out, nothing changed.

        `sending` is for the event log; None: a consumer's."""
        pairs = list(zip(leased, conclusions, strict=True))
        endings = [
            ending(one, what, await self._staying(queue, one.slice, what)) for one, what in pairs
        ]
        answers = await self._warm.end(queue, endings)
        await self.conclude(
            [
                Concluded(queue, one.slice, what, ended.again)
                for (one, what), ended, is_ours in zip(pairs, endings, answers, strict=True)
                # Of another daemon's: it has a post.
                if is_ours and not isinstance(one.slice.run.owner, Abroad)
            ]
        )
        self._count_stale(queue, answers.count(False))
        if self._history is not None:
            self._history.settled(queue, pairs, answers)
        self._failure_log.settled(queue, pairs, answers)
        if self._tallies is not None:
            self._tallies.settled(queue, pairs, answers, self._now_ms())
        if self._notifier is not None:
            self._notifier.settled(queue, pairs, answers)
        self._note(queue, pairs, answers, sending)
        return answers

    async def conclude(
        self,
        ended: Sequence["Concluded"],
        recorded: Callable[[list[bool]], None] | None = None,
    ) -> None:
        """Leases have ended, here or on another host: the owners are told, in their turn.

        `recorded` is called when what the journal is told at once is durable."""
        outcomes: list[Settled | Retried] = []
        for one in ended:
            if isinstance(one.slice.run.owner, InJournal):
                outcomes += journal_outcomes(one.slice, one.conclusion.delivered, one.stays)
        slow = deque(one for one in ended if not is_quick(one.slice, one.conclusion, one.stays))
        for one in slow:
            self._unrecorded[one.queue] += one.items
        self._rows.update(rows_of(slow))
        try:
            if outcomes or recorded is not None:
                await self._tell_spooler(Settle(tuple(outcomes), recorded))
            while slow:
                await self._send(slow[0])
                slow.popleft()
        except trio.Cancelled:
            self._leave(slow)
            raise

    async def _send(self, one: "Concluded") -> None:
        try:
            self._to_settler.send_nowait(one)
        except trio.WouldBlock:
            await self._to_settler.send(one)

    def _leave(self, slow: Iterable["Concluded"]) -> None:
        """Whoever says it is cancelled, and the leases have ended: nobody else would say it."""
        for one in slow:
            try:
                self._to_settler.send_nowait(one)
            except trio.WouldBlock:
                self._left.append(one)

    @property
    def unrecorded_rows(self) -> set[bytes]:
        """Rows of the cold store of which something has become that it was not told yet: the
        settler's, and what the failover holds. Nobody may lend them anew before."""
        return set(self._rows)

    def _note(
        self,
        queue: str,
        pairs: Sequence[tuple[Leased, Conclusion]],
        answers: Sequence[bool],
        sending: Sending | None,
    ) -> None:
        if self._events is None or not self._events.is_on:
            return
        ours = [pair for pair, is_ours in zip(pairs, answers, strict=True) if is_ours]
        if sending is None:
            sending = Sending("pull", sum(one.slice.items for one, _ in ours))
        self._events.settled(queue, sending, [one for one, _ in ours], [what for _, what in ours])

    async def _staying(
        self, queue: str, slice_: Slice, conclusion: Conclusion
    ) -> tuple[Slice, ...]:
        """What stays in warm: what was not tried, and what the journal keeps for a try soon."""
        if not conclusion.again:
            return ()
        is_of_cold = isinstance(slice_.run.owner, InCold)
        fill, limits, now_ms = await self._warm.fill(queue), self._limits(queue), self._now_ms()
        return tuple(
            again
            for again in conclusion.again
            if again.attempt == slice_.attempt
            or not (is_of_cold or belongs_in_cold(again.due_ms, now_ms, fill, limits))
        )

    async def _tell_spooler(self, message: Settle) -> None:
        """Delivered is delivered, even if whoever says so is cancelled now."""
        try:
            self._spooler.send_nowait(message)
        except trio.WouldBlock:
            # However long it takes: the lease has ended, and nobody else would say it.
            try:
                await self._spooler.send(message)
            except trio.Cancelled:
                self._untold.append(message)
                raise

    async def _tell_rest(self) -> None:
        while self._untold:
            await self._spooler.send(self._untold[0])
            self._untold.popleft()

    def _count_stale(self, queue: str, stale: int) -> None:
        if stale:
            self.stale_total += stale
            log.warning("delivery.lease_lost", queue=queue, leases=stale)

    # The settler.

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until `close`; then what is left is recorded, as far as that is possible at once."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._failover.run)
            nursery.start_soon(self._sync)
            async for concluded in self._inbox:
                batch = [concluded]
                with suppress(trio.WouldBlock, trio.EndOfChannel):
                    while len(batch) < AT_ONCE_MAX:
                        batch.append(self._inbox.receive_nowait())
                while batch:
                    try:
                        await self._record(batch)
                    finally:
                        self._forget(batch)
                    batch = [self._left.popleft() for _ in range(min(len(self._left), AT_ONCE_MAX))]
            nursery.cancel_scope.cancel()
        await self._tell_rest()
        await self._failover.try_again()

    def _forget(self, batch: list[Concluded]) -> None:
        """These are recorded, or the failover's."""
        for concluded in batch:
            self._unrecorded[concluded.queue] -= concluded.items
        for queue in {concluded.queue for concluded in batch}:
            self._wake_promoter(queue)

    def close(self) -> None:
        """Nothing more is settled."""
        self._to_settler.close()

    async def _sync(self) -> None:
        """What the cold store has written, it makes durable within a second."""
        while True:
            await trio.sleep(SYNC_S)
            await self._tell_rest()
            # It is logged where it matters, at the next step that fails.
            with suppress(StoreUnavailable):
                await self._cold.sync()

    async def _record(self, batch: list[Concluded]) -> None:
        of_cold = [c for c in batch if isinstance(c.slice.run.owner, InCold)]
        if of_cold:
            await self._record_rows(of_cold)
        later: list[Slice] = []
        dead: list[Slice] = []
        for concluded in batch:
            if isinstance(concluded.slice.run.owner, InJournal):
                again, stays = concluded.conclusion.again, concluded.stays
                later += [slice_ for slice_ in again if slice_ not in stays]
                dead += concluded.conclusion.dead
        if later:
            await self._hand_over.give(later, self._enter_again, is_dead=False)
        if dead:
            await self._hand_over.give(dead, self._enter_again, is_dead=True)

    async def _record_rows(self, batch: list[Concluded]) -> None:
        """Outcomes of the cold store's own rows, in one transaction."""
        outcomes = [row_outcome(c.slice, c.conclusion) for c in batch]

        async def again() -> None:
            for concluded, ok in zip(batch, await self._cold.settle(outcomes), strict=True):
                if not ok:
                    self._count_stale(concluded.queue, 1)
            self._told(batch)
            self._presence.found("settle")
            for queue in {c.queue for c in batch if c.conclusion.again}:
                self._wake_promoter(queue)

        try:
            await again()
        except StoreUnavailable as problem:
            self._presence.lost("settle", problem)
            slices = [replace(c.slice, bits=concluded_bits(c)) for c in batch]
            size = sum(slice_.bytes for slice_ in slices)

            async def let_go() -> None:
                await self._enter_again(slices)
                self._told(batch)

            await self._failover.hold(Held(size, again, let_go))

    def _told(self, batch: Sequence[Concluded]) -> None:
        """The cold store knows what became of these, or never will."""
        for row in rows_of(batch):
            self._rows[row] -= 1
            if not self._rows[row]:
                del self._rows[row]

    async def _enter_again(self, slices: Sequence[Slice]) -> None:
        """What became of them could not be recorded: they are delivered again. They were in warm a
        while ago, and go back whatever the limits say."""
        for slice_ in slices:
            await self._warm.enter(slice_.run.head.queue, [slice_], NO_LIMITS)


def ending(leased: Leased, conclusion: Conclusion, stays: tuple[Slice, ...]) -> Ending:
    is_abroad = isinstance(leased.slice.run.owner, Abroad)
    post = make_post(leased.slice, conclusion, stays) if is_abroad else b""
    return Ending(leased.token, stays, post)


def is_quick(slice_: Slice, conclusion: Conclusion, stays: tuple[Slice, ...]) -> bool:
    """Whether nothing changes its owner, and no row has to be told."""
    if conclusion.dead or len(stays) < len(conclusion.again):
        return False
    return not conclusion.delivered or isinstance(slice_.run.owner, InJournal)


def rows_of(batch: Iterable[Concluded]) -> list[bytes]:
    """Of the cold store; one for each outcome."""
    owners = [concluded.slice.run.owner for concluded in batch]
    return [owner.row for owner in owners if isinstance(owner, InCold)]


def concluded_bits(concluded: Concluded) -> int:
    """The items that something has become of."""
    untried = 0
    for again in concluded.conclusion.again:
        if again.attempt == concluded.slice.attempt:
            untried |= again.bits
    return concluded.slice.bits & ~untried


def failed(slice_: Slice, conclusion: Conclusion) -> tuple[Slice, ...]:
    """Of what is tried again: what has failed, not what was given back untried."""
    return tuple(again for again in conclusion.again if again.attempt > slice_.attempt)


def journal_outcomes(
    slice_: Slice, delivered: int, stays: tuple[Slice, ...]
) -> list[Settled | Retried]:
    """What the spooler is told: what was delivered, and what has failed and stays in warm."""
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
    """What the cold store is told of its own: what failed becomes rows on the same body."""
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
