"""Carries out the requests of a client, once their frames are whole and in the window.

A push is handed to the spooler from the connection's own task: one send per run, and nothing else;
a push to a queue with unique keys goes to the keyed intake instead. Requests that wait for stores,
items or the books (LEASE, SETTLE, EXTEND, CONTROL, FETCH, STATS) run as tasks in the connection's
nursery, so that the connection keeps reading; the window bounds their number. Every request is
answered once, through `Replies`.

An answer to LEASE, CONTROL, FETCH or STATS may have megabytes. So at most ANSWERS_AT_ONCE of them
are made at a time, and none while the client has much to read: a client that asks and does not read
cannot fill the daemon's memory.

It owns the leases of its connection, and gives them back when the connection has ended.

On cancel a task answers nothing and frees its place; a report that has begun is completed.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec
import structlog
import trio

from actors.config.queue import QueueSettings
from actors.config.settings import SocketSettings
from actors.ingest.large_bodies import VALUES_MAX, LargeBodies, has_too_many_values
from actors.ingest.window import Budget
from actors.model.refusals import (
    bad_request,
    draining,
    lease_lost,
    too_large,
    unavailable,
    unknown_queue,
)
from actors.ports.tiers import StoreCorrupt, StoreUnavailable
from actors.spooler.client import SpoolerClient
from actors.spooler.messages import Answers, Append, OfferRun
from actors.workers.pull import Holdings, Pull
from forebay import lease_frames, wire
from forebay.errors import BadFrame, BadRun, Refused
from forebay.fetch_frames import FetchedRow, FetchWish, pack_fetched, unpack_fetch
from forebay.lease_frames import LeasedRun
from forebay.limits import REPORT_BYTES_MAX
from forebay.run import RunHead, read_head, verify
from forebay.stage_frames import RESERVED, WRITE_HEADER, unpack_stage, write_of
from forebay.wire import Kind

M = TypeVar("M")
N = TypeVar("N", contravariant=True)
Work = Callable[[int, bytes], Awaitable[bytes]]
"""Carries out a request, given its number and body; returns the frame that answers it."""

LEASES_AT_ONCE: Final = 16
"""How many LEASE requests of a connection may wait for items."""
ANSWERS_AT_ONCE: Final = 4
"""How many answers of any size are made at a time per connection."""

log = structlog.get_logger(__name__)


class Controls(Protocol):
    """Requests of operators and tools: dead letters, pauses, queues, breakers."""

    async def perform(self, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The RESULT of an operation of docs/protocol.md. Raises Refused or StoreUnavailable."""

    async def report(self) -> dict[str, Any]:
        """What STATS answers. Raises StoreUnavailable."""


class KnownQueues(Protocol):
    def queue(self, name: str) -> QueueSettings | None:
        """None: the queue does not exist and pushing would not create it."""


class KeyedQueues(Protocol):
    @property
    def offers(self) -> trio.MemorySendChannel[OfferRun]:
        """Takes pushes to queues for which `is_keyed` is true."""

    def is_keyed(self, queue: str) -> bool: ...


class Channel(Protocol[N]):
    """The inbox of an actor that stores runs."""

    async def send(self, message: N) -> None: ...

    def send_nowait(self, message: N) -> None: ...


class Rows(Protocol):
    """What FETCH reads."""

    async def fetch(self, wish: FetchWish) -> tuple[dict[str, Any], list[FetchedRow]]:
        """The fields of the answer, and the rows. Raises Refused or StoreUnavailable."""


class Replies(Answers, Protocol):
    """A connection, for the actors that answer its requests. Nothing here blocks."""

    def answer(self, sequence: int, data: bytes) -> None: ...

    def refuse(self, sequence: int, refused: Refused) -> None: ...

    def drop(self, sequence: int) -> None: ...

    async def room(self) -> None:
        """Returns when an answer of any size may be made."""

    def hand_over(self) -> None: ...

    def start(self, work: Callable[..., Awaitable[None]], *args: object) -> None: ...

    def note_bad_run(self, problem: BadRun) -> None: ...

    def fail(self, sequence: int, kind: Kind, problem: Exception) -> None:
        """Answers INTERNAL: the request has met a bug."""


@dataclass(slots=True)
class IngestShared:
    """What the connections of one ingest share."""

    settings: SocketSettings
    catalogue: KnownQueues
    spooler: SpoolerClient
    keys: KeyedQueues
    pull: Pull
    rows: Rows
    control: Controls
    budget: Budget
    """For bytes in flight."""
    unread: Budget
    """For answers that clients have not read."""
    refused: Counter[str] = field(default_factory=Counter)
    is_draining: bool = False
    large_bodies: LargeBodies = field(default_factory=LargeBodies)


class Requests:
    def __init__(self, shared: IngestShared, replies: Replies) -> None:
        self._shared = shared
        self._replies = replies
        self._holdings = Holdings()
        self._leasing = 0
        self._turns = trio.Semaphore(ANSWERS_AT_ONCE)

    @property
    def holds_leases(self) -> bool:
        """Expired leases do not count, even before their items are put back."""
        return self._shared.pull.is_awaited(self._holdings)

    async def take(self, kind: Kind, sequence: int, body: bytes) -> None:
        """Takes a request that is whole and in the window."""
        try:
            match kind:
                case Kind.PUSH:
                    await self._push(sequence, body)
                case Kind.STAGE:
                    await self._stage(sequence, body)
                case Kind.PING:
                    self._replies.answer(sequence, wire.frame(Kind.PONG, sequence, body))
                case Kind.STATS:
                    self._begin(kind, partial(self._in_turn, self._stats), sequence, body)
                case Kind.LEASE:
                    self._begin(kind, self._lease, sequence, body)
                case Kind.SETTLE:
                    self._begin(kind, self._settle, sequence, body)
                case Kind.EXTEND:
                    self._begin(kind, self._extend, sequence, body)
                case Kind.CONTROL:
                    self._begin(kind, partial(self._in_turn, self._control), sequence, body)
                case Kind.FETCH:
                    self._begin(kind, partial(self._in_turn, self._fetch), sequence, body)
                case _:
                    raise AssertionError(f"a connection takes no {kind.name} for a request")
        except Exception as problem:
            self._replies.fail(sequence, kind, problem)

    def end_waits(self) -> None:
        """Stops leasing on this connection; waiting LEASE requests get an empty answer."""
        self._holdings.end_waits()

    async def close(self) -> None:
        """The connection has ended."""
        if self._holdings.keys:
            await self._shared.pull.give_back(self._holdings)

    async def _push(self, sequence: int, data: bytes) -> None:
        try:
            head = self._check(data)
        except Refused as refused:
            self._replies.refuse(sequence, refused)
            return
        keys = self._shared.keys
        if keys.is_keyed(head.queue):
            offer = OfferRun(head, data, self._replies, sequence)
            await self._hand_over(sequence, offer, keys.offers)
            return
        append = Append(head, data, self._replies, sequence)
        await self._hand_over(sequence, append, self._shared.spooler)

    async def _stage(self, sequence: int, body: bytes) -> None:
        try:
            try:
                write, stage, run = unpack_stage(body)
            except BadRun as problem:
                raise self._bad_run(problem) from problem
            data = bytes(run)
            head = self._check(data)
            if stage in RESERVED:
                raise self._bad_run(BadRun(f"stage id {stage.hex()} is reserved"))
            if write in RESERVED:
                raise self._bad_run(BadRun(f"write id {write.hex()} is reserved"))
            if write_of(head) != write:
                raise self._bad_run(BadRun(f"the header {WRITE_HEADER} is not {write.hex()}"))
        except Refused as refused:
            self._replies.refuse(sequence, refused)
            return
        append = Append(head, data, self._replies, sequence, write, stage)
        await self._hand_over(sequence, append, self._shared.spooler)

    def _check(self, data: bytes) -> RunHead:
        """The head of a run that may be stored; raises Refused otherwise."""
        shared = self._shared
        if shared.is_draining:
            raise draining()
        try:
            head = read_head(data)
            if head.raw_bytes > shared.settings.max_run_bytes:
                raise too_large(shared.settings.max_run_bytes)
            verify(head, data)
        except BadRun as problem:
            raise self._bad_run(problem) from problem
        if shared.catalogue.queue(head.queue) is None:
            raise unknown_queue(head.queue)
        return head

    def _bad_run(self, problem: BadRun) -> Refused:
        self._replies.note_bad_run(problem)
        return Refused("BAD_RUN", str(problem))

    async def _hand_over(self, sequence: int, message: M, channel: Channel[M]) -> None:
        try:
            try:
                channel.send_nowait(message)
            except trio.WouldBlock:
                self._replies.flush()
                await channel.send(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The spooler ends before its clients only when the daemon does.
            self._replies.refuse(sequence, draining())
        else:
            self._replies.hand_over()

    def _begin(self, kind: Kind, work: Work, sequence: int, body: bytes) -> None:
        self._replies.hand_over()
        self._replies.start(self._see_through, kind, work, sequence, body)

    async def _see_through(self, kind: Kind, work: Work, sequence: int, body: bytes) -> None:
        """Carries out the request and answers it."""
        replies = self._replies
        try:
            data = await work(sequence, body)
        except Refused as refused:
            replies.refuse(sequence, refused)
        except BadFrame as problem:
            # The frame is whole, and only its body is invalid: the connection goes on.
            replies.refuse(sequence, bad_request(str(problem)))
        except StoreUnavailable as problem:
            replies.refuse(sequence, unavailable(problem))
        except StoreCorrupt as problem:
            log.error("requests.store_corrupt", error=str(problem))
            replies.refuse(sequence, unavailable(problem))
        except trio.Cancelled:
            replies.drop(sequence)
            raise
        except Exception as problem:
            replies.fail(sequence, kind, problem)
        else:
            replies.answer(sequence, data)
        replies.flush()

    async def _in_turn(
        self, work: Callable[[int, bytes], Awaitable[bytes]], sequence: int, body: bytes
    ) -> bytes:
        """Does work whose answer may be large, once there is room for it."""
        async with self._turns:
            await self._replies.room()
            return await work(sequence, body)

    async def _stats(self, sequence: int, _: bytes) -> bytes:
        return _document(Kind.REPORT, sequence, await self._shared.control.report())

    async def _lease(self, sequence: int, body: bytes) -> bytes:
        if self._shared.is_draining:
            raise draining()
        wish = lease_frames.read_lease(body)
        if self._leasing >= LEASES_AT_ONCE:
            raise bad_request(f"{LEASES_AT_ONCE} LEASE requests of this connection wait already")
        self._leasing += 1
        try:
            leased = await self._shared.pull.lease(wish, self._holdings)
            # The wait for items may be long: the answer's turn begins when they are there.
            return await self._in_turn(partial(_leased, leased), sequence, body)
        finally:
            self._leasing -= 1

    async def _settle(self, sequence: int, body: bytes) -> bytes:
        await self._shared.large_bodies.wait(len(body))
        queue, reports = lease_frames.read_settle(body)
        return _statuses(Kind.SETTLED, sequence, await self._shared.pull.settle(queue, reports))

    async def _extend(self, sequence: int, body: bytes) -> bytes:
        queue, lease_ms, tokens = lease_frames.read_extend(body)
        extended = await self._shared.pull.extend(queue, tokens, lease_ms)
        return _statuses(Kind.EXTENDED, sequence, extended)

    async def _control(self, sequence: int, body: bytes) -> bytes:
        await self._shared.large_bodies.wait(len(body))
        if has_too_many_values(body):
            raise bad_request(f"the body has more than {VALUES_MAX} JSON values")
        fields = wire.read_json(body)
        op = fields.pop("op", None)
        if not isinstance(op, str):
            raise bad_request("op is missing, or is not a text")
        return _document(Kind.RESULT, sequence, await self._shared.control.perform(op, fields))

    async def _fetch(self, sequence: int, body: bytes) -> bytes:
        wish = unpack_fetch(body)
        about, rows = await self._shared.rows.fetch(wish)
        return wire.frame(Kind.FETCHED, sequence, pack_fetched(about, rows))


async def _leased(leased: list[LeasedRun], sequence: int, _: bytes) -> bytes:
    return wire.frame(Kind.LEASED, sequence, lease_frames.pack_leased(leased))


def _statuses(kind: Kind, sequence: int, held: list[bool]) -> bytes:
    if not any(held):
        raise lease_lost(len(held))
    return wire.frame(kind, sequence, lease_frames.pack_statuses(held))


def _document(kind: Kind, sequence: int, content: dict[str, Any]) -> bytes:
    try:
        # 3 MiB of text take 2 ms, and 96 with `json`.
        body = msgspec.json.encode(content)
    except UnicodeEncodeError:
        # Half of a character in some text: `pack_json` writes a question mark.
        body = wire.pack_json(content)
    if len(body) > REPORT_BYTES_MAX:
        raise too_large(REPORT_BYTES_MAX)
    return wire.frame(kind, sequence, body)
