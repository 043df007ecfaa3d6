"""Settlement: what was concluded about leased items goes to their owners, and their leases end.

The lease ends first: from then on the outcome is certain, and nobody else's. A lease that has run
out concludes nothing: somebody else has the items, or will. Then the spooler is told, at once, of
journal items that were delivered, or have failed and wait in warm for their next try. The rest
takes its time and is the settler's (actors/workers/settler.py).

Durable when: the owners say so. On drain what was concluded is recorded before `run` returns. On
cancel it is lost, and the owners deliver again. History hears of journal items that were delivered
when their owner has been told. Outcomes of another daemon's runs go to its mailbox with the end of
the lease (actors/workers/posts.py).
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

import structlog
import trio

from actors.model.outcomes import Conclusion
from actors.model.slices import Abroad, InCold, InJournal, Slice
from actors.observers.events import Sending
from actors.observers.observers import Batch, Observers
from actors.ports.presence import Presence
from actors.ports.tiers import ColdQueue, Ending, Leased, Limits, WarmQueue
from actors.spooler.messages import Retried, Settle, Settled, SpoolerMessage
from actors.tiers.failover import Failover
from actors.tiers.handover import HandOver
from actors.tiers.hysteresis import belongs_in_cold
from actors.workers.outcomes import Concluded, ending, is_quick, journal_outcomes
from actors.workers.settler import AT_ONCE_MAX, INBOX, NO_LIMITS, Settler

__all__ = ["AT_ONCE_MAX", "INBOX", "NO_LIMITS", "Concluded", "Settlement"]

log = structlog.get_logger()

REST_S: Final = 1.0
"""How often what the spooler could not be told is told again."""


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
        observers: Observers,
        presence: Presence | None = None,
    ) -> None:
        """`unrecorded` counts, by queue, the items that have left warm and are still to be
        recorded: others read it."""
        self._limits = limits
        self._warm = warm
        self._spooler = spooler
        self._failover = failover
        self._now_ms = now_ms
        self._observers = observers
        self._settler = Settler(
            warm,
            cold,
            hand_over,
            failover,
            wake_promoter,
            unrecorded,
            presence or Presence(),
            self._count_stale,
        )
        self._untold: deque[Settle] = deque()
        """What somebody was cancelled with while the spooler's inbox was full."""
        self.stale_total = 0
        """Outcomes of leases that had run out."""

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
        endings: list[Ending] = []
        for one, what in pairs:
            stays = await self._staying(queue, one.slice, what) if what.again else ()
            endings.append(ending(one, what, stays))
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
        self._observers.settled(Batch(queue, pairs, answers, self._now_ms(), sending))
        return answers

    async def conclude(
        self,
        ended: Sequence[Concluded],
        recorded: Callable[[list[bool]], None] | None = None,
    ) -> None:
        """Leases have ended, here or on another host: the owners are told, in their turn.

        `recorded` is called when what the journal is told at once is durable."""
        outcomes: list[Settled | Retried] = []
        for one in ended:
            if isinstance(one.slice.run.owner, InJournal):
                outcomes += journal_outcomes(one.slice, one.conclusion.delivered, one.stays)
        slow = deque([one for one in ended if not is_quick(one.slice, one.conclusion, one.stays)])
        if slow:
            self._settler.expect(slow)
        try:
            if outcomes or recorded is not None:
                await self._tell_spooler(Settle(tuple(outcomes), recorded))
            if slow:
                await self._settler.take(slow)
        except trio.Cancelled:
            self._settler.leave(slow)
            raise

    @property
    def unrecorded_rows(self) -> set[bytes]:
        """Rows of the cold store of which something has become that it was not told yet: the
        settler's, and what the failover holds. Nobody may lend them anew before."""
        return self._settler.unrecorded_rows

    async def _staying(
        self, queue: str, slice_: Slice, conclusion: Conclusion
    ) -> tuple[Slice, ...]:
        """What stays in warm: what was not tried, and what the journal keeps for a try soon."""
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

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until `close`; then what is left is recorded, as far as that is possible at once."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_rest_again)
            await self._settler.run()
            nursery.cancel_scope.cancel()
        await self._tell_rest()
        await self._failover.try_again()

    def close(self) -> None:
        """Nothing more is settled."""
        self._settler.close()

    async def _tell_rest_again(self) -> None:
        while True:
            await trio.sleep(REST_S)
            await self._tell_rest()
