"""Hand-over: items of the journal become the cold store's, so that one of them owns them always.

    store in cold, durable and invisible ──► mark in the journal, durable ──► confirm in cold

A crash before the mark: the journal still owns them, and the next life finishes what it finds
unconfirmed. A crash after it: the next life confirms. `origin` says in the row where it came from.

As long as it is open whether the cold store has something, the spooler keeps the chunk that it
came from: a row that nobody confirmed is judged by what the chunk's marks say, also in the next
life. What the cold store does not take now is the failover's.

On cancel whatever is under way is finished by the next life. What it can't do: tell whether a
store that did not answer has stored; so it stores the same rows again, which is harmless.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import structlog
import trio

from actors.model.runs import Origin, pack_origin
from actors.model.slices import InJournal, Slice, indexes, item_bits
from actors.ports.presence import Presence
from actors.ports.tiers import ColdQueue, NewRow, StoreUnavailable
from actors.spooler.messages import Doubt, HandedOver, Settle, SpoolerMessage, Voided
from actors.tiers.failover import Failover, Held
from forebay.errors import BadRun
from forebay.ids import RUN_ID_BYTES, new_run_id
from forebay.part import take_items
from forebay.run import Run, read_head

log = structlog.get_logger()

REST_S: Final = 5.0
"""A cold store that has failed is not asked to take overflow for so long."""
RECORD_S: Final = 10.0
TRANSFERS_MAX: Final = 2000
"""Rows of one transaction."""

LetGo = Callable[[Sequence[Slice]], Awaitable[None]]


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """Items on their way from the journal to a row."""

    row: NewRow
    from_: HandedOver | Voided


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
    queues: dict[str, int]
    """With the most urgent priority of what goes there."""
    is_in_doubt: bool = False
    """The spooler was told to keep the chunks: from now on rows may be stored."""
    asked: Asked | None = None
    """The journal was asked to let go."""

    @classmethod
    def of(cls, slices: Sequence[Slice], *, is_dead: bool) -> Self:
        transfers = [item for slice_ in slices for item in transfers_of(slice_, is_dead=is_dead)]
        queues: dict[str, int] = {}
        for head in (slice_.run.head for slice_ in slices):
            queues[head.queue] = min(head.priority, queues.get(head.queue, head.priority))
        return cls(transfers, queues)

    @property
    def rows(self) -> list[bytes]:
        return [transfer.row.row for transfer in self.transfers]

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple({transfer.from_.position for transfer in self.transfers})


class HandOver:
    def __init__(
        self,
        cold: ColdQueue,
        spooler: trio.MemorySendChannel[SpoolerMessage],
        failover: Failover,
        wake_promoter: Callable[[str, int], None],
        presence: Presence | None = None,
    ) -> None:
        self._presence = presence or Presence()
        self._cold = cold
        self._spooler = spooler
        self._failover = failover
        self._wake_promoter = wake_promoter
        self._rests_until = 0.0
        self._to_undo = 0

    @property
    def cold_is_away(self) -> bool:
        """It has failed a moment ago, and is not asked to take overflow before it rests."""
        return trio.current_time() < self._rests_until

    async def give(self, slices: Sequence[Slice], let_go: LetGo, *, is_dead: bool) -> None:
        """Hands slices of the journal over, now or as soon as the cold store is back.

        `let_go` is called with slices that were waited for too long: they are the caller's again.
        """
        for part in parts_of(slices):
            passage = Passage.of(part, is_dead=is_dead)
            try:
                await self._clear()
                await self._carry_out(passage)
            except StoreUnavailable as problem:
                self._rest(problem)
                await self._hold(passage, part, let_go)

    async def move(self, slices: Sequence[Slice]) -> None:
        """Hands slices of the journal over, now.

        Raises StoreUnavailable if the cold store does not take them: they stay the caller's.
        """
        await self._move(Passage.of(slices, is_dead=False), slices)

    async def move_one(self, transfer: Transfer) -> bool:
        """As `move`, of one item as somebody has made it anew. False: the journal has it no more,
        or not where it was seen."""
        queues = {transfer.row.head.queue: transfer.row.head.priority}
        return all(await self._move(Passage([transfer], queues), ()))

    async def _move(self, passage: Passage, slices: Sequence[Slice]) -> list[bool]:
        """Which transfers the journal agreed to; where that is not known yet, none is named."""
        try:
            await self._clear()
            return await self._carry_out(passage)
        except StoreUnavailable as problem:
            self._rest(problem)
            if not passage.is_in_doubt:
                raise
            if passage.asked is not None:
                # They are stored there, and the journal was told: there is no way back.
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
            if let_go is not None:
                await let_go(slices)

        async def again() -> None:
            await self._carry_out(passage)

        size = sum(len(slice_.run.data) for slice_ in slices)
        last_step = None if let_go is None else undone
        await self._failover.hold(Held(size, again, last_step))

    async def _hold_undo(self, passage: Passage) -> None:
        """Whether rows were stored is not known. The journal keeps the items, so cold must not."""
        self._to_undo += 1

        async def undo() -> None:
            await self._cold.forget(passage.rows)
            await self._end_doubt(passage)
            self._to_undo -= 1

        await self._failover.hold(Held(RUN_ID_BYTES * len(passage.rows), undo, None))

    async def _clear(self) -> None:
        """Nothing is stored while something is to be forgotten: it might be the same rows."""
        if self._to_undo:
            await self._failover.try_again()
        if self._to_undo:
            raise StoreUnavailable("an earlier hand-over is still to be undone")

    def _rest(self, problem: StoreUnavailable) -> None:
        self._presence.lost("hand over", problem)
        self._rests_until = trio.current_time() + REST_S

    async def _carry_out(self, passage: Passage) -> list[bool]:
        """May be called again after it has failed, and takes up where it was."""
        if not passage.is_in_doubt:
            passage.is_in_doubt = True
            await self._spooler.send(Doubt(passage.positions, is_over=False))
        if passage.asked is None:
            await self._cold.store([transfer.row for transfer in passage.transfers])
        accepted = await self._let_go(passage)
        refused = [row for row, ok in zip(passage.rows, accepted, strict=True) if not ok]
        if refused:
            # The journal has settled them meanwhile: they are not the cold store's to keep.
            log.warning("handover.refused", rows=len(refused))
            await self._cold.forget(refused)
        await self._cold.confirm(
            [row for row, ok in zip(passage.rows, accepted, strict=True) if ok]
        )
        self._presence.found("hand over")
        await self._end_doubt(passage)
        for queue, priority in passage.queues.items():
            self._wake_promoter(queue, priority)
        return accepted

    async def _end_doubt(self, passage: Passage) -> None:
        await self._spooler.send(Doubt(passage.positions, is_over=True))

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


def parts_of(slices: Sequence[Slice]) -> Iterator[list[Slice]]:
    """Slices, as many together as make a transaction of bearable length."""
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
