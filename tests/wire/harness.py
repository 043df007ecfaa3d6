"""An ingest on a real Unix socket with a spooler that does as the test says, and a raw client.

The spooler is an actor that answers `Append`s: at once, or when the test says so. It stores
nothing. The client writes and reads bytes as they are on the wire.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import trio

from actors.config.queue import QueueSettings
from actors.config.settings import SocketSettings
from actors.ingest.ingest import Ingest
from actors.model.books import JournalReport
from actors.model.refusals import bad_request
from actors.observers.tallies import Tallies
from actors.spooler.client import SpoolerClient
from actors.spooler.messages import Append, Inquire, OfferRun, SpoolerMessage
from actors.tiers.warm import MemoryWarm
from actors.workers.pull import Pull
from actors.workers.pull_reports import Ended
from actors.workers.recording import Recording
from daemon.process.listen import ListeningSocket, open_socket
from forebay import wire
from forebay.errors import Refused
from forebay.fetch_frames import FetchedRow, FetchWish
from forebay.run import encode_run
from forebay.wire import Kind, Outcome
from tests.daemon.cli.commands import PATIENT

Answer = Outcome | Refused
Frame = tuple[Kind, int, bytes]

RUN_ID = bytes.fromhex("0198c0de00007000800000000000002a")
REPORT: dict[str, Any] = {"daemon": {"accepted": 3}, "queues": {"crm": {"accepted": 3}}}


class StubSpooler:
    """Answers with `answer` as soon as a run comes, or keeps it if `answer` is None."""

    def __init__(self, inbox_size: float = 64) -> None:
        self.sender, self._inbox = trio.open_memory_channel[SpoolerMessage](inbox_size)
        self.answer: Callable[[Append], Answer] | None = lambda _: Outcome.STORED
        self.report = REPORT
        self.appends: list[Append] = []
        self.waiting: list[Append] = []
        self.is_open = trio.Event()
        """Replaced by one that is not set, it keeps the spooler from its inbox."""
        self.is_open.set()
        self._arrived = trio.Event()

    async def run(self) -> None:
        while True:
            await self.is_open.wait()
            message = await self._inbox.receive()
            match message:
                case Append():
                    self.appends.append(message)
                    self.waiting.append(message)
                    if self.answer is not None:
                        self.release(self.answer(message))
                case Inquire():
                    message.reply.put(cast(JournalReport, self.report))
                case _:
                    raise AssertionError(f"ingest sent {message}")
            self._arrived.set()

    def close(self) -> None:
        """The inbox is no more."""
        self._inbox.close()

    def release(self, answer: Answer = Outcome.STORED, count: int | None = None) -> None:
        """Answers what waits, the oldest `count` of it, and flushes."""
        released, self.waiting = self.waiting[:count], self.waiting[len(self.waiting[:count]) :]
        for append in released:
            append.answers.put(append.sequence, answer)
        for answers in dict.fromkeys(append.answers for append in released):
            answers.flush()

    async def wait_for(self, runs: int) -> None:
        """Returns when that many runs have come in all."""
        while len(self.appends) < runs:
            self._arrived = trio.Event()
            await self._arrived.wait()


class RawClient:
    """Bytes out, frames in."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._received = bytearray()

    async def send(self, *data: bytes) -> None:
        await self.stream.send_all(b"".join(data))

    async def say_hello(self) -> None:
        await self.send(wire.hello("test"))
        kind, sequence, _ = await self.read()
        assert (kind, sequence) == (Kind.WELCOME, wire.CONNECTION)

    async def push(self, sequence: int, run: bytes) -> None:
        await self.send(push_frame(sequence, run))

    async def read(self) -> Frame:
        """The next frame; fails if the daemon closes before it."""
        await self._read_bytes(12)
        head = wire.read_frame_head(self._received)
        await self._read_bytes(12 + head.body_bytes)
        body = bytes(self._received[12 : 12 + head.body_bytes])
        del self._received[: 12 + head.body_bytes]
        return head.kind, head.sequence, body

    async def read_error(self) -> tuple[int, Refused]:
        kind, sequence, body = await self.read()
        assert kind is Kind.ERROR
        return sequence, wire.read_error(body)

    async def read_last_words(self) -> Refused:
        """A fatal error, and after it nothing."""
        sequence, refused = await self.read_error()
        assert sequence == wire.CONNECTION
        assert refused.fatal
        await self.read_end()
        return refused

    async def read_end(self) -> None:
        """The daemon has closed, and has said nothing more."""
        try:
            rest = await self.stream.receive_some()
        except trio.BrokenResourceError:
            rest = b""
        assert self._received + rest == b""

    async def _read_bytes(self, count: int) -> None:
        while len(self._received) < count:
            data = await self.stream.receive_some(65536)
            assert data, f"the daemon closed after {bytes(self._received)!r}"
            self._received += data


class StubQueues:
    """A catalogue in which a function of the test says which queues exist; none has keys."""

    def __init__(self, known_queue: Callable[[str], bool]) -> None:
        self._known_queue = known_queue
        self.offers, _ = trio.open_memory_channel[OfferRun](0)

    def queue(self, name: str) -> QueueSettings | None:
        return QueueSettings() if self._known_queue(name) else None

    def except_flows(self, _: str) -> frozenset[str] | None:
        return frozenset()

    def is_keyed(self, _: str) -> bool:
        return False


class Performs(Protocol):
    async def perform(self, op: str, fields: Mapping[str, Any]) -> dict[str, Any]: ...


class StubControl:
    """STATS is asked of the spooler; operations of `performs`, if there is one."""

    def __init__(self, spooler: SpoolerClient, performs: Performs | None) -> None:
        self._spooler = spooler
        self._performs = performs
        self.ingest: Ingest | None = None

    async def perform(self, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        if self._performs is None:
            raise bad_request(f"there is no operation {op}")
        return await self._performs.perform(op, fields)

    async def report(self) -> dict[str, Any]:
        figures = {} if self.ingest is None else self.ingest.figures()
        report = await self._spooler.ask(Inquire())
        return report | {"ingest": figures}

    async def fetch(self, _: FetchWish) -> tuple[dict[str, Any], list[FetchedRow]]:
        raise bad_request("there are no claims")


def make_ingest(
    settings: SocketSettings,
    spooler: StubSpooler,
    known_queue: Callable[[str], bool] = lambda _: True,
    pull: Pull | None = None,
    control: Performs | None = None,
) -> Ingest:
    client, queues = SpoolerClient(spooler.sender), StubQueues(known_queue)
    stub = StubControl(client, control)
    nothing = Pull(MemoryWarm(), NoSettling(), queues, Tallies())
    stub.ingest = Ingest(settings, queues, client, queues, pull or nothing, stub, stub)
    return stub.ingest


class NoSettling:
    async def settle(self, queue: str, ended: Sequence[Ended]) -> list[Recording]:
        raise AssertionError(f"nothing of {queue} was leased")


class Served:
    """A running ingest."""

    def __init__(self, ingest: Ingest, spooler: StubSpooler, opened: ListeningSocket) -> None:
        self.ingest = ingest
        self.spooler = spooler
        self.path = opened.path
        self._streams: list[trio.SocketStream] = []

    async def connect(self) -> RawClient:
        stream = await trio.open_unix_socket(str(self.path))
        self._streams.append(stream)
        return RawClient(stream)

    async def greeted(self) -> RawClient:
        client = await self.connect()
        await client.say_hello()
        return client

    @property
    def in_flight_bytes(self) -> int:
        taken: int = self.ingest.figures()["in_flight_bytes"]
        return taken

    def close_clients(self) -> None:
        for stream in self._streams:
            stream.socket.close()


@asynccontextmanager
async def serve(
    directory: Path,
    *,
    known_queue: Callable[[str], bool] = lambda _: True,
    spooler: StubSpooler | None = None,
    pull: Pull | None = None,
    control: Performs | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """An ingest with these socket settings, until the end of the context."""
    given = {"path": directory / "s.sock", **PATIENT, **settings}
    checked = SocketSettings.model_validate(given)
    spooler = spooler or StubSpooler()
    with open_socket(checked) as opened:
        ingest = make_ingest(checked, spooler, known_queue, pull, control)
        served = Served(ingest, spooler, opened)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spooler.run)
            await nursery.start(ingest.run, [opened.listener])
            try:
                yield served
            finally:
                served.close_clients()
                nursery.cancel_scope.cancel()


def make_run(*payloads: bytes, queue: str = "crm", **options: Any) -> bytes:
    return encode_run(payloads or (b"hello",), queue=queue, compressed=False, **options)


def push_frame(sequence: int, run: bytes) -> bytes:
    return wire.frame(Kind.PUSH, sequence, run)
