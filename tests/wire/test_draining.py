"""The daemon's end: everything outstanding is answered, nothing new is taken."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from forebay import wire
from forebay.wire import Kind
from tests.wire.harness import (
    RawClient,
    Served,
    StubSpooler,
    make_ingest,
    make_run,
    push_frame,
    serve,
)


async def read_draining(client: RawClient) -> None:
    refused = await client.read_last_words()
    assert (refused.code, refused.retryable) == ("DRAINING", True)
    assert refused.retry_after_ms > 0


async def test_quiet_connections_are_told_and_closed(served: Served) -> None:
    clients = [await served.greeted(), await served.greeted(), await served.connect()]
    await trio.testing.wait_all_tasks_blocked()
    await served.ingest.drain()
    for client in clients:
        await read_draining(client)


async def test_outstanding_answers_are_sent_before_the_end(served: Served) -> None:
    served.spooler.answer = None
    client = await served.greeted()
    await client.send(push_frame(1, make_run()), push_frame(2, make_run()))
    await served.spooler.wait_for(2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.ingest.drain)
        await trio.testing.wait_all_tasks_blocked()
        served.spooler.release(count=1)
        assert (await client.read())[:2] == (Kind.ACK, 1)
        await trio.testing.wait_all_tasks_blocked()
        served.spooler.release()
        assert (await client.read())[:2] == (Kind.ACK, 2)
        await read_draining(client)


async def test_pushes_are_refused_but_questions_answered_while_draining(served: Served) -> None:
    served.spooler.answer = None
    client = await served.greeted()
    await client.push(1, make_run())
    await served.spooler.wait_for(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.ingest.drain)
        await trio.testing.wait_all_tasks_blocked()
        await client.push(2, make_run())
        sequence, refused = await client.read_error()
        assert (sequence, refused.code, refused.fatal) == (2, "DRAINING", False)
        assert refused.retry_after_ms > 0
        await client.send(wire.frame(Kind.PING, 3), wire.frame(Kind.STATS, 4))
        assert [(await client.read())[:2] for _ in "12"] == [(Kind.PONG, 3), (Kind.REPORT, 4)]
        served.spooler.release()
        assert (await client.read())[:2] == (Kind.ACK, 1)
        await read_draining(client)
    assert len(served.spooler.appends) == 1


async def test_frame_that_has_begun_is_refused_when_it_is_whole(served: Served) -> None:
    client = await served.greeted()
    frame = push_frame(1, make_run(b"x" * 1000))
    await client.send(frame[:500])
    await trio.testing.wait_all_tasks_blocked()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.ingest.drain)
        await trio.testing.wait_all_tasks_blocked()
        await client.send(frame[500:])
        sequence, refused = await client.read_error()
        assert (sequence, refused.code) == (1, "DRAINING")
        await read_draining(client)


async def test_connection_that_was_just_accepted_is_told_as_well(served: Served) -> None:
    """Accepted before the draining, and its task started after it."""
    served.spooler.answer = None
    client = await served.greeted()
    await client.push(1, make_run())
    await served.spooler.wait_for(1)
    ours, theirs = trio.socket.socketpair()
    late = RawClient(trio.SocketStream(theirs))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.ingest.drain)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(served.ingest._serve, trio.SocketStream(ours))
        await read_draining(late)
        served.spooler.release()
    await late.stream.aclose()


async def test_nobody_can_connect_any_more(served: Served) -> None:
    await served.ingest.drain()
    with pytest.raises(ConnectionRefusedError):
        await served.connect()


async def test_deaf_client_holds_the_end_up_for_the_write_timeout_at_most(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with serve(tmp_path, write_timeout=30) as served:
        client = await served.greeted()
        await client.send(wire.frame(Kind.PING, 1, bytes(64)) * 3_000)
        await trio.testing.wait_all_tasks_blocked()
        started = trio.current_time()
        await served.ingest.drain()
        assert trio.current_time() - started <= 31


async def test_drain_may_be_asked_for_twice(served: Served) -> None:
    client = await served.greeted()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.ingest.drain)
        nursery.start_soon(served.ingest.drain)
    await served.ingest.drain()
    await read_draining(client)


async def test_drain_that_is_given_up_leaves_the_draining_under_way(served: Served) -> None:
    served.spooler.answer = None
    client = await served.greeted()
    await client.push(1, make_run())
    await served.spooler.wait_for(1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await served.ingest.drain()
    served.spooler.release()
    assert (await client.read())[:2] == (Kind.ACK, 1)
    await read_draining(client)


@pytest.mark.parametrize(
    "request_kind,code", [(Kind.PUSH, "DRAINING"), (Kind.STATS, "UNAVAILABLE")]
)
async def test_spooler_that_is_gone_refuses(tmp_path: Path, request_kind: Kind, code: str) -> None:
    spooler = StubSpooler()
    spooler.is_open = trio.Event()
    async with serve(tmp_path, spooler=spooler) as served:
        client = await served.greeted()
        spooler.close()
        body = make_run() if request_kind is Kind.PUSH else b""
        await client.send(wire.frame(request_kind, 1, body))
        sequence, refused = await client.read_error()
        assert (sequence, refused.code, refused.fatal) == (1, code, False)
        assert served.in_flight_bytes == 0


async def test_run_returns_when_the_last_connection_is_closed(tmp_path: Path) -> None:
    from actors.config.settings import SocketSettings
    from daemon.process.listen import open_socket

    settings = SocketSettings(path=tmp_path / "s.sock")
    ended = trio.Event()

    async def run(serve_it: Callable[[], Awaitable[None]]) -> None:
        await serve_it()
        ended.set()

    with open_socket(settings) as opened:
        spooler = StubSpooler()
        ingest = make_ingest(settings, spooler)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, partial(ingest.run, [opened.listener]))
            client = RawClient(await trio.open_unix_socket(str(settings.path)))
            await client.say_hello()
            await ingest.drain()
            await ended.wait()
            await client.stream.aclose()
