"""The owner: this daemon's side of the runs that it has in the shared warm queue.

Four duties. It keeps them valid, so that any daemon may lease them. It reads its mail, and has
recorded what became of its runs on other hosts (actors/fleet/mailbox.py). It looks now and then
whether what it entered is still there, and enters again what is missing. And it notices that the
queue is away, back, or has forgotten everything:

    away       what is new goes through this process (actors/fleet/shared_warm.py); what was entered
               follows when nobody else can take it any more, `valid_s` after it was last kept valid
    back       outcomes first (its own that could not be told, and its mail); then what it has done
               by itself is taken out; only then is the rest valid again, and what waits in this
               process goes there too
    forgotten  everything that is still out is entered again; rows of the cold store are given back

In a new life nothing of the journal is lent before it knows what is still there: those runs are
borrowed as they are, and only the rest of their items is entered. If the queue is away then, it
waits until the last life's entries have lapsed.

Owns no run: the journal does. On cancel, whatever is out stays out, for the next life to find.
What is missing is known from one look, if the mail is read behind it: what was there and ended
before the look has a post by then. Of rows of the cold store there is no mail: two looks in a row
must miss them, and then they are given back to the store, which knows what became of them: what
this daemon has not told it yet counts as found, and what others have not, they tell between looks.

What it can't do: know what somebody on another host has in hand when the queue is lost; those
items may be delivered twice.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
import trio

from actors.fleet.entered import shrunk
from actors.fleet.mailbox import Mailbox
from actors.fleet.shared_warm import SharedWarm
from actors.model.slices import InCold, InJournal, Slice
from actors.ports.tiers import StoreUnavailable
from actors.tiers.fetch import unlocked
from actors.tiers.router import parts
from actors.tiers.tiers import Tiers
from actors.workers.settlement import NO_LIMITS, Settlement

log = structlog.get_logger()

TICKS: Final = 5
"""So often in `valid_s` runs are kept valid."""
AWAY_S: Final = 1.0
MAIL_S: Final = 0.05
MAIL_IDLE_S: Final = 1.0
VERIFY_S: Final = 30.0

Place = Callable[[str, Sequence[Slice]], Awaitable[None]]


class Owner:
    def __init__(
        self,
        shared: SharedWarm,
        tiers: Tiers,
        settlement: Settlement,
    ) -> None:
        self._tiers = tiers
        self._shared = shared
        self._remote = shared.remote
        self._spooler = tiers.spooler.client
        self._cold = tiers.cold
        self._generation = ""
        self._missing: dict[str, set[tuple[bytes, bytes]]] = {}
        """Rows of the cold store, by queue, that the last look did not find."""
        self._settlement = settlement
        self._mailbox = Mailbox(shared, self._spooler, settlement)
        self._mail = trio.Lock()
        self._looking = trio.Lock()
        self._nursery: trio.Nursery | None = None
        self._adopted: list[tuple[str, list[Slice]]] = []
        """What is to be sent on when this actor runs; no more than warm had."""

    # A new life.

    async def recover(self) -> None:
        """Before anything is lent."""
        try:
            self._generation = await self._remote.generation()
            for queue in await self._remote.mail_queues():
                await self._adopt(queue)
        except StoreUnavailable as problem:
            self._shared.lose(problem)
            log.warning("owner.waits_for_validity", seconds=self._shared.valid_s)
            await trio.sleep(self._shared.valid_s)
            for queue in self._mailbox.queues:
                await self._send_rest(queue)

    async def _adopt(self, queue: str) -> None:
        """What is not there, and no post speaks of, is nowhere: the look comes before the mail."""
        there: dict[int, int] = {}
        runs: dict[int, bytes] = {}
        for present in await self._remote.present(queue):
            there[present.position] = there.get(present.position, 0) | present.bits
            runs[present.position] = present.run_id
        await self._mailbox.read(queue)
        heard = self._mailbox.heard(queue)
        leases = await self._spooler.borrow(queue, runs | heard.runs)
        done: list[int] = []
        for position, bits in there.items():
            left = parts(leases[position][0]) if position in leases else []
            self._shared.out.add(queue, pick(left, bits))
            if bits & ~bits_of(left):
                done.append(position)
        for position, (lease, _) in leases.items():
            elsewhere = there.get(position, 0) | heard.passing.get(position, 0)
            self._send_on(queue, pick(parts(lease), ~elsewhere))
        if there:
            log.info("owner.adopted", queue=queue, runs=len(leases), items=count(there))
        if done:
            # Some of a run is done, though it is there.
            await self._sort_out(queue)

    # The actor.

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._remote.run)
            nursery.start_soon(self._keep)
            nursery.start_soon(self._collect)
            nursery.start_soon(self._verify)
            self._nursery = nursery
            for queue, slices in self._adopted:
                nursery.start_soon(self._tiers.place, queue, slices)
            self._adopted.clear()
            task_status.started()

    async def _keep(self) -> None:
        """Validity; and whether the queue is there, and still knows what it knew."""
        shared = self._shared
        while True:
            try:
                if shared.is_away:
                    await self._come_back()
                elif await self._remote.generation() != self._generation:
                    await self._enter_all()
                await shared.keep_valid(shared.out.queues)
                shared.regain()
                await self._hand_back()
                for queue in await self._remote.fills():
                    self._tiers.spooler.arrivals.see_shared(queue)
            except StoreUnavailable as problem:
                shared.lose(problem)
                if trio.current_time() >= shared.valid_until:
                    await self._take_over()
            await trio.sleep(AWAY_S if shared.is_away else shared.valid_s / TICKS)

    async def _come_back(self) -> None:
        generation = await self._remote.generation()
        if self._generation and generation != self._generation:
            await self._enter_all()
            return
        # In a life that began without the queue, what the last one left there is sorted out.
        self._generation = generation
        await self._shared.tell_untold()
        for queue in await self._remote.mail_queues():
            await self._read_mail(queue)
            async with self._looking:
                await self._sort_out(queue)
            await self.look(queue)

    async def _enter_all(self) -> None:
        """The queue has forgotten everything."""
        log.error("owner.warm_forgot")
        generation = await self._remote.generation()
        self._shared.has_forgotten()
        for queue in self._shared.out.queues:
            await self._enter_missing(queue)
        await self._give_rows_back()
        self._generation = generation

    async def _take_over(self) -> None:
        """The queue is away, and nobody else can take what is there: it is delivered from here."""
        for queue in self._shared.out.queues:
            in_hand = self._shared.in_hand(queue)
            slices = except_for(self._shared.out.slices(queue), in_hand)
            for slice_ in slices:
                self._shared.out.gone(queue, slice_)
            if slices:
                items = sum(slice_.items for slice_ in slices)
                log.warning("owner.took_over", queue=queue, items=items)
                await self._shared.own.enter(queue, slices, NO_LIMITS)
        await self._give_rows_back()

    async def _give_rows_back(self) -> None:
        """To the cold store, which lends them again; those in hand when their lease is over."""
        in_hand = self._rows_in_hand()
        try:
            for queue, lock, rows in self._shared.out.rows():
                await self._cold.release(lock, [row for row in rows if row not in in_hand])
                self._shared.out.forget_locks([lock])
                self._tiers.wake(queue)
        except StoreUnavailable:
            # Others take them when their lease is over, or we do, the next time.
            pass

    async def _hand_back(self) -> None:
        """What waits in this process's own queue goes where others can take it, too."""
        for queue, fill in (await self._shared.own.fills()).items():
            if fill.waiting or fill.scheduled:
                slices = await self._shared.own.withdraw(queue)
                self._send_on(queue, [s for s in slices if isinstance(s.run.owner, InJournal)])
                rows = [s for s in slices if isinstance(s.run.owner, InCold)]
                if rows:
                    await self._give_back(queue, rows)

    async def _give_back(self, queue: str, rows: Sequence[Slice]) -> None:
        try:
            await self._cold.settle([unlocked(slice_) for slice_ in rows])
            self._tiers.wake(queue)
        except StoreUnavailable:
            # They are still ours, and are delivered from here.
            await self._shared.own.enter(queue, rows, NO_LIMITS)

    async def _sort_out(self, queue: str) -> None:
        """What is there and not out was done from here meanwhile: it is taken out."""
        out = self._shared.out.positions(queue)
        for present in await self._remote.present(queue):
            if present.bits & ~out.get(present.position, 0):
                at = range(present.position, present.position + 1)
                for slice_ in await self._remote.withdraw(queue, None, at):
                    mine = self._shared.out.own(queue, slice_)
                    if mine is not None:
                        await self._remote.enter(queue, [mine], NO_LIMITS)

    # Mail.

    async def _collect(self) -> None:
        pause_s = MAIL_S
        while True:
            await trio.sleep(pause_s)
            pause_s = min(MAIL_IDLE_S, pause_s * 2)
            if self._shared.is_away:
                continue
            try:
                for queue in self._shared.out.queues:
                    if await self._read_mail(queue):
                        pause_s = MAIL_S
            except StoreUnavailable as problem:
                self._shared.lose(problem)

    async def _read_mail(self, queue: str) -> int:
        """How many posts there were."""
        async with self._mail:
            try:
                return await self._mailbox.read(queue)
            finally:
                await self._send_rest(queue)

    async def _send_rest(self, queue: str) -> None:
        """What is left of runs that waited, and were found in the mail, goes its way."""
        heard = self._mailbox.heard(queue)
        if heard.runs:
            leases = await self._spooler.borrow(queue, heard.runs)
            out = self._shared.out.positions(queue)
            for at, (lease, _) in leases.items():
                elsewhere = out.get(at, 0) | heard.passing.get(at, 0)
                self._send_on(queue, pick(parts(lease), ~elsewhere))

    # What is missing.

    async def _verify(self) -> None:
        while True:
            await trio.sleep(VERIFY_S)
            try:
                if not self._shared.is_away:
                    queues = {*await self._remote.mail_queues(), *self._shared.out.row_queues}
                    for queue in sorted(queues):
                        await self._read_mail(queue)
                        await self.look(queue)
            except StoreUnavailable as problem:
                self._shared.lose(problem)

    async def look(self, queue: str) -> None:
        items = await self._enter_missing(queue)
        if items:
            log.warning("owner.entered_again", queue=queue, items=items)
        await self._give_missing_back(queue)

    async def _enter_missing(self, queue: str) -> int:
        """Enters again what is out and not there, and no post speaks of: how many items."""
        shared = self._shared
        async with self._looking:
            out, in_hand = shared.out.positions(queue), shared.in_hand(queue)
            is_moving, withdrawals = shared.withdrawing > 0, shared.withdrawals
            there: dict[int, int] = {}
            for present in await self._remote.present(queue):
                there[present.position] = there.get(present.position, 0) | present.bits
            await self._read_mail(queue)
            if is_moving or shared.withdrawals != withdrawals:
                # Somebody takes things out: the next look will tell.
                return 0
            still_in_hand = shared.in_hand(queue)
            missing = {
                at: bits & ~there.get(at, 0) & ~in_hand.get(at, 0) & ~still_in_hand.get(at, 0)
                for at, bits in out.items()
            }
            slices = [
                part
                for slice_ in shared.out.slices(queue)
                if (part := shrunk(slice_, missing.get(position_of(slice_), 0))) is not None
            ]
            with shared.moving(queue, slices):
                await self._remote.enter(queue, slices, NO_LIMITS)
        return sum(slice_.items for slice_ in slices)

    async def _give_missing_back(self, queue: str) -> None:
        """Rows of the cold store that two looks did not find: most are done, the others lost.

        While the store is away a look does not count: another host may have an outcome in hand
        that it cannot tell, and does as soon as the store is back."""
        out, in_hand = self._shared.out.rows_of(queue), self._rows_in_hand()
        there = await self._remote.rows_present(queue) if out else set()
        in_hand |= self._rows_in_hand()
        missing = {(row, lock) for row, lock in out - there if row not in in_hand}
        if missing and not await self._cold_answers(queue):
            missing = set()
        lost = missing & self._missing.get(queue, set())
        self._missing[queue] = missing - lost
        for lock in {lock for _, lock in lost}:
            rows = [row for row, at in lost if at == lock]
            try:
                await self._cold.release(lock, rows)
            except StoreUnavailable:
                # Others say that it is away.
                self._missing[queue] = set()
                return
            self._shared.out.forget_rows(queue, lock, rows)
            self._tiers.wake(queue)

    async def _cold_answers(self, queue: str) -> bool:
        try:
            await self._cold.outlook(queue)
        except StoreUnavailable:
            return False
        return True

    def _rows_in_hand(self) -> set[bytes]:
        """Of the cold store: leased by workers here, or what became of them is not recorded yet.
        Whoever lent those anew would have them delivered twice."""
        return self._shared.rows_in_hand() | self._settlement.unrecorded_rows

    def _send_on(self, queue: str, slices: list[Slice]) -> None:
        if slices and self._nursery is not None:
            self._nursery.start_soon(self._tiers.place, queue, slices)
        elif slices:
            self._adopted.append((queue, slices))


def pick(slices: Sequence[Slice], bits: int) -> list[Slice]:
    return [part for slice_ in slices if (part := shrunk(slice_, bits)) is not None]


def except_for(slices: Sequence[Slice], in_hand: dict[int, int]) -> list[Slice]:
    """Without what is in hand: bits, by position."""
    return [
        part
        for slice_ in slices
        if (part := shrunk(slice_, ~in_hand.get(position_of(slice_), 0))) is not None
    ]


def bits_of(slices: Sequence[Slice]) -> int:
    bits = 0
    for slice_ in slices:
        bits |= slice_.bits
    return bits


def count(by_position: dict[int, int]) -> int:
    return sum(bits.bit_count() for bits in by_position.values())


def position_of(slice_: Slice) -> int:
    position: int = slice_.run.owner.position  # type: ignore[union-attr]
    return position
