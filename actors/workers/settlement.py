"""Settlement: ends leases and reports the conclusions about their items to the owners.

The lease ends first: from then on the outcome is certain, and no other worker can report one. An
expired lease concludes nothing: another worker has the items, or will. Then the spooler is told at
once of journal items that were delivered, or that failed and wait in warm for their next try. All
other outcomes need more time and go to the settler (actors/workers/settler.py).

Outcomes of the daemon's own workers (`settle`) are durable within a second after their owners have
recorded them. Those of consumers (`record`) are synced at once: all that arrive during one sync
share the next one, and a `Recording` tells when that is done. On drain all conclusions are recorded
before `run` returns. On cancel they are lost, and the owners deliver again. The history gets
delivered journal items after their owner was told.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

import structlog
import trio

from actors.model.failures import RetryNote
from actors.model.outcomes import Conclusion
from actors.model.runs import Fate
from actors.model.slices import InCold, InJournal, Slice, ranges
from actors.observers.batch import Batch, Observer
from actors.observers.events import Sending
from actors.ports.tiers import Ending, Leased
from actors.spooler.messages import Reply, Retried, Settle, Settled
from actors.tiers.hysteresis import belongs_in_cold
from actors.tiers.tiers import Tiers
from actors.workers.recording import Recording
from actors.workers.settler import Concluded, Settler

log = structlog.get_logger()

REST_S: Final = 1.0
"""How often messages that the spooler could not take are sent again."""


class Settlement:
    def __init__(self, tiers: Tiers, observers: Observer) -> None:
        self._tiers = tiers
        self._warm = tiers.warm
        self._spooler = tiers.spooler.client
        self._observers = observers
        self._settler = Settler(tiers, self._count_stale)
        self._untold: deque[Settle] = deque()
        """Messages of callers that were cancelled while the spooler's inbox was full."""
        self.stale_total = 0
        """Outcomes of leases that had expired."""

    async def settle(
        self,
        queue: str,
        leased: Sequence[Leased],
        conclusions: Sequence[Conclusion],
        sending: Sending | None = None,
    ) -> list[bool]:
        """Ends leases with their conclusions. False: the lease had expired, nothing changed.

        `sending` is for the event log; None: the outcome comes from a consumer."""
        return await self._settle(queue, list(zip(leased, conclusions, strict=True)), sending)

    async def record(
        self, queue: str, leased: Sequence[Leased], conclusions: Sequence[Conclusion]
    ) -> list[Recording]:
        """As `settle`, for a consumer that wants to know when each outcome is durable."""
        recordings = [Recording(one) for one in leased]
        pairs = list(zip(leased, conclusions, strict=True))
        answers = await self._settle(queue, pairs, None, recordings)
        for recording, is_held in zip(recordings, answers, strict=True):
            recording.is_held = is_held
        return recordings

    async def _settle(
        self,
        queue: str,
        pairs: list[tuple[Leased, Conclusion]],
        sending: Sending | None,
        recordings: Sequence[Recording | None] = (),
    ) -> list[bool]:
        endings: list[Ending] = []
        for one, what in pairs:
            stays = await self._staying(queue, one.slice, what) if what.again else ()
            endings.append(Ending(one.token, stays))
        answers = await self._warm.end(queue, endings)
        recordings = recordings or [None] * len(pairs)
        ended = zip(pairs, endings, answers, recordings, strict=True)
        await self._conclude(
            [
                Concluded(queue, one.slice, what, ending.again, one.token, recording)
                for (one, what), ending, is_ours, recording in ended
                if is_ours
            ]
        )
        self._count_stale(queue, answers.count(False))
        self._observers.settled(Batch(queue, pairs, answers, self._tiers.now_ms(), sending))
        return answers

    async def _conclude(self, ended: Sequence[Concluded]) -> None:
        """Reports the outcomes of leases that ended to the owners."""
        noted: Reply[list[bool]] | None = None
        outcomes: list[Settled | Retried] = []
        for one in ended:
            if isinstance(one.slice.run.owner, InJournal):
                first = len(outcomes)
                outcomes += journal_outcomes(one.slice, one.conclusion.delivered, one.stays)
                if one.recording is not None:
                    noted = noted or Reply()
                    one.recording.note(noted, first, len(outcomes))
        slow = deque([one for one in ended if not is_quick(one.slice, one.conclusion, one.stays)])
        if slow:
            self._settler.expect(slow)
        for one in slow:
            if one.recording is not None:
                one.recording.moved = Reply()
        try:
            if outcomes:
                await self._tell_spooler(Settle(tuple(outcomes), noted))
            if slow:
                await self._settler.take(slow)
        except trio.Cancelled:
            self._settler.leave(slow)
            raise

    @property
    def unrecorded_rows(self) -> set[bytes]:
        """Rows of the cold store with an outcome that it was not told yet: those of the settler and
        of the failover. They must not be lent again before that."""
        return self._settler.unrecorded_rows

    async def _staying(
        self, queue: str, slice_: Slice, conclusion: Conclusion
    ) -> tuple[Slice, ...]:
        """What stays in warm: untried items, and failed items of the journal that are due soon."""
        is_of_cold = isinstance(slice_.run.owner, InCold)
        fill, limits, now_ms = (
            await self._warm.fill(queue),
            self._tiers.states.limits(queue),
            self._tiers.now_ms(),
        )
        return tuple(
            again
            for again in conclusion.again
            if again.attempt == slice_.attempt
            or not (is_of_cold or belongs_in_cold(again.due_ms, now_ms, fill, limits))
        )

    async def _tell_spooler(self, message: Settle) -> None:
        """Delivered items stay delivered, even if the reporting task is cancelled now."""
        try:
            self._spooler.send_nowait(message)
        except trio.WouldBlock:
            # Wait as long as it takes: the lease has ended, so no other task will report this.
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
        """Runs until `close`; then records what is left, as far as the stores take it at once."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_rest_again)
            await self._settler.run()
            nursery.cancel_scope.cancel()
        await self._tell_rest()
        await self._tiers.failover.try_again()

    def close(self) -> None:
        """Nothing is settled after this call."""
        self._settler.close()

    async def _tell_rest_again(self) -> None:
        while True:
            await trio.sleep(REST_S)
            await self._tell_rest()


def is_quick(slice_: Slice, conclusion: Conclusion, stays: tuple[Slice, ...]) -> bool:
    """Whether no item changes its owner and no row of the cold store is involved."""
    if conclusion.dead or len(stays) < len(conclusion.again):
        return False
    return not conclusion.delivered or isinstance(slice_.run.owner, InJournal)


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
