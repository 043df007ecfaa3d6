"""The settler: records outcomes that take their time.

Outcomes of rows of the cold store, many in one transaction, and journal items that change their
owner: dead letters, and retries due later than a minute. They come from settlement
(actors/workers/settlement.py), whose leases have ended: nobody else would say it again. So whoever
is cancelled while the inbox is full leaves them here all the same.

Durable when: the cold store says so, within a second. On drain all that came is recorded before
`run` returns. On cancel it is lost, and the owners deliver again. What the cold store does not take
is the failover's; what that lets go enters warm again.
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
        """`unrecorded` counts, by queue, the items that have left warm and are still to be
        recorded. `lost` is told of outcomes that the cold store refused: the lease had moved on."""
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
        """What somebody was cancelled with while the inbox was full: no more than there were
        leases. They are taken behind what is in the inbox."""
        self._rows: Counter[bytes] = Counter()
        """How many outcomes of each row of the cold store are still to be recorded."""

    @property
    def unrecorded_rows(self) -> set[bytes]:
        return set(self._rows)

    def expect(self, batch: Sequence[Concluded]) -> None:
        """These will be taken, or left: they count as unrecorded from now on."""
        for one in batch:
            self._unrecorded[one.queue] += one.items
        self._rows.update(rows_of(batch))

    async def take(self, batch: deque[Concluded]) -> None:
        """Takes one after the other out of `batch`, and waits while there is no room."""
        while batch:
            try:
                self._to_inbox.send_nowait(batch[0])
            except trio.WouldBlock:
                await self._to_inbox.send(batch[0])
            batch.popleft()

    def leave(self, batch: Iterable[Concluded]) -> None:
        """Whoever says it is cancelled, and the leases have ended: nobody else would say it."""
        for one in batch:
            try:
                self._to_inbox.send_nowait(one)
            except trio.WouldBlock:
                self._left.append(one)

    def close(self) -> None:
        """Nothing more is settled."""
        self._to_inbox.close()

    async def run(self) -> None:
        """Until `close`, and what came before it is recorded, or the failover's."""
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
        """These are recorded, or the failover's."""
        for concluded in batch:
            self._unrecorded[concluded.queue] -= concluded.items
        for queue in {concluded.queue for concluded in batch}:
            self._wake_promoter(queue)

    async def _sync(self) -> None:
        """What the cold store has written, it makes durable within a second."""
        while True:
            await trio.sleep(SYNC_S)
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
