"""Hand-over: items of the journal become the cold store's, so that one of them owns them always.

    store in cold, durable and invisible ──► mark in the journal, durable ──► confirm in cold

A crash before the mark: the journal still owns them, and the next life finishes what it finds
unconfirmed. A crash after it: the next life confirms. `origin` says in the row where it came from.

What the cold store does not take is held here, in memory, with the outcomes that the settler
could not record, and tried again every 5 s. The list is bounded, in entries and in bytes: past
that the oldest is let go, counted, and its lease runs out, so that its owner delivers it again.

On cancel whatever is under way is finished by the next life. What it can't do: tell whether a
store that did not answer has stored; so it stores the same rows again, which is harmless.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import structlog
import trio

from actors.messages import HandedOver, Settle, SpoolerMessage
from actors.origin import Origin, pack_origin
from actors.slices import InJournal, Slice, indexes, item_bits
from actors.tiers import ColdQueue, NewRow, StoreUnavailable
from forebay.errors import BadRun
from forebay.ids import RUN_ID_BYTES, new_run_id
from forebay.part import take_items
from forebay.run import Run, read_head

log = structlog.get_logger()

HELD_ENTRIES_MAX: Final = 1000
HELD_BYTES_MAX: Final = 256 * 1024 * 1024
TRY_AGAIN_S: Final = 5.0
RECORD_S: Final = 10.0

Step = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Held:
    """Something that must be recorded and could not be."""

    size: int
    again: Step
    """Raises StoreUnavailable as long as it cannot be done."""
    keep: Step
    """Called now and then while it waits: its leases must not run out."""


class Failover:
    """What could not be recorded anywhere, in memory, within bounds."""

    def __init__(
        self, entries_max: int = HELD_ENTRIES_MAX, bytes_max: int = HELD_BYTES_MAX
    ) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._held: deque[Held] = deque()
        self.bytes = 0
        self.let_go_total = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, entry: Held) -> None:
        if not self._held:
            log.error("failover.holding", hint="neither disk nor cold store takes outcomes")
        self._held.append(entry)
        self.bytes += entry.size
        while len(self._held) > self._entries_max or self.bytes > self._bytes_max:
            oldest = self._held.popleft()
            self.bytes -= oldest.size
            self.let_go_total += 1
            log.warning("failover.let_go", total=self.let_go_total)

    async def run(self) -> None:
        while True:
            await trio.sleep(TRY_AGAIN_S)
            await self.try_again()

    async def try_again(self) -> None:
        """One round, oldest first; it ends at the first that still cannot be recorded."""
        for _ in range(len(self._held)):
            if not self._held:
                return
            entry = self._held[0]
            try:
                await entry.again()
            except StoreUnavailable:
                break
            # It may have been let go meanwhile.
            if self._held and self._held[0] is entry:
                self._held.popleft()
                self.bytes -= entry.size
            if not self._held:
                log.info("failover.empty", let_go_total=self.let_go_total)
        for entry in tuple(self._held):
            await entry.keep()


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """Items on their way from the journal to a row."""

    row: NewRow
    from_: HandedOver


class Asked:
    """A question to the spooler, and its answer."""

    def __init__(self) -> None:
        self._accepted: list[bool] = []
        self._there = trio.Event()

    def answer(self, accepted: list[bool]) -> None:
        self._accepted = accepted
        self._there.set()

    async def wait(self) -> list[bool]:
        await self._there.wait()
        return self._accepted


@dataclass(slots=True, eq=False)
class Passage:
    """A hand-over under way."""

    transfers: Sequence[Transfer]
    queues: set[str]
    asked: Asked | None = None
    """The journal was asked to let go."""
    is_confirmed: bool = False

    @classmethod
    def of(cls, slices: Sequence[Slice], *, is_dead: bool) -> Self:
        transfers = [item for slice_ in slices for item in transfers_of(slice_, is_dead=is_dead)]
        return cls(transfers, {slice_.run.head.queue for slice_ in slices})


class HandOver:
    def __init__(
        self,
        cold: ColdQueue,
        spooler: trio.MemorySendChannel[SpoolerMessage],
        failover: Failover,
        wake_promoter: Callable[[str], None],
    ) -> None:
        self._cold = cold
        self._spooler = spooler
        self._failover = failover
        self._wake_promoter = wake_promoter
        self._rests_until = 0.0
        self._doubtful: set[bytes] = set()
        """Rows that may have been stored, and that the journal has kept."""

    @property
    def cold_is_away(self) -> bool:
        """It has failed a moment ago, and is not asked to take overflow before it rests."""
        return trio.current_time() < self._rests_until

    async def give(
        self,
        slices: Sequence[Slice],
        *,
        is_dead: bool = False,
        done: Step | None = None,
        keep: Step | None = None,
    ) -> None:
        """Hands slices of the journal over, now or as soon as the cold store is back.

        For slices that are leased: `done` is called when it is finished, and may end their leases;
        `keep` now and then until it is, and must extend them.
        """
        passage = Passage.of(slices, is_dead=is_dead)

        async def again() -> None:
            await self._carry_out(passage)
            if done is not None:
                await done()

        try:
            await again()
        except StoreUnavailable as problem:
            self._rest(problem)
            size = sum(len(slice_.run.data) for slice_ in slices)
            self._failover.hold(Held(size, again, keep or _nothing))

    async def move(self, slices: Sequence[Slice]) -> None:
        """Hands slices of the journal over that nobody has leased.

        Raises StoreUnavailable if the cold store does not take them: they stay the caller's.
        """
        passage = Passage.of(slices, is_dead=False)
        try:
            await self._carry_out(passage)
        except StoreUnavailable as problem:
            self._rest(problem)
            if passage.asked is not None:
                # They are stored there, and the journal was told: there is no way back.
                size = sum(len(slice_.run.data) for slice_ in slices)
                self._failover.hold(Held(size, lambda: self._carry_out(passage), _nothing))
                return
            rows = [transfer.row.row for transfer in passage.transfers]
            # Whether they were stored is not known. The journal keeps them, so cold must not.
            self._doubtful.update(rows)
            self._failover.hold(Held(RUN_ID_BYTES * len(rows), self._forget_doubtful, _nothing))
            raise

    async def _forget_doubtful(self) -> None:
        rows = list(self._doubtful)
        if rows:
            await self._cold.forget(rows)
            self._doubtful.difference_update(rows)

    def _rest(self, problem: StoreUnavailable) -> None:
        if not self.cold_is_away:
            log.error("cold.away", error=str(problem))
        self._rests_until = trio.current_time() + TRY_AGAIN_S

    async def _carry_out(self, passage: Passage) -> None:
        """May be called again after it has failed, and takes up where it was."""
        rows = [transfer.row.row for transfer in passage.transfers]
        if passage.asked is None:
            # A run that is tried again comes under the same id: it must not be forgotten now.
            self._doubtful.difference_update(rows)
            await self._cold.store([transfer.row for transfer in passage.transfers])
        accepted = await self._let_go(passage)
        if not passage.is_confirmed:
            agreed = [row for row, ok in zip(rows, accepted, strict=True) if ok]
            await self.confirm(agreed, passage.queues)
            passage.is_confirmed = True
        refused = [row for row, ok in zip(rows, accepted, strict=True) if not ok]
        if refused:
            # The journal has settled them meanwhile: they are not the cold store's to keep.
            log.warning("handover.refused", rows=len(refused))
            await self._cold.forget(refused)

    async def confirm(self, rows: Sequence[bytes], queues: Iterable[str]) -> None:
        """The journal has let go of these: from now on they are the cold store's alone."""

        async def again() -> None:
            await self._cold.confirm(rows)
            for queue in queues:
                self._wake_promoter(queue)

        try:
            await again()
        except StoreUnavailable:
            self._failover.hold(Held(RUN_ID_BYTES * len(rows), again, _nothing))

    async def _let_go(self, passage: Passage) -> list[bool]:
        """The journal marks the items as handed over; which transfers it agreed to.

        It is asked once. As long as its disk takes no marks there is no answer.
        """
        if passage.asked is None:
            asked = Asked()
            outcomes = tuple(transfer.from_ for transfer in passage.transfers)
            await self._spooler.send(Settle(outcomes, asked.answer))
            passage.asked = asked
        with trio.move_on_after(RECORD_S):
            return await passage.asked.wait()
        raise StoreUnavailable(f"the journal has recorded nothing for {RECORD_S:g} s")


async def _nothing() -> None:
    pass


def transfers_of(slice_: Slice, *, is_dead: bool) -> list[Transfer]:
    """The rows that a slice of the journal becomes: one, or one for each dead letter.

    A run that was not tried yet moves as it is, also if only a part of it does: under another id
    it would lose its place in the order. Of what has failed only those items move.
    """
    run, owner = slice_.run, slice_.run.owner
    assert isinstance(owner, InJournal)
    head, data = run.head, run.data
    bits = slice_.bits
    is_whole = bits == item_bits(0, head.count)
    if is_dead or (slice_.attempt and not is_whole):
        try:
            data = take_items(Run(head, data), list(indexes(bits)))
        except BadRun:
            # It cannot be unpacked, so that it moves as it is.
            pass
        else:
            head = read_head(data)
            bits = item_bits(0, head.count)
    pairs = [(bits, slice_.bits)]
    if is_dead:
        pairs = list(zip(_single(bits), _single(slice_.bits), strict=True))
    return [
        Transfer(
            NewRow(
                head.run_id if is_whole and not slice_.attempt and not is_dead else new_run_id(),
                head,
                data,
                there,
                slice_.attempt,
                slice_.due_ms,
                slice_.errors,
                is_dead,
                pack_origin(Origin(owner.position, run.head.run_id, here)),
            ),
            HandedOver(owner.token, owner.position, run.head.run_id, here),
        )
        for there, here in pairs
    ]


def _single(bits: int) -> list[int]:
    return [1 << index for index in indexes(bits)]
