"""Clients that are slow, silent or deaf. Time is trio's mock clock throughout."""

from pathlib import Path

import pytest
import structlog
import trio
import trio.testing
from trio.testing import MockClock

from forebay import wire
from forebay.wire import Kind
from tests.wire.harness import RawClient, StubSpooler, make_run, push_frame, serve


async def read_timeout(client: RawClient, seconds: float) -> str:
    """The daemon's last words, which must come that many seconds from now, or one later."""
    started = trio.current_time()
    refused = await client.read_last_words()
    assert seconds <= trio.current_time() - started <= seconds + 1
    assert (refused.code, refused.retryable) == ("TIMEOUT", True)
    return refused.text


@pytest.mark.parametrize("said", [b"", wire.hello("test")[:5], wire.hello("test")[:-1]])
async def test_client_without_a_whole_hello_is_ended(
    tmp_path: Path, autojump_clock: MockClock, said: bytes
) -> None:
    async with serve(tmp_path, hello_timeout=5) as served:
        client = await served.connect()
        await client.send(said)
        assert "HELLO" in await read_timeout(client, 5)


@pytest.mark.parametrize("cut", [1, 12, 1000])
async def test_frame_that_is_not_finished_ends_the_connection(
    tmp_path: Path, autojump_clock: MockClock, cut: int
) -> None:
    async with serve(tmp_path, frame_timeout=30) as served:
        client = await served.greeted()
        await trio.sleep(100)
        await client.send(push_frame(1, make_run(b"x" * 2000))[:cut])
        assert "frame" in await read_timeout(client, 30)
        assert served.in_flight_bytes == 0


async def test_frame_that_trickles_in_is_not_finished_in_time(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with serve(tmp_path, frame_timeout=30) as served:
        client = await served.greeted()
        started = trio.current_time()
        frame = push_frame(1, make_run(b"x" * 2000))
        async with trio.open_nursery() as nursery:

            async def trickle() -> None:
                for byte in frame:
                    await client.send(bytes([byte]))
                    await trio.sleep(1)

            nursery.start_soon(trickle)
            await read_timeout(client, 30)
            nursery.cancel_scope.cancel()
        assert trio.current_time() - started <= 31


async def test_each_frame_has_its_own_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A slow client whose frames each come in time is served for as long as it likes."""
    async with serve(tmp_path, frame_timeout=30) as served:
        client = await served.greeted()
        frame = push_frame(1, make_run())
        await client.send(frame[:10])
        for _ in range(10):
            await trio.sleep(20)
            await client.send(frame[10:], frame[:10])
            assert (await client.read())[:2] == (Kind.ACK, 1)


async def test_frame_after_a_too_large_one_has_its_own_time(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with serve(tmp_path, frame_timeout=30) as served:
        client = await served.greeted()
        frame = push_frame(2, make_run())
        await client.send(wire.frame_head(Kind.PUSH, 1, 6_000_000))
        assert (await client.read_error())[1].code == "TOO_LARGE"
        await trio.sleep(20)
        await client.send(bytes(6_000_000), frame[:10])
        await trio.sleep(20)
        await client.send(frame[10:])
        assert (await client.read())[:2] == (Kind.ACK, 2)


async def test_too_large_frame_must_be_finished_in_time_as_well(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with serve(tmp_path, frame_timeout=30) as served:
        client = await served.greeted()
        await client.send(wire.frame_head(Kind.PUSH, 1, 50_000_000), bytes(1000))
        assert (await client.read_error())[1].code == "TOO_LARGE"
        assert "frame" in await read_timeout(client, 30)


@pytest.mark.parametrize("begun", [0, 5, 12, 400])
async def test_time_in_which_the_daemon_does_not_read_is_not_counted(
    tmp_path: Path, autojump_clock: MockClock, begun: int
) -> None:
    async with serve(tmp_path, frame_timeout=30, window_frames=1) as served:
        served.spooler.answer = None
        client = await served.greeted()
        second = push_frame(2, make_run(b"x" * 1000))
        await client.send(push_frame(1, make_run()), second[:begun])
        await served.spooler.wait_for(1)
        await trio.testing.wait_all_tasks_blocked()
        await client.send(second[begun:500])
        await trio.sleep(1000)
        served.spooler.release()
        await trio.sleep(20)
        await client.send(second[500:])
        await served.spooler.wait_for(2)
        served.spooler.release()
        assert [(await client.read())[:2] for _ in "12"] == [(Kind.ACK, 1), (Kind.ACK, 2)]


async def test_time_that_the_spooler_takes_is_not_counted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with serve(tmp_path, frame_timeout=30, spooler=StubSpooler(inbox_size=0)) as served:
        client = await served.greeted()
        first = push_frame(1, make_run(b"x" * 1000))
        await client.send(first[:500])
        await trio.testing.wait_all_tasks_blocked()
        served.spooler.is_open = trio.Event()
        await client.send(first[500:], push_frame(2, make_run()))
        await trio.sleep(1000)
        served.spooler.is_open.set()
        assert [(await client.read())[:2] for _ in "12"] == [(Kind.ACK, 1), (Kind.ACK, 2)]


async def test_silent_client_is_ended_after_the_idle_timeout(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with serve(tmp_path, idle_timeout=60) as served:
        client = await served.greeted()
        assert "anything" in await read_timeout(client, 60)


async def test_silent_client_is_kept_without_an_idle_timeout(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with serve(tmp_path) as served:
        client = await served.greeted()
        await trio.sleep(10_000)
        await client.send(wire.frame(Kind.PING, 1))
        assert (await client.read())[0] is Kind.PONG


async def test_pings_keep_a_connection_open(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serve(tmp_path, idle_timeout=60) as served:
        client = await served.greeted()
        for _ in range(5):
            await trio.sleep(50)
            await client.send(wire.frame(Kind.PING, 1))
            assert (await client.read())[0] is Kind.PONG
        await read_timeout(client, 60)


async def test_client_that_waits_for_an_answer_is_not_idle(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with serve(tmp_path, idle_timeout=60) as served:
        served.spooler.answer = None
        client = await served.greeted()
        await client.push(1, make_run())
        await served.spooler.wait_for(1)
        await trio.sleep(1000)
        served.spooler.release()
        assert (await client.read())[:2] == (Kind.ACK, 1)
        await read_timeout(client, 60)


async def test_client_that_does_not_read_its_answers_is_ended(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with serve(tmp_path, write_timeout=30, idle_timeout=5) as served:
        client = await served.greeted()
        started = trio.current_time()
        with pytest.raises(trio.BrokenResourceError):
            await client.send(wire.frame(Kind.PING, 1, bytes(64)) * 100_000)
        assert 30 <= trio.current_time() - started <= 31
        assert served.ingest.figures()["connections"] == 0


async def test_client_that_reads_slowly_is_kept(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serve(tmp_path, write_timeout=30) as served:
        client = await served.greeted()
        pings = 30_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, wire.frame(Kind.PING, 1, bytes(64)) * pings)
            for index in range(pings):
                if index % 1000 == 0:
                    await trio.sleep(20)
                assert (await client.read())[0] is Kind.PONG


async def test_deaf_client_does_not_hold_up_its_own_goodbye_forever(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with serve(tmp_path, write_timeout=30) as served:
        client = await served.greeted()
        await client.send(wire.frame(Kind.PING, 1, bytes(64)) * 3_000, wire.frame(Kind.GOODBYE, 2))
        await trio.sleep(32)
        assert served.ingest.figures()["connections"] == 0


async def test_end_of_a_slow_client_is_one_line_in_the_log(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with structlog.testing.capture_logs() as lines:
        async with serve(tmp_path, hello_timeout=5) as served:
            client = await served.connect()
            await read_timeout(client, 5)
            await trio.sleep(100)
    assert [(line["event"], line["code"]) for line in lines] == [
        ("ingest.connection_ended", "TIMEOUT")
    ]


async def test_end_of_a_deaf_client_is_one_line_in_the_log(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with structlog.testing.capture_logs() as lines:
        async with serve(tmp_path, write_timeout=30) as served:
            client = await served.greeted()
            with pytest.raises(trio.BrokenResourceError):
                await client.send(wire.frame(Kind.PING, 1, bytes(64)) * 100_000)
    [line] = lines
    assert (line["event"], line["code"]) == ("ingest.connection_ended", "TIMEOUT")
    assert "reading its answers" in line["text"]
    assert served.ingest.figures()["refused"] == {"TIMEOUT": 1}
