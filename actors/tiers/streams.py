"""Streams: queues that consumers read claim by claim (docs/protocol.md "Claims"), and FETCH.

The cold store owns every claim: numbered, durable, made and acknowledged in one transaction. This
actor leads to it. While a queue has a consumer it is in *stream mode* (`QueueTiers.is_stream`): the
router sends all its runs to cold, the promoter leaves them there, and slices waiting in warm are
set aside to cold when the mode begins, and again when a claim finds nothing while warm holds some.

It owns the set of queues in stream mode, which follows the consumers in the cold store. A claim
that finds nothing due waits briefly for items on their way. Operations on consumers take turns, so
that mode and store agree. The store completes a step that has begun, and the client may repeat it.

On cancel nothing is lost: the cold store holds everything. It cannot tell whether the reader of a
claim is still alive. A consumer that is never dropped keeps its claim, and its queue, forever.
"""

from collections import defaultdict
from contextlib import suppress
from typing import Any, Final

import trio

from actors.model.finished import FinishedRow
from actors.model.internal_errors import INTERNAL_ERRORS
from actors.model.refusals import bad_request, unknown_queue
from actors.model.slices import item_bits
from actors.ports.tiers import (
    SeenRow,
    StoreCorrupt,
    StoreUnavailable,
    Stream,
    WrongClaim,
)
from actors.spooler.client import Journaled, SpoolerClient
from actors.tiers.hysteresis import Tier
from actors.tiers.promoter import Promoter
from actors.tiers.queue_tiers import TierStates
from actors.tiers.router import Router
from actors.tiers.shared_promoter import SharedPromoter
from forebay.errors import Refused
from forebay.fetch_frames import HISTORY, FetchedRow, FetchWish, Finished, PastError

ARRIVAL_S: Final = 1.0
"""How long a claim waits for items that are on their way to cold."""
TO_CLEAR_MAX: Final = 64


class Streams:
    def __init__(
        self,
        states: TierStates,
        spooler: SpoolerClient,
        router: Router,
        promoter: Promoter | SharedPromoter,
    ) -> None:
        self._states = states
        self._warm = states.warm
        self._cold = states.cold
        self._catalogue = states.catalogue
        self._spooler = spooler
        self._router = router
        self._promoter = promoter
        self._consumers: defaultdict[str, set[str]] = defaultdict(set)
        self._arrivals: dict[str, trio.Event] = {}
        self._to_clear, self._inbox = trio.open_memory_channel[str](TO_CLEAR_MAX)
        self._clearing: dict[str, trio.Event] = {}
        self._turn = trio.Lock()

    async def load(self) -> None:
        """Loads the consumers from the cold store; call it before anything is routed."""
        for queue, consumer in await self._cold.streams():
            self._begin(queue, consumer)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sets aside slices of warm for queues whose claim found some; never returns."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            async for queue in self._inbox:
                nursery.start_soon(self._clear, queue)

    def wake(self, queue: str) -> None:
        """A run of the queue has come to cold."""
        event = self._arrivals.pop(queue, None)
        if event is not None:
            event.set()

    def consumers(self) -> list[tuple[str, str]]:
        """The consumers that keep queues in stream mode here, as (queue, consumer)."""
        return [(queue, name) for queue, names in self._consumers.items() for name in names]

    async def claim(
        self, queue: str, consumer: str, after: int, items: int
    ) -> tuple[Stream, Journaled]:
        """The consumer's open claim, or a new one; waits briefly for items on their way to cold.
        `after` is the claim that this acknowledges. Refused if the numbers do not fit."""
        if self._catalogue.queue(queue) is None:
            raise unknown_queue(queue)
        deadline = trio.current_time() + ARRIVAL_S
        if not self._states.is_stream(queue):
            # Slices in warm come before rows in cold.
            await self._step(queue, consumer, after, 0)
            with trio.move_on_at(deadline):
                await self._cleared(queue)
        while True:
            # Arrivals from here on set the event.
            arrival = self._arrivals.setdefault(queue, trio.Event())
            stream = await self._step(queue, consumer, after, items)
            journal = await self._spooler.journaled(queue)
            is_over = stream.claim is not None or not items
            if is_over or not await self._is_coming(queue, stream, journal):
                return stream, journal
            with trio.move_on_at(deadline):
                await arrival.wait()
                continue
            return stream, journal

    async def status(self, queue: str, consumer: str) -> tuple[Stream, Journaled]:
        # Cold first, as everywhere: a run that moves there meanwhile is counted once.
        return await self._cold.stream(queue, consumer), await self._spooler.journaled(queue)

    async def drop(self, queue: str, consumer: str) -> int:
        """Forgets the consumer; returns how many items of its claim wait again."""
        async with self._turn:
            released = await self._cold.drop_stream(queue, consumer)
            self._end(queue, consumer)
        return released

    async def exists(self, queue: str, consumer: str) -> bool:
        return (queue, consumer) in await self._cold.streams()

    async def overview(self, chosen: str | None) -> list[tuple[str, str, Stream, Journaled]]:
        """Every consumer of the chosen queue, or of all queues."""
        names = [name for name in await self._cold.streams() if chosen in (None, name[0])]
        streams = [await self._cold.stream(queue, consumer) for queue, consumer in names]
        queues = {queue for queue, _ in names}
        journals = {queue: await self._spooler.journaled(queue) for queue in queues}
        return [
            (queue, consumer, stream, journals[queue])
            for (queue, consumer), stream in zip(names, streams, strict=True)
        ]

    async def fetch(self, wish: FetchWish) -> tuple[dict[str, Any], list[FetchedRow]]:
        """The fields of a FETCHED answer, and its rows."""
        if wish.state is None:
            assert wish.consumer is not None
            assert wish.claim is not None
            try:
                seen = await self._cold.fetch(
                    wish.queue, wish.consumer, wish.claim, wish.first, wish.rows, wish.bytes
                )
            except WrongClaim as problem:
                raise Refused("NOT_FOUND", str(problem)) from problem
            return {"next": seen.next}, [fetched(row) for row in seen.rows]
        try:
            if wish.state == HISTORY:
                past = await self._cold.history(wish.queue, wish.cursor, wish.rows, wish.bytes)
                return {"cursor": past.cursor}, [fetched_past(row) for row in past.rows]
            if wish.state == "cold":
                look = await self._cold.peek(wish.queue, wish.cursor, wish.rows, wish.bytes)
            else:
                look = await self._spooler.look(wish)
        except ValueError as problem:
            raise bad_request(f"cursor: {problem}") from problem
        return {"cursor": look.cursor}, [fetched(row) for row in look.rows]

    # Claims, and the mode of their queue.

    async def _step(self, queue: str, consumer: str, after: int, items: int) -> Stream:
        is_paused = self._catalogue.is_paused(queue)
        async with self._turn:
            try:
                stream = await self._cold.claim(
                    queue,
                    consumer,
                    after,
                    0 if is_paused else items,
                    self._catalogue.paused_flows(queue),
                )
            except WrongClaim as problem:
                raise bad_request(f"after: {problem}") from problem
            self._begin(queue, consumer)
            return stream

    async def _is_coming(self, queue: str, stream: Stream, journal: Journaled) -> bool:
        if self._catalogue.is_paused(queue):
            return False
        fill = await self._warm.fill(queue)
        state = self._states.of(queue)
        is_promoted = state.promoted > 0 or state.acquired is not None
        is_to_clear = fill.waiting > 0 or is_promoted
        if is_to_clear:
            self._clear_soon(queue)
        return is_to_clear or journal.to_come > 0 or journal.handed_over > stream.taken

    def _begin(self, queue: str, consumer: str) -> None:
        self._consumers[queue].add(consumer)
        state = self._states.of(queue)
        if not state.is_stream:
            state.is_stream = True
            self._clear_soon(queue)

    def _end(self, queue: str, consumer: str) -> None:
        self._consumers[queue].discard(consumer)
        if not self._consumers[queue]:
            del self._consumers[queue]
            state = self._states.of(queue)
            state.is_stream = False
            if state.tier is not None:
                # Rows in cold come first.
                state.tier = Tier.COLD
        self._promoter.wake(queue)

    def _clear_soon(self, queue: str) -> None:
        if queue not in self._clearing:
            # If the channel is full, the next claim asks again.
            with suppress(trio.WouldBlock):
                self._to_clear.send_nowait(queue)
                self._clearing[queue] = trio.Event()

    async def _cleared(self, queue: str) -> None:
        if queue in self._clearing:
            await self._clearing[queue].wait()

    async def _clear(self, queue: str) -> None:
        try:
            # If the store is away, the claim reports it.
            with suppress(StoreUnavailable, StoreCorrupt):
                await self._router.set_aside(queue)
        except Exception as problem:
            INTERNAL_ERRORS.note(problem, "streams.claim", queue=queue)
        finally:
            self._clearing.pop(queue).set()
            self.wake(queue)


def fetched(row: SeenRow) -> FetchedRow:
    return FetchedRow(row.number, row.due_ms, row.attempt, row.bits or None, row.data)


def fetched_past(row: FinishedRow) -> FetchedRow:
    is_whole = row.bits == item_bits(0, row.head.count)
    errors = tuple(PastError(*error) for error in row.errors)
    said = (*(row.holder or ("", 0)), row.result, row.job)
    finished = Finished(row.outcome, row.finished_ms, errors, *said)
    return FetchedRow(0, 0, row.attempt, None if is_whole else row.bits, row.data, finished)
