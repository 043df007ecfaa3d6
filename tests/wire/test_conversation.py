"""One transcript for every documented answer that is not an error."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from forebay import wire
from forebay.wire import Kind, Outcome
from tests.wire.harness import (
    REPORT,
    RUN_ID,
    Served,
    StubSpooler,
    make_run,
    push_frame,
    serve,
)


async def test_hello_is_answered_with_the_version_and_the_limits(tmp_path: Path) -> None:
    limits: dict[str, Any] = {
        "max_run_bytes": 2**20,
        "window_bytes": 2**22,
        "window_frames": 5,
        "idle_timeout": 60,
    }
    async with serve(tmp_path, **limits) as served:
        client = await served.connect()
        await client.send(wire.hello("test"))
        kind, sequence, body = await client.read()
    assert (kind, sequence) == (Kind.WELCOME, 0)
    assert json.loads(body) == {
        "version": 1,
        "daemon": "forebay",
        "max_run_bytes": 2**20,
        "window_bytes": 2**22,
        "window_frames": 5,
        "idle_timeout_ms": 60_000,
    }


async def test_hello_needs_no_json(served: Served) -> None:
    client = await served.connect()
    await client.send(wire.frame(Kind.HELLO, 0, b"FBAY\x01\x01\x00\x00"))
    assert (await client.read())[0] is Kind.WELCOME


async def test_client_of_a_later_version_gets_the_version_that_both_speak(served: Served) -> None:
    client = await served.connect()
    await client.send(wire.frame(Kind.HELLO, 0, b"FBAY\x01\x09\x00\x00"))
    _, _, body = await client.read()
    assert json.loads(body)["version"] == 1


async def test_requests_may_follow_hello_without_waiting(served: Served) -> None:
    client = await served.connect()
    await client.send(wire.hello("test"), push_frame(1, make_run()), wire.frame(Kind.PING, 2))
    kinds = {(await client.read())[0] for _ in range(3)}
    assert kinds == {Kind.WELCOME, Kind.ACK, Kind.PONG}


async def test_push_is_acknowledged_only_when_the_spooler_says_so(served: Served) -> None:
    served.spooler.answer = None
    client = await served.greeted()
    await client.push(7, make_run())
    await served.spooler.wait_for(1)
    await client.send(wire.frame(Kind.PING, 8))
    assert (await client.read())[:2] == (Kind.PONG, 8)
    served.spooler.release(Outcome.STORED)
    assert await client.read() == (Kind.ACK, 7, bytes([Outcome.STORED]))


async def test_run_that_was_stored_before_is_acknowledged_as_duplicate(served: Served) -> None:
    served.spooler.answer = lambda _: Outcome.DUPLICATE
    client = await served.greeted()
    await client.push(7, make_run())
    assert await client.read() == (Kind.ACK, 7, bytes([Outcome.DUPLICATE]))


async def test_spooler_gets_the_bytes_as_they_were_sent(served: Served) -> None:
    client = await served.greeted()
    run = make_run(b"a", b"b", run_id=RUN_ID, keys=[b"k1", b"k2"], headers={"trace": "1"})
    await client.push(1, run)
    await client.read()
    [append] = served.spooler.appends
    assert append.data == run
    assert (append.head.run_id, append.head.queue, append.head.count) == (RUN_ID, "crm", 2)


async def test_answers_come_in_the_order_in_which_they_are_made(served: Served) -> None:
    served.spooler.answer = None
    client = await served.greeted()
    for sequence in (1, 2, 3):
        await client.push(sequence, make_run())
    await served.spooler.wait_for(3)
    served.spooler.waiting.reverse()
    served.spooler.release()
    assert [(await client.read())[1] for _ in range(3)] == [3, 2, 1]


async def test_frames_may_arrive_byte_by_byte(served: Served) -> None:
    client = await served.greeted()
    for byte in push_frame(1, make_run()) + wire.frame(Kind.PING, 2, b"x"):
        await client.send(bytes([byte]))
        await trio.testing.wait_all_tasks_blocked()
    assert (await client.read())[:2] == (Kind.ACK, 1)
    assert await client.read() == (Kind.PONG, 2, b"x")


@pytest.mark.parametrize("payload_bytes", [1, 100_000, 262_000, 262_144, 1_000_000, 4_000_000])
async def test_runs_of_any_size_arrive_whole(tmp_path: Path, payload_bytes: int) -> None:
    """Around and over the size of the receive buffer, between frames of another size."""
    async with serve(tmp_path) as served:
        client = await served.greeted()
        runs = [
            make_run(os.urandom(size)) for size in (300, payload_bytes, 70_000, payload_bytes, 5)
        ]
        async with trio.open_nursery() as nursery:
            for sequence, run in enumerate(runs, start=1):
                nursery.start_soon(client.push, sequence, run)
                await served.spooler.wait_for(sequence)
        answers = [await client.read() for _ in runs]
        assert [kind for kind, _, _ in answers] == [Kind.ACK] * len(runs)
        assert [append.data for append in served.spooler.appends] == runs


async def test_sequence_number_may_be_used_again_after_its_answer(served: Served) -> None:
    client = await served.greeted()
    for _ in range(2):
        await client.push(4_294_967_295, make_run())
        assert (await client.read())[:2] == (Kind.ACK, 4_294_967_295)


@pytest.mark.parametrize("body", [b"", b"\x00" * 64])
async def test_ping_comes_back_as_it_was(served: Served, body: bytes) -> None:
    client = await served.greeted()
    await client.send(wire.frame(Kind.PING, 3, body))
    assert await client.read() == (Kind.PONG, 3, body)


async def test_stats_are_reported_with_the_state_of_the_ingest(served: Served) -> None:
    client = await served.greeted()
    await served.greeted()
    await client.push(1, b"no run")
    await client.read()
    await client.send(wire.frame(Kind.STATS, 2))
    kind, sequence, body = await client.read()
    assert (kind, sequence) == (Kind.REPORT, 2)
    assert json.loads(body) == {
        **REPORT,
        "ingest": {"connections": 2, "in_flight_bytes": 0, "refused": {"BAD_RUN": 1}},
    }


async def test_goodbye_is_answered_after_everything_else(served: Served) -> None:
    served.spooler.answer = None
    client = await served.greeted()
    await client.push(1, make_run())
    await client.push(2, make_run())
    await client.send(wire.frame(Kind.GOODBYE, 3))
    await served.spooler.wait_for(2)
    served.spooler.release(count=1)
    assert (await client.read())[:2] == (Kind.ACK, 1)
    await trio.testing.wait_all_tasks_blocked()
    served.spooler.release()
    assert (await client.read())[:2] == (Kind.ACK, 2)
    assert await client.read() == (Kind.FAREWELL, 3, b"")
    await client.read_end()


async def test_frames_after_goodbye_are_not_read(served: Served) -> None:
    client = await served.greeted()
    await client.send(wire.frame(Kind.GOODBYE, 1), push_frame(2, make_run()))
    assert await client.read() == (Kind.FAREWELL, 1, b"")
    await client.read_end()
    assert served.spooler.appends == []


async def test_client_that_stops_writing_still_gets_its_answers(served: Served) -> None:
    served.spooler.answer = None
    client = await served.greeted()
    await client.push(1, make_run())
    await client.stream.send_eof()
    await served.spooler.wait_for(1)
    await trio.testing.wait_all_tasks_blocked()
    served.spooler.release()
    assert (await client.read())[:2] == (Kind.ACK, 1)
    await client.read_end()


async def test_spooler_that_is_slow_to_take_runs_gets_all_of_them(tmp_path: Path) -> None:
    async with serve(tmp_path, spooler=StubSpooler(inbox_size=0)) as served:
        client = await served.greeted()
        await client.send(*(push_frame(sequence, make_run()) for sequence in range(1, 21)))
        assert [(await client.read())[1] for _ in range(20)] == list(range(1, 21))
