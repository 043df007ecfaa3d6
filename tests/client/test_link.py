"""The link against a daemon that the test plays, byte by byte, on a real socket."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import TypeVar

import pytest
import trio

from forebay import wire
from forebay.client import Client
from forebay.errors import Refused
from forebay.link import Cut, Frame, Link, Lost
from forebay.run import encode_run
from forebay.wire import Kind, Outcome
from tests.wire.harness import RawClient

T = TypeVar("T")
WELCOME = wire.document(Kind.WELCOME, 0, {"version": 1})
DENIED = wire.error(0, Refused("DENIED", "not you", fatal=True))


@asynccontextmanager
async def listening(path: Path) -> AsyncIterator[trio.SocketListener]:
    sock = trio.socket.socket(trio.socket.AF_UNIX)
    await sock.bind(str(path))
    sock.listen()
    async with trio.SocketListener(sock) as listener:
        yield listener


async def in_thread(work: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)


def open_link(path: Path) -> Link:
    return Link(path, "test", monotonic() + 120)


async def accept(listener: trio.SocketListener) -> RawClient:
    """The daemon's end, after HELLO and WELCOME."""
    end = RawClient(await listener.accept())
    kind, _, body = await end.read()
    assert kind is Kind.HELLO
    assert wire.read_hello(body)[:2] == (1, 1)
    await end.send(WELCOME)
    return end


async def test_large_frame_is_taken_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.link.SEND_BUFFER_BYTES", 4096)
    body = bytes(range(256)) * 4096

    def send() -> None:
        link = open_link(tmp_path / "s")
        link.send([wire.frame_head(Kind.PUSH, 1, len(body)), body], monotonic() + 120)
        link.close()

    async with listening(tmp_path / "s") as listener, trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, send)
        end = await accept(listener)
        assert await end.read() == (Kind.PUSH, 1, body)
        await end.stream.aclose()


async def test_answers_are_taken_in_while_sending(tmp_path: Path) -> None:
    """The daemon reads nothing before all its answers are out: neither end may wait."""
    body = bytes(20_000_000)
    answers = 200_000

    def talk() -> int:
        link = open_link(tmp_path / "s")
        link.send([wire.frame_head(Kind.PUSH, 1, len(body)), body], monotonic() + 120)
        frames: list[Frame] = []
        while len(frames) < answers:
            frames += link.receive(120)
        link.close()
        return len(frames)

    async with listening(tmp_path / "s") as listener, trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, talk)
        end = await accept(listener)
        await end.send(wire.ack(1, Outcome.STORED) * answers)
        assert (await end.read())[:2] == (Kind.PUSH, 1)
        await end.stream.aclose()


async def test_daemon_that_reads_nothing_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    def send() -> None:
        link = open_link(tmp_path / "s")
        with pytest.raises(Lost, match="takes no more bytes"):
            link.send([bytes(50_000_000)], monotonic() + 0.01)
        link.close()

    async with listening(tmp_path / "s") as listener, trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, send)
        end = await accept(listener)
    await end.stream.aclose()


async def test_frame_that_comes_in_pieces_is_given_out_whole(tmp_path: Path) -> None:
    report = wire.document(Kind.REPORT, 1, {"queues": "x" * 300_000})

    def read() -> None:
        link = open_link(tmp_path / "s")
        assert link.receive(120) == [(Kind.REPORT, 1, report[12:])]
        with pytest.raises(Lost, match="closed the connection"):
            link.receive(120)
        link.close()

    async with listening(tmp_path / "s") as listener, trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, read)
        end = await accept(listener)
        for at in range(0, len(report), 70_000):
            await end.send(report[at : at + 70_000])
        await end.stream.aclose()


async def test_daemon_that_does_not_answer_hello_is_given_up(tmp_path: Path) -> None:
    def greet() -> None:
        with pytest.raises(Lost, match="did not answer a HELLO"):
            Link(tmp_path / "s", "test", monotonic() + 0.01)

    async with listening(tmp_path / "s"):
        await in_thread(greet)


async def test_connection_that_ends_before_the_welcome_was_cut(tmp_path: Path) -> None:
    def greet() -> None:
        with pytest.raises(Cut, match="closed the connection"):
            open_link(tmp_path / "s")

    async with listening(tmp_path / "s") as listener, trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, greet)
        await (await listener.accept()).aclose()


async def test_full_backlog_is_no_missing_daemon(tmp_path: Path) -> None:
    def connect() -> None:
        with pytest.raises(Cut, match="does not accept"):
            open_link(tmp_path / "s")

    with socket.socket(socket.AF_UNIX) as full, socket.socket(socket.AF_UNIX) as first:
        full.bind(str(tmp_path / "s"))
        full.listen(0)
        first.connect(str(tmp_path / "s"))
        await in_thread(connect)


async def test_last_words_are_heard_by_a_client_that_was_writing(tmp_path: Path) -> None:
    def push() -> None:
        client = Client([tmp_path / "s"], timeout=120)
        client.submit(encode_run([b"1"], queue="crm"))
        with pytest.raises(Refused, match="not you"):
            client.submit(encode_run([bytes(30_000_000)], queue="crm", compressed=False))
        assert client.unacknowledged == 1
        client.abort()

    async with listening(tmp_path / "s") as listener, trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, push)
        end = await accept(listener)
        kind, sequence, _ = await end.read()
        assert kind is Kind.PUSH
        await end.send(wire.ack(sequence, Outcome.STORED), DENIED)
        await end.stream.aclose()
