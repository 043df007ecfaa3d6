"""Settlement: what was concluded about leased items goes to their owners, and their leases end.

Most of it is journal items that were delivered, or failed and wait in warm for their next try:
the lease ends, the spooler is told, all at once (`settle`). The rest takes its time and is the
settler's: outcomes of rows of the cold store, many in one transaction, and journal items that
change their owner (dead letters, retries due later than a minute). There the lease is kept until
the owner has recorded the outcome.

A lease that has run out concludes nothing: somebody else has the items, or will.

Durable when: the owners say so. On drain what was concluded is recorded before `run` returns. On
cancel it is lost with the leases, and the owners deliver again. What the cold store does not take
is held by the failover. What it can't do: settle for an owner on another host.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog
import trio

from actors.handover import Failover, HandOver, Held
from actors.messages import Fate, Retried, Settle, Settled, SpoolerMessage
from actors.portions import RetryNote
from actors.retry import Conclusion
from actors.slices import InCold, InJournal, Slice, indexes, ranges
from actors.tiering import belongs_in_cold
from actors.tiers import (
    ColdQueue,
    Ending,
    Leased,
    NewRow,
    RowOutcome,
    StoreUnavailable,
    WarmQueue,
)
from forebay.ids import new_run_id

log = structlog.get_logger()

M = TypeVar("M")

INBOX: Final = 256
AT_ONCE_MAX: Final = 256
SYNC_S: Final = 1.0
LAST_WORDS_S: Final = 30.0
"""How long a worker that is cancelled still waits for a full inbox."""
HOLD_S: Final = 60.0
"""A lease is extended by so much while its outcome is being recorded."""


@dataclass(frozen=True, slots=True, eq=False)
class Concluded:
    """A lease whose outcome takes its time."""

    queue: str
    leased: Leased
    conclusion: Conclusion


class Settlement:
    def __init__(
        self,
        warm: WarmQueue,
        cold: ColdQueue,
        spooler: trio.MemorySendChannel[SpoolerMessage],
        hand_over: HandOver,
        failover: Failover,
        wake_promoter: Callable[[str], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._warm = warm
        self._cold = cold
        self._spooler = spooler
        self._hand_over = hand_over
        self._failover = failover
        self._wake_promoter = wake_promoter
        self._now_ms = now_ms
        self._to_settler, self._inbox = trio.open_memory_channel[Concluded](INBOX)
        self.stale_total = 0
        """Outcomes of leases that had run out."""

    async def settle(
        self, queue: str, leased: Sequence[Leased], conclusions: Sequence[Conclusion]
    ) -> list[bool]:
        """Ends leases with what was concluded. False: the lease had run out, nothing changed."""
        now_ms = self._now_ms()
        quick: list[int] = []
        slow: list[int] = []
        for order, (lease, conclusion) in enumerate(zip(leased, conclusions, strict=True)):
            (quick if is_quick(lease.slice, conclusion, now_ms) else slow).append(order)
        answers = [False] * len(leased)
        if quick:
            endings = [Ending(leased[order].token, conclusions[order].again) for order in quick]
            ended = await self._warm.end(queue, endings)
            outcomes: list[Settled | Retried] = []
            for order, ok in zip(quick, ended, strict=True):
                answers[order] = ok
                if ok and isinstance(leased[order].slice.run.owner, InJournal):
                    outcomes += journal_outcomes(leased[order].slice, conclusions[order])
            if outcomes:
                await self._tell(self._spooler, Settle(tuple(outcomes)))
        if slow:
            tokens = [leased[order].token for order in slow]
            for order, ok in zip(slow, await self._warm.extend(queue, tokens, HOLD_S), strict=True):
                answers[order] = ok
                if ok:
                    concluded = Concluded(queue, leased[order], conclusions[order])
                    await self._tell(self._to_settler, concluded)
        self._count_stale(queue, answers.count(False))
        return answers

    async def _tell(self, channel: trio.MemorySendChannel[M], message: M) -> None:
        """Delivered is delivered, even if whoever says so is cancelled now."""
        try:
            channel.send_nowait(message)
        except trio.WouldBlock:
            # However long it takes: the lease has ended, and nobody else would say it.
            try:
                await channel.send(message)
            except trio.Cancelled:
                with trio.move_on_after(LAST_WORDS_S, shield=True):
                    await channel.send(message)
                raise

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
                await self._record(batch)
            nursery.cancel_scope.cancel()
        await self._failover.try_again()

    def close(self) -> None:
        """Nothing more is settled."""
        self._to_settler.close()

    async def _sync(self) -> None:
        """What the cold store has written, it makes durable within a second."""
        while True:
            await trio.sleep(SYNC_S)
            # It is logged where it matters, at the next step that fails.
            with suppress(StoreUnavailable):
                await self._cold.sync()

    async def _record(self, batch: list[Concluded]) -> None:
        await self._record_rows([c for c in batch if isinstance(c.leased.slice.run.owner, InCold)])
        for concluded in batch:
            if isinstance(concluded.leased.slice.run.owner, InJournal):
                await self._record_moves(concluded)

    async def _record_rows(self, batch: list[Concluded]) -> None:
        """Outcomes of the cold store's own rows, in one transaction."""
        if not batch:
            return
        outcomes = [row_outcome(c.leased.slice, c.conclusion) for c in batch]

        async def again() -> None:
            for concluded, ok in zip(batch, await self._cold.settle(outcomes), strict=True):
                if not ok:
                    self._count_stale(concluded.queue, 1)
            for concluded in batch:
                rest = untried(concluded.leased.slice, concluded.conclusion)
                await self._end(concluded, rest)
            for queue in {c.queue for c in batch if c.conclusion.again}:
                self._wake_promoter(queue)

        try:
            await again()
        except StoreUnavailable as problem:
            log.error("cold.away", error=str(problem))
            size = sum(c.leased.slice.bytes for c in batch)
            self._failover.hold(Held(size, again, lambda: self._keep(batch)))

    async def _record_moves(self, concluded: Concluded) -> None:
        """Items of the journal, some of which change their owner."""
        slice_, conclusion = concluded.leased.slice, concluded.conclusion
        now_ms = self._now_ms()
        later = tuple(s for s in failed(slice_, conclusion) if belongs_in_cold(s.due_ms, now_ms))
        soon = tuple(s for s in conclusion.again if s not in later)
        staying = Conclusion(conclusion.delivered, soon)
        outcomes = journal_outcomes(slice_, staying)
        if outcomes:
            await self._spooler.send(Settle(tuple(outcomes)))
        parts = [(later, False), (conclusion.dead, True)]
        moving = [(slices, is_dead) for slices, is_dead in parts if slices]
        left = len(moving)

        async def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                await self._end(concluded, soon)

        for slices, is_dead in moving:
            await self._hand_over.give(
                slices, is_dead=is_dead, done=done, keep=lambda: self._keep([concluded])
            )

    async def _end(self, concluded: Concluded, again: tuple[Slice, ...]) -> None:
        await self._warm.end(concluded.queue, [Ending(concluded.leased.token, again)])

    async def _keep(self, batch: Sequence[Concluded]) -> None:
        for concluded in batch:
            await self._warm.extend(concluded.queue, [concluded.leased.token], HOLD_S)


def is_quick(slice_: Slice, conclusion: Conclusion, now_ms: int) -> bool:
    """Whether nothing changes its owner, and no row has to be told."""
    if conclusion.dead:
        return False
    if isinstance(slice_.run.owner, InCold):
        return not conclusion.delivered and not failed(slice_, conclusion)
    return not any(belongs_in_cold(again.due_ms, now_ms) for again in failed(slice_, conclusion))


def failed(slice_: Slice, conclusion: Conclusion) -> tuple[Slice, ...]:
    """Of what is tried again: what has failed, not what was given back untried."""
    return tuple(again for again in conclusion.again if again.attempt > slice_.attempt)


def untried(slice_: Slice, conclusion: Conclusion) -> tuple[Slice, ...]:
    return tuple(again for again in conclusion.again if again.attempt == slice_.attempt)


def journal_outcomes(slice_: Slice, conclusion: Conclusion) -> list[Settled | Retried]:
    """What the spooler is told: what was delivered, and what failed and stays."""
    run, owner = slice_.run, slice_.run.owner
    assert isinstance(owner, InJournal)
    where = (owner.token, owner.position, run.head.run_id)
    outcomes: list[Settled | Retried] = [
        Settled(*where, first, last, Fate.DELIVERED) for first, last in ranges(conclusion.delivered)
    ]
    for again in failed(slice_, conclusion):
        newest = again.errors[-1]
        note = RetryNote(again.attempt, again.due_ms, newest.at_ms, newest.text)
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
    return RowOutcome(owner.row, owner.lock, conclusion.delivered, tuple(moved), bits)
