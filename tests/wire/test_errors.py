"""One transcript for every documented error, and what is left of the connection after it."""

import os
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from forebay import wire
from forebay.errors import Code, Refused
from forebay.limits import FRAME_BODY_BYTES_MAX
from forebay.wire import Kind
from tests.wire.harness import RawClient, Served, make_run, push_frame, serve

HEAD = wire.frame_head


async def still_works(client: RawClient) -> None:
    await client.push(1000, make_run())
    assert (await client.read())[:2] == (Kind.ACK, 1000)


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\nHost: forebay\r\n\r\n",
        b"\x00" * 12,
        push_frame(1, make_run()),
        wire.frame(Kind.PING, 0),
        wire.frame(Kind.HELLO, 0, b"FBAY\x01\x01\x00"),
        wire.frame(Kind.HELLO, 0, b"FBAX\x01\x01\x00\x00"),
        wire.frame(Kind.HELLO, 0, b"FBAY\x02\x01\x00\x00"),
        wire.frame(Kind.HELLO, 0, b"FBAY\x01\x01\x00\x01"),
        wire.frame(Kind.HELLO, 0, b"FBAY\x01\x01\x00\x00{"),
        wire.frame(Kind.HELLO, 0, b"FBAY\x01\x01\x00\x00[]"),
        wire.frame(Kind.HELLO, 1, b"FBAY\x01\x01\x00\x00"),
        HEAD(Kind.HELLO, 0, 4097),
    ],
    ids=[
        "http",
        "zeros",
        "push",
        "ping",
        "short",
        "wrong greeting",
        "versions backwards",
        "reserved",
        "broken json",
        "json array",
        "sequence",
        "long",
    ],
)
async def test_first_frame_that_is_no_hello_ends_the_connection(
    served: Served, first: bytes
) -> None:
    client = await served.connect()
    await client.send(first)
    assert (await client.read_last_words()).code == "BAD_FRAME"


@pytest.mark.parametrize(
    "frame",
    [
        wire.hello("again"),
        wire.frame(Kind.PING, 0),
        wire.frame(Kind.PING, 5, b"x" * 65),
        wire.frame(Kind.STATS, 5, b"x"),
        wire.frame(Kind.GOODBYE, 5, b"x"),
        wire.frame(Kind.WELCOME, 5, b"{}"),
        wire.frame(Kind.ACK, 5, b"\x00"),
        wire.frame(Kind.ERROR, 5, b"{}"),
        b"\x00\x00\x00\x00\x05\x01\x00\x00\x05\x00\x00\x00",
        b"\x00\x00\x00\x00\x05\x00\x01\x00\x05\x00\x00\x00",
        b"\x00\x00\x00\x00\x0b\x00\x00\x00\x05\x00\x00\x00",
        b"\x00\x00\x00\x00\xff\x00\x00\x00\x05\x00\x00\x00",
        HEAD(Kind.PUSH, 5, FRAME_BODY_BYTES_MAX + 1),
        HEAD(Kind.PUSH, 5, 2**32 - 1),
    ],
    ids=[
        "second hello",
        "sequence 0",
        "long ping",
        "stats with a body",
        "goodbye with a body",
        "welcome",
        "ack",
        "error",
        "flags",
        "reserved",
        "type 11",
        "type 255",
        "over the format's limit",
        "absurd length",
    ],
)
async def test_frame_that_makes_no_sense_ends_the_connection(served: Served, frame: bytes) -> None:
    client = await served.greeted()
    await client.send(frame)
    assert (await client.read_last_words()).code == "BAD_FRAME"


async def test_sequence_number_in_flight_may_not_be_used_again(served: Served) -> None:
    served.spooler.answer = None
    client = await served.greeted()
    await client.push(5, make_run())
    await client.push(5, make_run())
    await served.spooler.wait_for(1)
    await trio.testing.wait_all_tasks_blocked()
    served.spooler.release()
    assert (await client.read())[:2] == (Kind.ACK, 5)
    assert (await client.read_last_words()).code == "BAD_FRAME"


async def test_bad_frame_comes_after_the_answers_to_earlier_requests(served: Served) -> None:
    served.spooler.answer = None
    client = await served.greeted()
    await client.push(1, make_run())
    await client.send(b"\xff" * 12)
    await served.spooler.wait_for(1)
    await trio.testing.wait_all_tasks_blocked()
    served.spooler.release()
    assert (await client.read())[:2] == (Kind.ACK, 1)
    assert (await client.read_last_words()).code == "BAD_FRAME"


async def test_one_clients_bad_frame_leaves_the_others_alone(served: Served) -> None:
    bad, good = await served.greeted(), await served.greeted()
    await bad.send(b"\xff" * 12)
    await bad.read_last_words()
    await still_works(good)


def flipped(run: bytes, at: int) -> bytes:
    return run[:at] + bytes([run[at] ^ 1]) + run[at + 1 :]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not a run",
        flipped(make_run(), 0),
        flipped(make_run(), 9),
        flipped(make_run(), -1),
        make_run()[:-1],
        make_run() + b"x",
    ],
    ids=["empty", "text", "magic", "checksum", "payload", "cut", "longer"],
)
async def test_body_that_is_no_run_is_refused_and_the_connection_goes_on(
    served: Served, body: bytes
) -> None:
    client = await served.greeted()
    await client.push(5, body)
    sequence, refused = await client.read_error()
    assert (sequence, refused.code, refused.fatal) == (5, "BAD_RUN", False)
    assert served.spooler.appends == []
    await still_works(client)


async def test_bad_runs_of_a_connection_are_one_line_in_the_log(served: Served) -> None:
    with structlog.testing.capture_logs() as lines:
        client = await served.greeted()
        for _ in range(5):
            await client.push(5, b"no run")
            await client.read_error()
    assert [line["event"] for line in lines] == ["ingest.bad_run"]
    assert served.ingest.figures()["refused"] == {"BAD_RUN": 5}


async def test_frame_over_the_limit_is_thrown_away_unbuffered_and_the_connection_goes_on(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path, max_run_bytes=65536) as served:
        client = await served.greeted()
        body_bytes = 20_000_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, HEAD(Kind.PUSH, 5, body_bytes), bytes(body_bytes))
            sequence, refused = await client.read_error()
        assert (sequence, refused.code, refused.fatal) == (5, "TOO_LARGE", False)
        assert "64Ki" in refused.text
        await still_works(client)
        [connection] = served.ingest._connections
        assert connection._inbox.capacity <= 256 * 1024


async def test_small_run_that_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    from forebay.run import encode_run

    async with serve(tmp_path, max_run_bytes=65536) as served:
        client = await served.greeted()
        await client.push(5, encode_run([b"a" * 70_000], queue="crm"))
        sequence, refused = await client.read_error()
        assert (sequence, refused.code, refused.fatal) == (5, "TOO_LARGE", False)
        await still_works(client)


async def test_run_of_exactly_the_limit_is_taken(tmp_path: Path) -> None:
    async with serve(tmp_path, max_run_bytes=65536) as served:
        client = await served.greeted()
        await client.push(1, make_run(os.urandom(65536 - 8)))
        assert (await client.read())[:2] == (Kind.ACK, 1)
        await client.push(2, make_run(os.urandom(65536 - 7)))
        assert (await client.read_error())[1].code == "TOO_LARGE"


async def test_report_over_the_limit_is_refused(served: Served) -> None:
    served.spooler.report = {"queues": "x" * 2**24}
    client = await served.greeted()
    await client.send(wire.frame(Kind.STATS, 5))
    sequence, refused = await client.read_error()
    assert (sequence, refused.code, refused.fatal) == (5, "TOO_LARGE", False)


async def test_queue_that_is_not_known_is_refused(tmp_path: Path) -> None:
    async with serve(tmp_path, known_queue=lambda queue: queue == "crm") as served:
        client = await served.greeted()
        await client.push(5, make_run(queue="cmr"))
        sequence, refused = await client.read_error()
        assert (sequence, refused.code, refused.fatal) == (5, "UNKNOWN_QUEUE", False)
        assert "cmr" in refused.text
        await still_works(client)


@pytest.mark.parametrize("code", ["QUEUE_FULL", "DISK_FULL", "DISK_ERROR"])
async def test_spoolers_refusal_is_passed_on(served: Served, code: Code) -> None:
    served.spooler.answer = lambda _: Refused(code, "not now", retry_after_ms=250)
    client = await served.greeted()
    await client.push(5, make_run())
    sequence, refused = await client.read_error()
    assert (sequence, refused.code, refused.text) == (5, code, "not now")
    assert (refused.retry_after_ms, refused.fatal, refused.retryable) == (250, False, True)


async def test_client_without_a_common_version_is_told_the_daemons(served: Served) -> None:
    client = await served.connect()
    await client.send(wire.frame(Kind.HELLO, 0, b"FBAY\x02\x09\x00\x00"))
    refused = await client.read_last_words()
    assert refused.code == "VERSION"
    assert "1 to 1" in refused.text
    assert "2 to 9" in refused.text


async def test_user_who_is_not_allowed_is_denied_before_hello(tmp_path: Path) -> None:
    async with serve(tmp_path, allow_uids=[os.getuid() + 1]) as served:
        client = await served.connect()
        refused = await client.read_last_words()
        assert refused.code == "DENIED"
        assert str(os.getuid()) in refused.text


@pytest.mark.parametrize("who", ["allow_uids", "allow_gids"])
async def test_user_or_group_that_is_allowed_is_welcome(tmp_path: Path, who: str) -> None:
    allowed = os.getuid() if who == "allow_uids" else os.getgid()
    other = "allow_gids" if who == "allow_uids" else "allow_uids"
    lists: dict[str, Any] = {who: [allowed], other: [60_000]}
    async with serve(tmp_path, **lists) as served:
        await still_works(await served.greeted())


async def test_supplementary_group_that_is_allowed_is_welcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.ingest.ingest.read_peer_groups", lambda _: frozenset({60_000}))
    async with serve(tmp_path, allow_gids=[60_000]) as served:
        await still_works(await served.greeted())


async def test_connection_over_the_limit_is_told_to_come_back(tmp_path: Path) -> None:
    async with serve(tmp_path, max_connections=2) as served:
        first = await served.greeted()
        await served.greeted()
        third = await served.connect()
        refused = await third.read_last_words()
        assert (refused.code, refused.retryable) == ("BUSY", True)
        assert refused.retry_after_ms > 0
        await first.send(wire.frame(Kind.GOODBYE, 1))
        await first.read()
        await first.read_end()
        await trio.testing.wait_all_tasks_blocked()
        await still_works(await served.greeted())
