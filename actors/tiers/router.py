"""The router: takes a queue's runs from the journal, in order, and sends each to a tier.

One lane of work a queue (`route`), so that a queue whose tiers are full waits alone. A run goes to
warm as long as there is room; at the limit the queue goes cold, and stays so until warm has room
again and cold has nothing due left (actors/tiers/hysteresis.py). What is due later than a minute,
or belongs to a paused flow, goes to cold by itself. So does everything of a queue that consumers
read as a stream (actors/tiers/streams.py), or whose keys are unique (what was staged is decided on
in cold): nothing of it enters warm, even while cold is away.

It owns nothing: runs are borrowed from the journal and handed over or entered. What all lanes hold
together has one limit; past it a queue that goes to cold waits for its turn, and one that does not
takes run by run. While the cold store is away, or the disk has little room left,
overflow stays in the journal, and what is in hand enters warm as room comes.

A queue does not go cold the moment it is full: workers that keep up make room within milliseconds,
and a detour over the disk would cost more than it gains. It does so after `PATIENCE_S`, or at
once when the journal's backlog of the queue is more than what is kept in memory.

On cancel it lets go of everything, and the journal lends it again in its next life.
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
"""Of all queues together, and beyond it one run of each."""
TURN_S: Final = 0.2
"""A queue that goes to cold waits so long for others to be done. Transactions of a few megabytes
cost half as much a run as those of one run."""
TURN_SHARE: Final = 8
"""A turn is an eighth of the limit at least."""
PATIENCE_S: Final = 0.05
GIVEN_BACK_MS: Final = 5000
LEISURE: Final = 2
"""While pushes come in and the journal has room, overflow rests that many times as long as it has
worked: 0.9 to 1.3 M items a second are taken into a queue that nobody drains, without it 0.56."""
AWAY_S: Final = 1.0
"""While cold cannot be used, it is looked at again that often."""


class Routing:
    """What router and promoter know of each other."""

    def __init__(self) -> None:
        self.tiers: dict[str, Tier] = {}
        self.routed: Counter[str] = Counter()
        """Items that the router has in hand for warm, by queue."""
        self.lines: dict[str, Promotion] = {}
        """What the promoter has in hand for warm, by queue."""
        self.unrecorded: Counter[str] = Counter()
        """Items that have left warm and of which the settler has still to tell the owner. They
        count as warm: a crash delivers them again, and there must not be more of them."""
        self.in_hand_bytes = 0
        """What the router has taken from the journal and not sent anywhere yet."""
        self.acquiring: dict[str, trio.Event] = {}
        """Queues whose runs the promoter is just taking from cold, until it has them."""
        self.streams: set[str] = set()
        """Queues whose consumers claim from cold: all of them goes there, and stays."""

    def promoted(self, queue: str) -> int:
        """Items that the promoter has in hand."""
        line = self.lines.get(queue)
        return 0 if line is None else line.items


@dataclass(slots=True, eq=False)
class Taken:
    """What the journal has lent at one time."""

    leases: Sequence[Lease] = ()
    is_spilled: bool = False
    """More waits on disk."""

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
        """The lane of work of one queue; never returns."""
        # What an earlier life left in cold comes first.
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
        """Sends slices that somebody else has borrowed from the journal to where they belong."""
        self._routing.tiers.setdefault(queue, Tier.COLD)
        await self._place(queue, slices, is_spilled=False)

    async def set_aside(
        self, queue: str, flow: str | None = None, positions: range | None = None
    ) -> None:
        """Moves what waits in warm to cold: of a flow that was paused, or of an old chunk."""
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
                # They are still ours, and nobody else would bring them back.
                await self._put_back(queue, of_cold)
                raise

    async def _put_back(self, queue: str, slices: Sequence[Slice]) -> None:
        """Back into warm, as room comes."""
        rest = list(slices)
        while rest := (await self._warm.enter(queue, rest, self._limits(queue))).rest:
            await self._wait_for_room(queue, rest, trio.current_time() + AWAY_S)

    async def _take(self, queue: str) -> Taken:
        """The next runs, at least one."""
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
        """Now; 0 for a queue that goes to cold and had better wait for its turn."""
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
        """To cold, all in one step; where that is not possible now, back to the journal for a
        while. 4,000 runs of one item took 33 s when each had a step of its own, and take 5."""
        if await self._move([part for lease in leases for part in parts(lease)]):
            return
        now_ms = self._now_ms()
        for lease in leases:
            again_ms, due_ms = now_ms + GIVEN_BACK_MS, lease.run.head.due_ms
            if due_ms:
                again_ms = min(again_ms, max(now_ms + 1, due_ms - SCHEDULED_MS))
            await self._spooler.send(GiveBack((lease,), not_before_ms=again_ms))

    async def _store(self, queue: str, slices: Sequence[Slice]) -> None:
        """Of a stream, or a keyed queue: to cold, however long that takes, as long as it is one.

        A full disk must drain, and this is the only way out of the journal: where cold has nothing
        more to claim, the room that the last claim has left there takes the next runs.
        """
        while self._is_of_cold(queue):
            is_drained = self._disk_is_low() and not await self._cold_has_due(queue)
            if await self._move(slices, is_drained=is_drained):
                return
            await trio.sleep(AWAY_S)
        await self._place(queue, slices, is_spilled=False)

    async def _place(self, queue: str, slices: Sequence[Slice], *, is_spilled: bool) -> None:
        """Sends slices to where they belong now, all of them, whatever it takes."""
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
                # What does not fit is as good as a limit reached, also where there is room that
                # is too small, or that the memory of all queues takes away.
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
                # The disk has little room. What is in cold comes first, and makes some.
                await self._wait_for_room(queue, rest, trio.current_time() + AWAY_S)
                continue
            # Nobody knows when cold comes back: what is here goes on, whatever is there.
            rest = (await self._warm.enter(queue, rest, self._limits(queue))).rest
            if rest:
                await self._wait_for_room(queue, rest, trio.current_time() + AWAY_S)

    async def _rest(self, queue: str, until: float) -> None:
        """Leaves the disk to others until then, unless warm runs low: then there is work to do."""
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
            # Only now is it worth asking. Meanwhile the promoter may have brought in more, and what
            # it has in hand comes first.
            has_due = await self._cold_has_due(queue) or self._routing.promoted(queue) > 0
            fill = await self._warm.fill(queue)
            pending = self._routing.promoted(queue) + self._routing.unrecorded[queue]
            tier = choose_tier(before, fill, pending, limits, cold_has_due=has_due)
            self._note(queue, tier)
        return tier

    def _was_warm(self, queue: str) -> bool:
        return self._routing.tiers[queue] is Tier.WARM and not self._is_of_cold(queue)

    def _is_of_cold(self, queue: str) -> bool:
        """Whether all that the journal has of it goes to cold."""
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
        """Returns when the queue's warm has become emptier, or at that time."""
        self._routing.routed[queue] = sum(slice_.items for slice_ in rest)
        try:
            with trio.move_on_at(until):
                await self._warm.wait_change(queue)
        finally:
            del self._routing.routed[queue]

    async def _cold_has_due(self, queue: str) -> bool:
        if self._hand_over.cold_is_away:
            # A server that hangs would take its whole deadline to say so again.
            return True
        try:
            outlook = await self._cold.outlook(queue, self._paused_flows(queue))
            while (acquired := self._routing.acquiring.get(queue)) is not None:
                # What is no longer due may be on its way to warm, and not there yet.
                await acquired.wait()
                outlook = await self._cold.outlook(queue, self._paused_flows(queue))
        except StoreUnavailable:
            return True
        return outlook.has_due

    async def _move(self, slices: Sequence[Slice], *, is_drained: bool = False) -> bool:
        """Hands slices over to cold; False if that is not possible now. `is_drained`: even if the
        disk has little room."""
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
    """A part of a row that was acquired, as a row that was not."""
    run, owner = slice_.run, slice_.run.owner
    assert isinstance(owner, InCold)
    row = NewRow(
        new_run_id(), run.head, run.data, slice_.bits, slice_.attempt, slice_.due_ms, slice_.errors
    )
    return RowOutcome(owner.row, owner.lock, 0, (row,), slice_.bits)


def parts(lease: Lease) -> list[Slice]:
    """What of a lent run is still to be delivered."""
    return slices_of(lent(lease), lease.done, lease.portions)


def lent(lease: Lease) -> LentRun:
    run = lease.run
    return LentRun(run.head, run.data, InJournal(lease.token, run.position))
