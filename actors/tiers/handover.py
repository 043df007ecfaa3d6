"""Hand-over: moves items from the journal to the cold store so that exactly one of them owns each.

    store in cold, durable and invisible ──► mark in the journal, durable ──► confirm in cold

After a crash before the mark the journal still owns the items, and the restarted daemon resolves
the unconfirmed rows. After a crash behind the mark the restarted daemon confirms them. The row's
`origin` says which run of the journal it came from.

While it is unknown whether the cold store has a row, the spooler keeps the chunk of its run: an
unconfirmed row is judged by the marks of that chunk, also after a restart. Steps that the cold
store does not take now go to the failover.

On cancel a hand-over stays unfinished, and the restarted daemon finishes it. It cannot tell whether
a store that did not answer has stored; it stores the same rows again, which is harmless.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

import structlog
import trio

from actors.model.clock import Clock
from actors.model.runs import Origin, pack_origin
from actors.model.slices import InJournal, Slice, indexes, item_bits
from actors.ports.tiers import ColdQueue, NewRow, StoreUnavailable
from actors.spooler.client import SpoolerClient
from actors.spooler.messages import Doubt, HandedOver, Reply, Settle, Voided
from actors.tiers.failover import Failover, Held
from forebay.errors import BadRun
from forebay.ids import RUN_ID_BYTES, new_run_id
from forebay.run import Run, read_head, take_items

log = structlog.get_logger()

REST_S: Final = 5.0
"""How long a cold store that has failed is not asked to take overflow."""
RECORD_S: Final = 10.0
TRANSFERS_MAX: Final = 2000
"""Rows per transaction."""

LetGo = Callable[[Sequence[Slice]], Awaitable[None]]


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """Items on their way from the journal to one row."""

    row: NewRow
    from_: HandedOver | Voided


@dataclass(slots=True, eq=False)
class Passage:
    """A hand-over under way."""

    transfers: Sequence[Transfer]
    queues: dict[str, int]
    """The queues concerned, each with its most urgent priority."""
    is_in_doubt: bool = False
    """The spooler was told to keep the chunks: from now on rows may be stored."""
    asked: Reply[list[bool]] | None = None
    """Set once the journal was asked to mark the items."""
    enters_warm: bool = False
    """The rows may enter a shared warm queue at once."""
    over: Reply[bool] = field(default_factory=Reply)
    """Whether the cold store owns all of the items now; False: the journal keeps some of them."""

    @classmethod
    def of(cls, slices: Sequence[Slice], *, is_dead: bool, enters_warm: bool = False) -> Self:
        transfers = [item for slice_ in slices for item in transfers_of(slice_, is_dead=is_dead)]
        queues: dict[str, int] = {}
        for head in (slice_.run.head for slice_ in slices):
            queues[head.queue] = min(head.priority, queues.get(head.queue, head.priority))
        return cls(transfers, queues, enters_warm=enters_warm)

    @property
    def rows(self) -> list[bytes]:
        return [transfer.row.row for transfer in self.transfers]

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple({transfer.from_.position for transfer in self.transfers})


class Entry(Protocol):
    """The last step of a hand-over."""

    async def confirm(self, rows: Sequence[NewRow], *, enters_warm: bool) -> None:
        """Makes the rows visible."""


class ColdEntry:
    """The rows wait in the cold store."""

    def __init__(self, cold: ColdQueue) -> None:
        self._cold = cold

    async def confirm(self, rows: Sequence[NewRow], *, enters_warm: bool) -> None:
        await self._cold.confirm([row.row for row in rows])


class LastHandOver:
    """When this process last handed items over, for the fleet's list of daemons."""

    def __init__(self, now_ms: Clock) -> None:
        self._now_ms = now_ms
        self.at_ms = 0
        """0: it has handed nothing over."""

    def confirmed(self) -> None:
        """The cold store owns the items of a hand-over, from now on."""
        self.at_ms = self._now_ms()


class HandOver:
    def __init__(
        self,
        cold: ColdQueue,
        entry: Entry,
        spooler: SpoolerClient,
        failover: Failover,
        wake: Callable[[str, int], None],
        last: LastHandOver,
    ) -> None:
        """`wake` is called with each queue that has new rows in cold, and their priority."""
        self._cold = cold
        self._entry = entry
        self._spooler = spooler
        self._failover = failover
        self._wake = wake
        self._last = last
        self._rests_until = 0.0
        self._to_undo = 0

    @property
    def cold_is_away(self) -> bool:
        """Whether the cold store failed less than REST_S ago."""
        return trio.current_time() < self._rests_until

    async def give(
        self, slices: Sequence[Slice], let_go: LetGo, *, is_dead: bool
    ) -> list[Reply[bool]]:
        """Hands slices of the journal over, now or as soon as the cold store is back. The replies
        come when it owns them, or when the journal is known to keep some of them (False).

        If the failover drops a hand-over because it holds too much, `let_go` gets the slices back.
        """
        passages: list[Passage] = []
        for part in parts_of(slices):
            passage = Passage.of(part, is_dead=is_dead)
            passages.append(passage)
            try:
                await self._clear()
                await self._carry_out(passage)
            except StoreUnavailable:
                self._rest()
                await self._hold(passage, part, let_go)
        return [passage.over for passage in passages]

    async def move(self, slices: Sequence[Slice], *, enters_warm: bool = False) -> None:
        """Hands slices of the journal over, now. `enters_warm`: in a fleet, their rows enter the
        shared warm queue at once if there is room.

        Raises StoreUnavailable if the cold store does not take them: the caller keeps them.
        """
        await self._move(Passage.of(slices, is_dead=False, enters_warm=enters_warm), slices)

    async def move_one(self, transfer: Transfer) -> bool:
        """As `move`, for one item that the caller has changed. False: the journal no longer has it,
        or not at that position."""
        queues = {transfer.row.head.queue: transfer.row.head.priority}
        return all(await self._move(Passage([transfer], queues), ()))

    async def _move(self, passage: Passage, slices: Sequence[Slice]) -> list[bool]:
        """Which transfers the journal accepted; an empty list if that is not known yet."""
        try:
            await self._clear()
            return await self._carry_out(passage)
        except StoreUnavailable:
            self._rest()
            if not passage.is_in_doubt:
                raise
            if passage.asked is not None:
                # The rows are stored and the journal was told: this cannot be undone.
                await self._hold(passage, slices, None)
                return []
            await self._hold_undo(passage)
            raise

    async def _hold(self, passage: Passage, slices: Sequence[Slice], let_go: LetGo | None) -> None:
        async def undone() -> None:
            if passage.asked is not None:
                await self._hold(passage, slices, None)
                return
            await self._hold_undo(passage)
            passage.over.put(False)
            if let_go is not None:
                await let_go(slices)

        async def again() -> None:
            await self._carry_out(passage)

        size = sum(len(slice_.run.data) for slice_ in slices)
        last_step = None if let_go is None else undone
        await self._failover.hold(Held(size, again, last_step))

    async def _hold_undo(self, passage: Passage) -> None:
        """Forgets rows that may have been stored: the journal keeps these items."""
        self._to_undo += 1

        async def undo() -> None:
            await self._cold.forget(passage.rows)
            await self._end_doubt(passage)
            self._to_undo -= 1

        await self._failover.hold(Held(RUN_ID_BYTES * len(passage.rows), undo, None))

    async def _clear(self) -> None:
        """Raises while rows must still be forgotten: a new hand-over might store the same rows."""
        if self._to_undo:
            await self._failover.try_again()
        if self._to_undo:
            raise StoreUnavailable("an earlier hand-over is not undone yet")

    def _rest(self) -> None:
        self._rests_until = trio.current_time() + REST_S

    async def _carry_out(self, passage: Passage) -> list[bool]:
        """Carries the hand-over out; after a failure a second call resumes where it stopped."""
        if not passage.is_in_doubt:
            passage.is_in_doubt = True
            await self._spooler.send(Doubt(passage.positions, is_over=False))
        if passage.asked is None:
            await self._cold.store([transfer.row for transfer in passage.transfers])
        accepted = await self._let_go(passage)
        refused = [row for row, ok in zip(passage.rows, accepted, strict=True) if not ok]
        if refused:
            # The journal has settled these items meanwhile, so the cold store must not keep them.
            log.warning("handover.refused", rows=len(refused))
            await self._cold.forget(refused)
        rows = [transfer.row for transfer in passage.transfers]
        good = [row for row, ok in zip(rows, accepted, strict=True) if ok]
        await self._entry.confirm(good, enters_warm=passage.enters_warm)
        self._last.confirmed()
        await self._end_doubt(passage)
        for queue, priority in passage.queues.items():
            self._wake(queue, priority)
        passage.over.put(not refused)
        return accepted

    async def _end_doubt(self, passage: Passage) -> None:
        await self._spooler.send(Doubt(passage.positions, is_over=True))

    async def _let_go(self, passage: Passage) -> list[bool]:
        """Has the journal mark the items as handed over; returns which transfers it accepted.

        The journal is asked once. It does not answer while its disk takes no marks.
        """
        if passage.asked is None:
            asked = Reply[list[bool]]()
            outcomes = tuple(transfer.from_ for transfer in passage.transfers)
            await self._spooler.send(Settle(outcomes, asked))
            passage.asked = asked
        with trio.move_on_after(RECORD_S):
            return await passage.asked.wait()
        raise StoreUnavailable(f"the journal has recorded nothing for {RECORD_S:g} s")


def parts_of(slices: Sequence[Slice]) -> Iterator[list[Slice]]:
    """Groups slices so that each group makes a transaction of acceptable length."""
    part: list[Slice] = []
    items = 0
    for slice_ in slices:
        if part and items + slice_.items > TRANSFERS_MAX:
            yield part
            part, items = [], 0
        part.append(slice_)
        items += slice_.items
    if part:
        yield part


def transfers_of(slice_: Slice, *, is_dead: bool) -> list[Transfer]:
    """The rows for a slice of the journal: one, or one per dead letter.

    A run that was never tried keeps its bytes and id even if only a part of it moves: under another
    id it would lose its place in the order. Of a run that was tried, only the slice's items move.
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
            # A run that cannot be unpacked moves unchanged.
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
                new_run_id(),
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
