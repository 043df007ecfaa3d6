"""The settler: records outcomes that take more than a message to the spooler.

These are outcomes of rows of the cold store, many in one transaction, and journal items that
change their owner: dead letters, and retries due in more than a minute. They come from
settlement (actors/workers/settlement.py), and their leases have ended, so no other task would
report them. A task that is cancelled while the inbox is full therefore leaves its outcomes
here.

Outcomes that a consumer waits for are durable as soon as they are recorded, and it is told. All
that arrive during one commit share the next one. The others are durable within a second, when the
cold store syncs. On drain all of them are recorded before `run` returns. On cancel they are lost,
and the owners deliver again. Outcomes that the cold store does not take go to the failover; if the
failover drops one, its items enter warm again.
"""

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import trio

from actors.model.outcomes import Conclusion
from actors.model.slices import InCold, InJournal, Slice, indexes
from actors.ports.tiers import Limits, NewRow, RowOutcome, StoreUnavailable
from actors.spooler.messages import Reply
from actors.tiers.failover import Held
from actors.tiers.tiers import Tiers
from actors.workers.recording import Recording
from forebay.ids import new_run_id

NO_LIMITS: Final = Limits(sys.maxsize, sys.maxsize)
INBOX: Final = 256
AT_ONCE_MAX: Final = 256
SYNC_S: Final = 1.0
KEEP_S: Final = 10.0
"""How often the leases of rows are renewed whose outcome is not recorded."""


@dataclass(frozen=True, slots=True, eq=False)
class Concluded:
    """A lease that has ended, with its conclusion."""

    queue: str
    slice: Slice
    conclusion: Conclusion
    stays: tuple[Slice, ...]
    """Slices that are back in warm."""
    token: int = 0
    """Of the lease."""
    recording: Recording | None = None
    """Of a consumer that waits until the outcome is durable; None: it may be so later."""

    @property
    def reply(self) -> Reply[bool] | None:
        """Where the settler's part of the outcome is awaited."""
        return None if self.recording is None else self.recording.moved

    @property
    def items(self) -> int:
        return self.slice.items - sum(slice_.items for slice_ in self.stays)


def rows_of(batch: Iterable[Concluded]) -> list[bytes]:
    """The rows of the cold store among these outcomes, one entry per outcome."""
    owners = [concluded.slice.run.owner for concluded in batch]
    return [owner.row for owner in owners if isinstance(owner, InCold)]


def locks_of(batch: Iterable[Concluded]) -> list[bytes]:
    """The locks of those rows, one entry per outcome."""
    owners = [concluded.slice.run.owner for concluded in batch]
    return [owner.lock for owner in owners if isinstance(owner, InCold)]


def _subtract(counts: Counter[bytes], gone: Iterable[bytes]) -> None:
    for one in gone:
        counts[one] -= 1
        if not counts[one]:
            del counts[one]


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


class Settler:
    def __init__(self, tiers: Tiers, lost: Callable[[str, int], None]) -> None:
        """`lost` is told of outcomes that the cold store refused because the lease had moved on."""
        self._tiers = tiers
        self._warm = tiers.warm
        self._cold = tiers.cold
        self._hand_over = tiers.hand_over
        self._failover = tiers.failover
        self._lost = lost
        self._to_inbox, self._inbox = trio.open_memory_channel[Concluded](INBOX)
        self._left: deque[Concluded] = deque()
        """Outcomes of tasks that were cancelled while the inbox was full: at most one per lease.
        They are recorded after those in the inbox."""
        self._rows: Counter[bytes] = Counter()
        """How many outcomes per row of the cold store are not recorded yet."""
        self._locks: Counter[bytes] = Counter()
        """The same by the lock under which the row is leased."""

    @property
    def unrecorded_rows(self) -> set[bytes]:
        return set(self._rows)

    def expect(self, batch: Sequence[Concluded]) -> None:
        """Counts outcomes as unrecorded from now on; `take` or `leave` must follow."""
        for one in batch:
            self._tiers.states.of(one.queue).unrecorded += one.items
        self._rows.update(rows_of(batch))
        self._locks.update(locks_of(batch))

    async def take(self, batch: deque[Concluded]) -> None:
        """Moves outcomes from `batch` to the inbox one by one, waiting while the inbox is full."""
        while batch:
            try:
                self._to_inbox.send_nowait(batch[0])
            except trio.WouldBlock:
                await self._to_inbox.send(batch[0])
            batch.popleft()

    def leave(self, batch: Iterable[Concluded]) -> None:
        """Keeps the outcomes of a cancelled task: their leases have ended, so no other task would
        report them."""
        for one in batch:
            try:
                self._to_inbox.send_nowait(one)
            except trio.WouldBlock:
                self._left.append(one)

    def close(self) -> None:
        """Nothing is settled after this call."""
        self._to_inbox.close()

    async def run(self) -> None:
        """Runs until `close` and until earlier outcomes are recorded or held by the failover."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._failover.run)
            nursery.start_soon(self._sync)
            nursery.start_soon(self._keep_locks)
            async for concluded in self._inbox:
                batch = [concluded]
                with suppress(trio.WouldBlock, trio.EndOfChannel):
                    while len(batch) < AT_ONCE_MAX:
                        batch.append(self._inbox.receive_nowait())
                while batch:
                    try:
                        await self._record(batch, nursery)
                    finally:
                        self._forget(batch)
                    batch = [self._left.popleft() for _ in range(min(len(self._left), AT_ONCE_MAX))]
            nursery.cancel_scope.cancel()

    def _forget(self, batch: list[Concluded]) -> None:
        """These outcomes are recorded, or held by the failover."""
        for concluded in batch:
            self._tiers.states.of(concluded.queue).unrecorded -= concluded.items
        for queue in {concluded.queue for concluded in batch}:
            self._tiers.wake(queue)

    async def _sync(self) -> None:
        """Makes what the cold store has written durable, once per second."""
        while True:
            await trio.sleep(SYNC_S)
            # The next step that fails logs it, where it matters.
            with suppress(StoreUnavailable):
                await self._cold.sync()

    async def _keep_locks(self) -> None:
        """Renews the leases of rows whose outcome the cold store does not take: what was delivered
        must not be due again before that is recorded."""
        while True:
            await trio.sleep(KEEP_S)
            if self._locks:
                with suppress(StoreUnavailable):
                    await self._cold.renew(list(self._locks), 3 * KEEP_S)

    async def _record(self, batch: list[Concluded], nursery: trio.Nursery) -> None:
        of_cold = [c for c in batch if isinstance(c.slice.run.owner, InCold)]
        if of_cold:
            await self._record_rows(of_cold)
        of_journal = [c for c in batch if isinstance(c.slice.run.owner, InJournal)]
        later: list[Slice] = []
        dead: list[Slice] = []
        for concluded in of_journal:
            again, stays = concluded.conclusion.again, concluded.stays
            later += [slice_ for slice_ in again if slice_ not in stays]
            dead += concluded.conclusion.dead
        moves: list[Reply[bool]] = []
        if later:
            moves += await self._hand_over.give(later, self._enter_again, is_dead=False)
        if dead:
            moves += await self._hand_over.give(dead, self._enter_again, is_dead=True)
        replies = [c.reply for c in of_journal if c.reply is not None]
        if replies:
            nursery.start_soon(tell, replies, moves)

    async def _record_rows(self, batch: list[Concluded]) -> None:
        """Records outcomes of the cold store's own rows in one transaction."""
        outcomes = [row_outcome(c.slice, c.conclusion) for c in batch]
        is_durable = any(c.reply is not None for c in batch)

        async def again() -> None:
            answers = await self._cold.settle(outcomes, is_durable=is_durable)
            for concluded, ok in zip(batch, answers, strict=True):
                if not ok:
                    self._lost(concluded.queue, 1)
            self._told(batch, answers)
            for queue in {c.queue for c in batch}:
                await self._warm.recorded(queue, [c.token for c in batch if c.queue == queue])
            for queue in {c.queue for c in batch if c.conclusion.again}:
                self._tiers.wake(queue)

        try:
            await again()
        except StoreUnavailable:
            slices = [replace(c.slice, bits=concluded_bits(c)) for c in batch]
            size = sum(slice_.bytes for slice_ in slices)

            async def let_go() -> None:
                self._warm.unrecorded([c.token for c in batch])
                await self._enter_again(slices)
                self._told(batch, [False] * len(batch))

            await self._failover.hold(Held(size, again, let_go))

    def _told(self, batch: Sequence[Concluded], answers: Sequence[bool]) -> None:
        """The cold store has recorded these outcomes, or never will."""
        for concluded, is_recorded in zip(batch, answers, strict=True):
            if concluded.reply is not None:
                concluded.reply.put(is_recorded)
        _subtract(self._rows, rows_of(batch))
        _subtract(self._locks, locks_of(batch))

    async def _enter_again(self, slices: Sequence[Slice]) -> None:
        """Enters items whose outcome could not be recorded, to be delivered again. They were in
        warm a while ago, so they go back regardless of the limits. Items that were leased from
        cold on demand, or from a shared queue, are lent again there when their lease ends."""
        for slice_ in slices:
            queue = slice_.run.head.queue
            is_of_cold = isinstance(slice_.run.owner, InCold)
            if not (is_of_cold and self._tiers.states.is_leased_in_place(queue)):
                await self._warm.enter(queue, [slice_], NO_LIMITS)


async def tell(replies: Sequence[Reply[bool]], moves: Sequence[Reply[bool]]) -> None:
    """Answers consumers when all of these hand-overs are over."""
    is_recorded = all([await move.wait() for move in moves])
    for reply in replies:
        reply.put(is_recorded)
