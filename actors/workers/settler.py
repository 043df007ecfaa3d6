"""The settler: records outcomes that take more than a message to the spooler.

These are outcomes of rows of the cold store, many in one transaction, and journal items that change
their owner: dead letters, and retries due in more than a minute. They come from settlement
(actors/workers/settlement.py), and their leases have ended, so no other task would report them. A
task that is cancelled while the inbox is full therefore leaves its outcomes here.

They are durable within a second, when the cold store syncs. On drain all of them are recorded
before `run` returns. On cancel they are lost, and the owners deliver again. Outcomes that the cold
store does not take go to the failover; if the failover drops one, its items enter warm again.
"""

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import trio

from actors.model.slices import InCold, InJournal, Slice
from actors.ports.presence import Presence
from actors.ports.tiers import ColdQueue, Limits, StoreUnavailable, WarmQueue
from actors.tiers.failover import Failover, Held
from actors.tiers.handover import HandOver
from actors.workers.outcomes import Concluded, concluded_bits, row_outcome, rows_of

NO_LIMITS: Final = Limits(sys.maxsize, sys.maxsize)
INBOX: Final = 256
AT_ONCE_MAX: Final = 256
SYNC_S: Final = 1.0


class Settler:
    def __init__(
        self,
        warm: WarmQueue,
        cold: ColdQueue,
        hand_over: HandOver,
        failover: Failover,
        wake_promoter: Callable[[str], None],
        unrecorded: Counter[str],
        presence: Presence,
        lost: Callable[[str, int], None],
    ) -> None:
        """`unrecorded` counts, per queue, items that have left warm and are not recorded yet.
        `lost` is told of outcomes that the cold store refused because the lease had moved on."""
        self._warm = warm
        self._cold = cold
        self._hand_over = hand_over
        self._failover = failover
        self._wake_promoter = wake_promoter
        self._unrecorded = unrecorded
        self._presence = presence
        self._lost = lost
        self._to_inbox, self._inbox = trio.open_memory_channel[Concluded](INBOX)
        self._left: deque[Concluded] = deque()
        """Outcomes of tasks that were cancelled while the inbox was full: at most one per lease.
        They are recorded after those in the inbox."""
        self._rows: Counter[bytes] = Counter()
        """How many outcomes per row of the cold store are not recorded yet."""

    @property
    def unrecorded_rows(self) -> set[bytes]:
        return set(self._rows)

    def expect(self, batch: Sequence[Concluded]) -> None:
        """Counts outcomes as unrecorded from now on; `take` or `leave` must follow."""
        for one in batch:
            self._unrecorded[one.queue] += one.items
        self._rows.update(rows_of(batch))

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

    def _forget(self, batch: list[Concluded]) -> None:
        """These outcomes are recorded, or held by the failover."""
        for concluded in batch:
            self._unrecorded[concluded.queue] -= concluded.items
        for queue in {concluded.queue for concluded in batch}:
            self._wake_promoter(queue)

    async def _sync(self) -> None:
        """Makes what the cold store has written durable, once per second."""
        while True:
            await trio.sleep(SYNC_S)
            # The next step that fails logs it, where it matters.
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
        """Records outcomes of the cold store's own rows in one transaction."""
        outcomes = [row_outcome(c.slice, c.conclusion) for c in batch]

        async def again() -> None:
            for concluded, ok in zip(batch, await self._cold.settle(outcomes), strict=True):
                if not ok:
                    self._lost(concluded.queue, 1)
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
        """The cold store has recorded these outcomes, or never will."""
        for row in rows_of(batch):
            self._rows[row] -= 1
            if not self._rows[row]:
                del self._rows[row]

    async def _enter_again(self, slices: Sequence[Slice]) -> None:
        """Enters items whose outcome could not be recorded, to be delivered again. They were in
        warm a while ago, so they go back regardless of the limits."""
        for slice_ in slices:
            await self._warm.enter(slice_.run.head.queue, [slice_], NO_LIMITS)
