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
from collections.abc import Sequence
from typing import Final

import structlog
import trio

from actors.model.failures import slices_of
from actors.model.slices import InCold, InJournal, LentRun, Slice
from actors.ports.tiers import StoreUnavailable
from actors.spooler.messages import GiveBack, RunLoan, Take, Taken
from actors.spooler.spooler import Spooler
from actors.tiers.fetch import unlocked
from actors.tiers.handover import HandOver
from actors.tiers.hysteresis import RESUME_SHARE, SCHEDULED_MS, Tier, belongs_in_cold, choose_tier
from actors.tiers.queue_tiers import IN_HAND_BYTES_MAX, TierStates

log = structlog.get_logger()

TAKE_RUNS_MAX: Final = 64
SHARED_RUNS_MAX: Final = 512
"""In a fleet every run costs two statements of PostgreSQL, which many runs share."""
TAKE_BYTES_MAX: Final = 4 * 1024 * 1024
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


class LaneBudget:
    """How many bytes one lane may borrow now, given what all lanes have borrowed."""

    def __init__(self, router: "Router", queue: str) -> None:
        self._router = router
        self._queue = queue
        self._turn_at = trio.current_time() + TURN_S

    def bytes_max(self) -> int:
        return self._router.bytes_to_take(self._queue, self._turn_at)

    def spend(self, size: int) -> None:
        self._router.in_hand_bytes += size


class Router:
    def __init__(
        self,
        states: TierStates,
        spooler: Spooler,
        hand_over: HandOver,
        in_hand_max: int = IN_HAND_BYTES_MAX,
    ) -> None:
        self._states = states
        self._warm = states.warm
        self._cold = states.cold
        self._spooler = spooler
        self._hand_over = hand_over
        self._in_hand_max = in_hand_max
        self.in_hand_bytes = 0
        """Bytes that all lanes have borrowed from the journal and not yet sent to a tier."""
        self._said_cold: set[str] = set()

    async def route(self, queue: str) -> None:
        """Runs the lane of one queue; never returns."""
        # Rows that were in cold at the start are delivered first.
        has_due = await self._cold_has_due(queue)
        self._states.of(queue).tier = Tier.COLD if has_due else Tier.WARM
        while True:
            await self._send_on(queue, await self._take(queue))

    async def _send_on(self, queue: str, taken: Taken) -> None:
        try:
            if self._is_of_cold(queue):
                await self._store(queue, [part for lease in taken.leases for part in parts(lease)])
                return
            here: list[Slice] = []
            away: list[RunLoan] = []
            for lease in taken.leases:
                if await self._must_be_cold(queue, lease):
                    away.append(lease)
                else:
                    here += parts(lease)
            if away:
                await self._send_away(away)
            await self._place(queue, here, is_spilled=taken.is_spilled)
        finally:
            self.in_hand_bytes -= taken.bytes

    async def place(self, queue: str, slices: Sequence[Slice]) -> None:
        """Sends slices that another actor has borrowed from the journal to their tier."""
        state = self._states.of(queue)
        if state.tier is None:
            state.tier = Tier.COLD
        await self._place(queue, slices, is_spilled=False)

    async def set_aside(
        self, queue: str, flow: str | None = None, positions: range | None = None
    ) -> None:
        """Moves waiting slices from warm to cold: those of a paused flow or of an old chunk."""
        if self._hand_over.cold_is_away or self._spooler.disk_is_low:
            return
        slices = await self._warm.withdraw(queue, flow, positions)
        if positions is None and (line := self._states.line(queue)) is not None:
            slices += line.withdraw(flow)
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
        while rest := (await self._warm.enter(queue, rest, self._states.limits(queue))).rest:
            await self._wait_for_room(queue, rest, trio.current_time() + AWAY_S)

    async def _take(self, queue: str) -> Taken:
        """Takes the next runs from the journal, at least one."""
        items_max = sys.maxsize
        if self._was_warm(queue) and not self._states.shares_rows:
            fill = await self._warm.fill(queue)
            items_max = self._states.limits(queue).items - fill.items
        runs_max = SHARED_RUNS_MAX if self._states.shares_rows else TAKE_RUNS_MAX
        take = Take(queue, runs_max, LaneBudget(self, queue), items_max)
        return await self._spooler.client.ask(take)

    def bytes_to_take(self, queue: str, turn_at: float) -> int:
        """How many bytes to take now; 0 if a queue in cold mode should wait for its turn."""
        room = min(TAKE_BYTES_MAX, self._in_hand_max - self.in_hand_bytes)
        if room * TURN_SHARE >= self._in_hand_max or trio.current_time() >= turn_at:
            return max(1, room)
        is_to_wait = not self._was_warm(queue) and not self._hand_over.cold_is_away
        return 0 if is_to_wait else max(1, room)

    async def _must_be_cold(self, queue: str, lease: RunLoan) -> bool:
        head = lease.run.head
        if head.flow in self._states.paused_flows(queue):
            return True
        if lease.portions or not head.due_ms:
            return False
        fill = await self._warm.fill(queue)
        return belongs_in_cold(head.due_ms, self._states.now_ms(), fill, self._states.limits(queue))

    async def _send_away(self, leases: Sequence[RunLoan]) -> None:
        """Hands the runs over to cold in one step. If cold cannot take them now, gives them back to
        the journal for a while. 4,000 runs of one item take 5 s; with one step per run they took
        33."""
        if await self._move([part for lease in leases for part in parts(lease)]):
            return
        now_ms = self._states.now_ms()
        for lease in leases:
            again_ms, due_ms = now_ms + GIVEN_BACK_MS, lease.run.head.due_ms
            if due_ms:
                again_ms = min(again_ms, max(now_ms + 1, due_ms - SCHEDULED_MS))
            await self._spooler.client.send(GiveBack((lease,), not_before_ms=again_ms))

    async def _store(self, queue: str, slices: Sequence[Slice]) -> None:
        """Hands over runs of a stream or keyed queue, retrying for as long as the queue is one.

        A full disk must drain, and this is the only way out of the journal: once everything in cold
        is claimed, the space freed by the last claim takes the next runs.
        """
        while self._is_of_cold(queue):
            is_drained = self._spooler.disk_is_low and not await self._cold_has_due(queue)
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
            if self._states.shares_rows:
                rest = await self._share(queue, rest)
                continue
            if await self._choose(queue) is Tier.WARM:
                rest = (await self._warm.enter(queue, rest, self._states.limits(queue))).rest
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
                if self._spooler.wants_the_disk:
                    now = trio.current_time()
                    await self._rest(queue, now + LEISURE * (now - began))
                return
            if not self._hand_over.cold_is_away:
                # The disk is nearly full. Delivering what is in cold comes first and frees space.
                await self._wait_for_room(queue, rest, trio.current_time() + AWAY_S)
                continue
            # Cold may be away for long: deliver what is here, regardless of what waits there.
            rest = (await self._warm.enter(queue, rest, self._states.limits(queue))).rest
            if rest:
                await self._wait_for_room(queue, rest, trio.current_time() + AWAY_S)

    async def _share(self, queue: str, slices: Sequence[Slice]) -> list[Slice]:
        """Hands slices over to the rows that daemons share; while that is not possible, enters them
        into this daemon's memory, as room comes. Returns what is left."""
        enters_warm = self._states.shares_warm and await self._fit_into_warm(queue, slices)
        if await self._move(slices, enters_warm=enters_warm):
            return []
        rest = (await self._warm.enter(queue, slices, self._states.limits(queue))).rest
        if rest:
            await self._wait_for_room(queue, rest, trio.current_time() + AWAY_S)
        return rest

    async def _fit_into_warm(self, queue: str, slices: Sequence[Slice]) -> bool:
        """Whether the shared warm queue has room for all of them; otherwise the queue goes cold, so
        that later runs do not overtake these."""
        is_warm = await self._choose(queue) is Tier.WARM
        fill, limits = await self._warm.fill(queue), self._states.limits(queue)
        items = fill.items + sum(slice_.items for slice_ in slices)
        size = fill.bytes + sum(slice_.bytes for slice_ in slices)
        fits = is_warm and items <= limits.items and size <= limits.bytes
        self._note(queue, Tier.WARM if fits else Tier.COLD)
        return fits

    async def _rest(self, queue: str, until: float) -> None:
        """Leaves the disk to other work until then, or until warm runs low."""
        with trio.move_on_at(until):
            enough = RESUME_SHARE * self._states.limits(queue).items
            while (await self._warm.fill(queue)).items > enough:
                await self._warm.wait_change(queue)

    async def _choose(self, queue: str) -> Tier:
        fill, limits = await self._warm.fill(queue), self._states.limits(queue)
        state = self._states.of(queue)
        before = state.tier
        assert before is not None
        pending = state.promoted + state.unrecorded
        tier = choose_tier(before, fill, pending, limits, cold_has_due=False)
        if before is Tier.COLD and tier is Tier.WARM:
            # Ask cold only now, when the answer matters. Meanwhile the promoter may have
            # entered more; what it has acquired comes first.
            has_due = await self._cold_has_due(queue) or state.promoted > 0
            fill = await self._warm.fill(queue)
            pending = state.promoted + state.unrecorded
            tier = choose_tier(before, fill, pending, limits, cold_has_due=has_due)
            self._note(queue, tier)
        return tier

    def _was_warm(self, queue: str) -> bool:
        return self._states.of(queue).tier is Tier.WARM and not self._is_of_cold(queue)

    def _is_of_cold(self, queue: str) -> bool:
        """Whether all runs that the journal holds of the queue go to cold."""
        is_keyed = self._states.catalogue.settings_of(queue).unique != "off"
        return is_keyed or self._states.is_stream(queue)

    def _note(self, queue: str, tier: Tier) -> None:
        self._states.of(queue).tier = tier
        if tier is Tier.COLD and queue not in self._said_cold:
            self._said_cold.add(queue)
            log.info("router.went_cold", queue=queue)
        elif tier is Tier.WARM and queue in self._said_cold:
            self._said_cold.remove(queue)
            log.info("router.went_warm", queue=queue)

    async def _wait_for_room(self, queue: str, rest: Sequence[Slice], until: float) -> None:
        """Returns when the queue's warm fill has fallen, or at that time."""
        state = self._states.of(queue)
        state.routed = sum(slice_.items for slice_ in rest)
        try:
            with trio.move_on_at(until):
                await self._warm.wait_change(queue)
        finally:
            state.routed = 0

    async def _cold_has_due(self, queue: str) -> bool:
        if self._hand_over.cold_is_away:
            # A server that hangs would use up its whole deadline again.
            return True
        try:
            outlook = await self._cold.outlook(queue, self._states.paused_flows(queue))
            while (acquired := self._states.of(queue).acquired) is not None:
                # Rows that are no longer due in cold may be on their way to warm.
                await acquired.wait()
                outlook = await self._cold.outlook(queue, self._states.paused_flows(queue))
        except StoreUnavailable:
            return True
        return outlook.has_due

    async def _move(
        self, slices: Sequence[Slice], *, is_drained: bool = False, enters_warm: bool = False
    ) -> bool:
        """Hands slices over to cold; False if that is not possible now. `is_drained`: do it even if
        the disk is nearly full."""
        if self._hand_over.cold_is_away or (self._spooler.disk_is_low and not is_drained):
            return False
        try:
            await self._hand_over.move(slices, enters_warm=enters_warm)
        except StoreUnavailable:
            return False
        return True


def parts(lease: RunLoan) -> list[Slice]:
    """The slices of a lent run that are not delivered yet."""
    return slices_of(lent(lease), lease.done, lease.portions)


def lent(lease: RunLoan) -> LentRun:
    run = lease.run
    return LentRun(run.head, run.data, InJournal(lease.token, run.position))
