"""Routes the runs of each queue from the journal to a tier, in order.

Every queue has its own lane (`route`), so a full queue delays no other. A run enters warm while
there is room. When warm is full, the queue switches to cold and stays there until warm has room
again and cold has nothing due (actors/tiers/hysteresis.py decides). Runs due in more than a minute,
runs of paused flows, and all runs of stream queues (actors/tiers/streams.py) or keyed queues go
straight to cold. Runs of stream and keyed queues never enter warm, even while cold is away.

The router owns nothing: it borrows runs from the journal and hands them over or enters them into
warm. All lanes together borrow at most IN_HAND_BYTES_MAX. Above that, a queue in cold mode waits
for its turn and any other queue takes one run at a time. While the cold store is unreachable or the
disk is nearly full, overflow stays in the journal, and runs already borrowed enter warm as room
comes.

A full queue does not go cold at once: workers often free a slot within milliseconds, and a detour
over the disk costs more. It waits PATIENCE_S first, unless its backlog already exceeds what is kept
in memory.

On cancel it drops what it borrowed; the journal lends it again after the restart.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from actors.config.queue import QueueSettings
from actors.model.failures import slices_of
from actors.model.slices import InCold, InJournal, LentRun, Slice
from actors.ports.tiers import (
    ColdQueue,
    Limits,
    NewRow,
    RowOutcome,
    StoreUnavailable,
    WarmQueue,
    limits_of,
)
from actors.spooler.messages import GiveBack, Lease, SpoolerMessage, Take
from actors.tiers.handover import HandOver
from actors.tiers.hysteresis import RESUME_SHARE, SCHEDULED_MS, Tier, belongs_in_cold, choose_tier
from actors.tiers.line import Promotion
from forebay.ids import new_run_id

log = structlog.get_logger()

TAKE_RUNS_MAX: Final = 64
TAKE_BYTES_MAX: Final = 4 * 1024 * 1024
IN_HAND_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes that all lanes together may borrow. Above it each lane may still borrow one run."""
TURN_S: Final = 0.2
"""How long a queue in cold mode waits for other lanes to finish. Transactions of a few megabytes
cost half as much per run as transactions of one run."""
TURN_SHARE: Final = 8
"""A turn takes at least one eighth of the limit."""
PATIENCE_S: Final = 0.05
GIVEN_BACK_MS: Final = 5000
LEISURE: Final = 2
"""While pushes arrive and the journal has room, overflow pauses this many times as long as it has
worked. A queue without workers then accepts 0.9 to 1.3 M items per second; without pauses 0.56."""
AWAY_S: Final = 1.0
"""How often an unusable cold store is tried again."""


class Routing:
    """State that the router and the promoter share."""

    def __init__(self) -> None:
        self.tiers: dict[str, Tier] = {}
        self.routed: Counter[str] = Counter()
        """Items per queue that the router has borrowed for warm and not entered yet."""
        self.lines: dict[str, Promotion] = {}
        """Slices per queue that the promoter has acquired for warm and not entered yet."""
        self.unrecorded: Counter[str] = Counter()
        """Items that have left warm but are not recorded at their owner yet. They count as warm: a
        crash delivers them again, so their number must stay bounded."""
        self.in_hand_bytes = 0
        """Bytes that the router has taken from the journal and not yet sent to a tier."""
        self.acquiring: dict[str, trio.Event] = {}
        """Queues whose rows the promoter is acquiring from cold right now."""
        self.streams: set[str] = set()
        """Queues whose consumers claim from cold: all their runs go there and stay there."""

    def promoted(self, queue: str) -> int:
        """Items that the promoter has acquired and not entered yet."""
        line = self.lines.get(queue)
        return 0 if line is None else line.items


@dataclass(slots=True, eq=False)
class Taken:
    """The runs that the journal lent in one answer."""

    leases: Sequence[Lease] = ()
    is_spilled: bool = False
    """More runs of the queue wait on disk."""

    @property
    def bytes(self) -> int:
        return sum(len(lease.run.data) for lease in self.leases)


class Router:
    def __init__(
        self,
        routing: Routing,
        spooler: trio.MemorySendChannel[SpoolerMessage],
        warm: WarmQueue,
        cold: ColdQueue,
        hand_over: HandOver,
        queue_settings: Callable[[str], QueueSettings],
        paused_flows: Callable[[str], frozenset[str]],
        disk_is_low: Callable[[], bool],
        spool_is_busy: Callable[[], bool],
        now_ms: Callable[[], int],
        in_hand_max: int = IN_HAND_BYTES_MAX,
    ) -> None:
        self._in_hand_max = in_hand_max
        self._routing = routing
        self._spooler = spooler
        self._warm = warm
        self._cold = cold
        self._hand_over = hand_over
        self._queue_settings = queue_settings
        self._paused_flows = paused_flows
        self._disk_is_low = disk_is_low
        self._spool_is_busy = spool_is_busy
        self._now_ms = now_ms
        self._said_cold: set[str] = set()

    async def route(self, queue: str) -> None:
        """Runs the lane of one queue; never returns."""
        # Rows that were in cold at the start are delivered first.
        has_due = await self._cold_has_due(queue)
        self._routing.tiers[queue] = Tier.COLD if has_due else Tier.WARM
        while True:
            await self._send_on(queue, await self._take(queue))

    async def _send_on(self, queue: str, taken: Taken) -> None:
        try:
            if self._is_of_cold(queue):
                await self._store(queue, [part for lease in taken.leases for part in parts(lease)])
                return
            here: list[Slice] = []
            away: list[Lease] = []
            for lease in taken.leases:
                if await self._must_be_cold(queue, lease):
                    away.append(lease)
                else:
                    here += parts(lease)
            if away:
                await self._send_away(away)
            await self._place(queue, here, is_spilled=taken.is_spilled)
        finally:
            self._routing.in_hand_bytes -= taken.bytes

    async def place(self, queue: str, slices: Sequence[Slice]) -> None:
        """Sends slices that another actor has borrowed from the journal to their tier."""
        self._routing.tiers.setdefault(queue, Tier.COLD)
        await self._place(queue, slices, is_spilled=False)

    async def set_aside(
        self, queue: str, flow: str | None = None, positions: range | None = None
    ) -> None:
        """Moves waiting slices from warm to cold: those of a paused flow or of an old chunk."""
        if self._hand_over.cold_is_away or self._disk_is_low():
            return
        slices = await self._warm.withdraw(queue, flow, positions)
        if positions is None and queue in self._routing.lines:
            slices += self._routing.lines[queue].withdraw(flow)
        of_journal = [s for s in slices if isinstance(s.run.owner, InJournal)]
        if of_journal and not await self._move(of_journal):
            await self._place(queue, of_journal, is_spilled=False)
        of_cold = [s for s in slices if isinstance(s.run.owner, InCold)]
        if of_cold:
            try:
                await self._cold.settle([unlocked(s) for s in of_cold])
            except StoreUnavailable:
                # This daemon still holds their lock, so no other daemon would bring them back.
                await self._put_back(queue, of_cold)
                raise

    async def _put_back(self, queue: str, slices: Sequence[Slice]) -> None:
        """Enters slices into warm again, as room comes."""
        rest = list(slices)
        while rest := (await self._warm.enter(queue, rest, self._limits(queue))).rest:
            await self._wait_for_room(queue, rest, trio.current_time() + AWAY_S)

    async def _take(self, queue: str) -> Taken:
        """Takes the next runs from the journal, at least one."""
        items_max = sys.maxsize
        if self._was_warm(queue):
            fill = await self._warm.fill(queue)
            items_max = self._limits(queue).items - fill.items
        taken = Taken()
        there = trio.Event()

        def answer(leases: list[Lease], is_spilled: bool) -> None:
            taken.leases, taken.is_spilled = leases, is_spilled
            self._routing.in_hand_bytes += taken.bytes
            there.set()

        turn_at = trio.current_time() + TURN_S

        def bytes_max() -> int:
            return self._bytes_to_take(queue, turn_at)

        await self._spooler.send(Take(queue, TAKE_RUNS_MAX, bytes_max, answer, items_max))
        await there.wait()
        return taken

    def _bytes_to_take(self, queue: str, turn_at: float) -> int:
        """How many bytes to take now; 0 if a queue in cold mode should wait for its turn."""
        room = min(TAKE_BYTES_MAX, self._in_hand_max - self._routing.in_hand_bytes)
        if room * TURN_SHARE >= self._in_hand_max or trio.current_time() >= turn_at:
            return max(1, room)
        is_to_wait = not self._was_warm(queue) and not self._hand_over.cold_is_away
        return 0 if is_to_wait else max(1, room)

    async def _must_be_cold(self, queue: str, lease: Lease) -> bool:
        head = lease.run.head
        if head.flow in self._paused_flows(queue):
            return True
        if lease.portions or not head.due_ms:
            return False
        fill = await self._warm.fill(queue)
        return belongs_in_cold(head.due_ms, self._now_ms(), fill, self._limits(queue))

    async def _send_away(self, leases: Sequence[Lease]) -> None:
        """Hands the runs over to cold in one step. If cold cannot take them now, gives them back to
        the journal for a while. 4,000 runs of one item take 5 s; with one step per run they took
        33."""
        if await self._move([part for lease in leases for part in parts(lease)]):
            return
        now_ms = self._now_ms()
        for lease in leases:
            again_ms, due_ms = now_ms + GIVEN_BACK_MS, lease.run.head.due_ms
            if due_ms:
                again_ms = min(again_ms, max(now_ms + 1, due_ms - SCHEDULED_MS))
            await self._spooler.send(GiveBack((lease,), not_before_ms=again_ms))

    async def _store(self, queue: str, slices: Sequence[Slice]) -> None:
        """Hands over runs of a stream or keyed queue, retrying for as long as the queue is one.

        A full disk must drain, and this is the only way out of the journal: once everything in cold
        is claimed, the space freed by the last claim takes the next runs.
        """
        while self._is_of_cold(queue):
            is_drained = self._disk_is_low() and not await self._cold_has_due(queue)
            if await self._move(slices, is_drained=is_drained):
                return
            await trio.sleep(AWAY_S)
        await self._place(queue, slices, is_spilled=False)

    async def _place(self, queue: str, slices: Sequence[Slice], *, is_spilled: bool) -> None:
        """Sends all slices to the tier that the queue is in now; returns when none is left."""
        rest = list(slices)
        patient_until = trio.current_time() + (0 if is_spilled else PATIENCE_S)
        while rest:
            if self._is_of_cold(queue):
                await self._store(queue, rest)
                return
            if await self._choose(queue) is Tier.WARM:
                rest = (await self._warm.enter(queue, rest, self._limits(queue))).rest
                if not rest:
                    return
                # A slice that does not fit means that a limit is reached, even if the remaining
                # room is only too small or was taken by the memory cap of all queues.
            if trio.current_time() < patient_until and self._was_warm(queue):
                await self._wait_for_room(queue, rest, patient_until)
                continue
            self._note(queue, Tier.COLD)
            began = trio.current_time()
            if await self._move(rest):
                if self._spool_is_busy():
                    now = trio.current_time()
                    await self._rest(queue, now + LEISURE * (now - began))
                return
            if not self._hand_over.cold_is_away:
                # The disk is nearly full. Delivering what is in cold comes first and frees space.
                await self._wait_for_room(queue, rest, trio.current_time() + AWAY_S)
                continue
            # Cold may be away for long: deliver what is here, regardless of what waits there.
            rest = (await self._warm.enter(queue, rest, self._limits(queue))).rest
            if rest:
                await self._wait_for_room(queue, rest, trio.current_time() + AWAY_S)

    async def _rest(self, queue: str, until: float) -> None:
        """Leaves the disk to other work until then, or until warm runs low."""
        with trio.move_on_at(until):
            enough = RESUME_SHARE * self._limits(queue).items
            while (await self._warm.fill(queue)).items > enough:
                await self._warm.wait_change(queue)

    async def _choose(self, queue: str) -> Tier:
        fill, limits = await self._warm.fill(queue), self._limits(queue)
        before = self._routing.tiers[queue]
        pending = self._routing.promoted(queue) + self._routing.unrecorded[queue]
        tier = choose_tier(before, fill, pending, limits, cold_has_due=False)
        if before is Tier.COLD and tier is Tier.WARM:
            # Ask cold only now, when the answer matters. Meanwhile the promoter may have
            # entered more; what it has acquired comes first.
            has_due = await self._cold_has_due(queue) or self._routing.promoted(queue) > 0
            fill = await self._warm.fill(queue)
            pending = self._routing.promoted(queue) + self._routing.unrecorded[queue]
            tier = choose_tier(before, fill, pending, limits, cold_has_due=has_due)
            self._note(queue, tier)
        return tier

    def _was_warm(self, queue: str) -> bool:
        return self._routing.tiers[queue] is Tier.WARM and not self._is_of_cold(queue)

    def _is_of_cold(self, queue: str) -> bool:
        """Whether all runs that the journal holds of the queue go to cold."""
        return queue in self._routing.streams or self._queue_settings(queue).unique != "off"

    def _note(self, queue: str, tier: Tier) -> None:
        self._routing.tiers[queue] = tier
        if tier is Tier.COLD and queue not in self._said_cold:
            self._said_cold.add(queue)
            log.info("router.went_cold", queue=queue)
        elif tier is Tier.WARM and queue in self._said_cold:
            self._said_cold.remove(queue)
            log.info("router.went_warm", queue=queue)

    async def _wait_for_room(self, queue: str, rest: Sequence[Slice], until: float) -> None:
        """Returns when the queue's warm fill has fallen, or at that time."""
        self._routing.routed[queue] = sum(slice_.items for slice_ in rest)
        try:
            with trio.move_on_at(until):
                await self._warm.wait_change(queue)
        finally:
            del self._routing.routed[queue]

    async def _cold_has_due(self, queue: str) -> bool:
        if self._hand_over.cold_is_away:
            # A server that hangs would use up its whole deadline again.
            return True
        try:
            outlook = await self._cold.outlook(queue, self._paused_flows(queue))
            while (acquired := self._routing.acquiring.get(queue)) is not None:
                # Rows that are no longer due in cold may be on their way to warm.
                await acquired.wait()
                outlook = await self._cold.outlook(queue, self._paused_flows(queue))
        except StoreUnavailable:
            return True
        return outlook.has_due

    async def _move(self, slices: Sequence[Slice], *, is_drained: bool = False) -> bool:
        """Hands slices over to cold; False if that is not possible now. `is_drained`: do it even if
        the disk is nearly full."""
        if self._hand_over.cold_is_away or (self._disk_is_low() and not is_drained):
            return False
        try:
            await self._hand_over.move(slices)
        except StoreUnavailable:
            return False
        return True

    def _limits(self, queue: str) -> Limits:
        return limits_of(self._queue_settings(queue))


def unlocked(slice_: Slice) -> RowOutcome:
    """An acquired part of a row, as a row without a lock."""
    run, owner = slice_.run, slice_.run.owner
    assert isinstance(owner, InCold)
    row = NewRow(
        new_run_id(), run.head, run.data, slice_.bits, slice_.attempt, slice_.due_ms, slice_.errors
    )
    return RowOutcome(owner.row, owner.lock, 0, (row,), slice_.bits)


def parts(lease: Lease) -> list[Slice]:
    """The slices of a lent run that are not delivered yet."""
    return slices_of(lent(lease), lease.done, lease.portions)


def lent(lease: Lease) -> LentRun:
    run = lease.run
    return LentRun(run.head, run.data, InJournal(lease.token, run.position))
