"""Purges a queue: deletes its waiting items in all tiers.

Waiting items are those in the journal's backlog, in warm and in cold that are not leased. Items
that a worker, a consumer or a stream's reader has stay, and so do dead letters and staged items.
Warm comes first, because items are leased from there; the next round meets items that moved between
the tiers meanwhile. Rounds continue until nothing waits, within a time limit: then the answer says
`more`, and the operation may be repeated. The books count claimed items among those in cold; a
round that finds nothing asks the cold store how many there are.

A purge is durable when it is answered: journal items have a DELETED mark in a group commit, cold
ones were deleted in a transaction; the books count all of them as deleted. A step that has begun is
completed, shielded, within a deadline. If a store fails or is too slow, slices that were withdrawn
from warm go back there, except those that the journal was told about, which it will record.

It cannot keep purged items in the history.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import structlog
import trio

from actors.metrics.books import Books, BooksReport
from actors.model.runs import Fate
from actors.model.slices import InCold, InJournal, Slice, item_bits, ranges
from actors.ports.tiers import ColdPart, Limits, StoreUnavailable
from actors.spooler.messages import (
    JournalRun,
    Reply,
    ScanRuns,
    Settle,
    Settled,
    Voided,
)
from actors.tiers.tiers import Tiers

log = structlog.get_logger()

TIME_S: Final = 10.0
"""Time limit of one request."""
STEP_S: Final = 30.0
OUTCOMES_MAX: Final = 1024
"""Outcomes per message to the spooler."""
SCAN_RUNS: Final = 512
SCAN_BYTES: Final = 16 * 1024 * 1024
COLD_ROWS: Final = 256
"""Rows per transaction."""
PAUSE_S: Final = 0.05
"""Time for items between two tiers to arrive."""
NO_LIMITS: Final = Limits(2**62, 2**62)


class Purges(Protocol):
    async def purge(self, queue: str) -> tuple[int, bool]:
        """How many items were deleted, and whether some are left."""


class Purging:
    def __init__(
        self,
        tiers: Tiers,
        books: Books,
    ) -> None:
        self._tiers = tiers
        self._spooler = tiers.spooler.client
        self._warm = tiers.warm
        self._cold = tiers.cold.items
        self._streams = tiers.cold
        self._books = books

    async def purge(self, queue: str) -> tuple[int, bool]:
        """How many items were deleted, and whether some are left. Items pushed meanwhile may be
        deleted too, but it ends once as many are deleted as waited at first."""
        wanted = waiting(await self._books.report(), queue)
        deadline = trio.current_time() + TIME_S
        deleted = 0
        try:
            while deleted < wanted and trio.current_time() < deadline:
                found = await self._round(queue, deadline)
                deleted += found
                if not found:
                    if not await self._is_waiting(queue):
                        break
                    await trio.sleep(PAUSE_S)
        finally:
            self._tiers.wake(queue)
            if deleted:
                log.warning("queue.purged", queue=queue, items=deleted)
        return deleted, deleted < wanted and await self._is_waiting(queue)

    async def _is_waiting(self, queue: str) -> bool:
        """Whether the queue holds items that can be purged."""
        left = waiting(await self._books.report(), queue)
        return left > 0 and left > await self._claimed(queue)

    async def _claimed(self, queue: str) -> int:
        consumers = [name for of, name in await self._streams.streams() if of == queue]
        return sum([(await self._streams.stream(queue, name)).items for name in consumers])

    async def _round(self, queue: str, deadline: float) -> int:
        found = await self._shielded(self._from_warm, queue)
        after: int | None = 0
        while after is not None and trio.current_time() < deadline:
            runs, after = await self._scan(queue, after - 1)
            found += await self._shielded(self._from_journal, runs)
        while trio.current_time() < deadline:
            items = await self._cold.purge(queue, COLD_ROWS)
            found += items
            if not items:
                break
        return found

    async def _shielded(self, step: Callable[[Any], Awaitable[int]], what: Any) -> int:
        with trio.move_on_after(STEP_S, shield=True):
            return await step(what)
        raise StoreUnavailable(f"it is unknown what was deleted after {STEP_S:g} s")

    # Warm.

    async def _from_warm(self, queue: str) -> int:
        slices = await self._warm.withdraw(queue)
        if line := self._tiers.states.line(queue):
            slices += line.withdraw()
        in_journal = [part for part in slices if isinstance(part.run.owner, InJournal)]
        in_cold = [part for part in slices if isinstance(part.run.owner, InCold)]
        async with self._given_back(queue, [*in_cold, *in_journal]):
            # Items that were deleted after all are met there once more and found to be gone.
            found = await self._delete_cold(in_cold)
        for first in range(0, len(in_journal), OUTCOMES_MAX):
            last = first + OUTCOMES_MAX
            async with self._given_back(queue, in_journal[last:]):
                some = in_journal[first:last]
                found += await self._settle([one for part in some for one in outcomes_of(part)])
        return found

    @asynccontextmanager
    async def _given_back(self, queue: str, slices: Sequence[Slice]) -> AsyncIterator[None]:
        """Returns withdrawn slices to warm if a step fails: no other task would bring them back."""
        try:
            yield
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._warm.enter(queue, slices, NO_LIMITS)
            raise

    async def _delete_cold(self, slices: Sequence[Slice]) -> int:
        found = 0
        for first in range(0, len(slices), COLD_ROWS):
            some = slices[first : first + COLD_ROWS]
            parts = [
                ColdPart(part.run.owner.row, part.bits, part.run.owner.lock)
                for part in some
                if isinstance(part.run.owner, InCold)
            ]
            deleted = await self._cold.delete_all(parts)
            found += sum(
                part.bits.bit_count() for part, done in zip(parts, deleted, strict=True) if done
            )
        return found

    # The journal.

    async def _scan(self, queue: str, after: int) -> tuple[list[JournalRun], int | None]:
        runs, rest = await self._spooler.ask(ScanRuns(queue, after, SCAN_RUNS, SCAN_BYTES))
        return runs, None if rest is None else rest + 1

    async def _from_journal(self, runs: Sequence[JournalRun]) -> int:
        voided = [void(found) for found in runs if not found.is_lent]
        return await self._settle([one for one in voided if one.bits])

    async def _settle(self, outcomes: Sequence[Settled | Voided]) -> int:
        """Settles outcomes and returns the number of items; durable on return."""
        found = 0
        for first in range(0, len(outcomes), OUTCOMES_MAX):
            some = tuple(outcomes[first : first + OUTCOMES_MAX])
            asked = Reply[list[bool]]()
            await self._spooler.send(Settle(some, asked))
            for outcome, done in zip(some, await asked.wait(), strict=True):
                if done:
                    found += (
                        outcome.bits.bit_count()
                        if isinstance(outcome, Voided)
                        else outcome.last - outcome.first
                    )
        return found


def waiting(report: BooksReport, queue: str) -> int:
    """Items that are not leased, according to the books."""
    books = report["queues"].get(queue)
    if books is None:
        return 0
    return books["held"] - books["running"]


def outcomes_of(part: Slice) -> Iterator[Settled]:
    owner, head = part.run.owner, part.run.head
    assert isinstance(owner, InJournal)
    for first, last in ranges(part.bits):
        yield Settled(owner.token, owner.position, head.run_id, first, last, Fate.DELETED)


def void(found: JournalRun) -> Voided:
    run, head = found.run, found.run.head
    return Voided(
        run.position,
        run.size,
        head.count,
        head.queue,
        head.priority,
        head.run_id,
        item_bits(0, head.count) & ~found.done,
        Fate.DELETED,
    )
