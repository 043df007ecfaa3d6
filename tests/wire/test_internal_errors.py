"""A request that meets a bug is answered INTERNAL, logged once and counted; all else goes on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from actors.ingest import ingest as ingest_module
from actors.ingest import requests as requests_module
from actors.ingest.buffers import Outbox
from actors.ingest.connection import Connection
from actors.model.internal_errors import INTERNAL_ERRORS
from forebay import lease_frames, wire
from forebay.errors import Refused
from forebay.stage_frames import WRITE_HEADER
from forebay.wire import Kind
from tests.wire.harness import RawClient, Served, make_run, push_frame, serve

WRITE = b"w" * 16
STAGED = make_run(headers={WRITE_HEADER: WRITE.hex()})


class Bug(Exception):
    """Nobody expects it."""


def fail(*_args: object, **_options: object) -> Any:
    raise Bug("a bug")


class FailingControl:
    """Raises what the test says."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.problem = problem or Bug("a bug")

    async def perform(self, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        raise self.problem


async def check_answer(client: RawClient, sequence: int, logged: list[Any]) -> None:
    """INTERNAL, with the reference of the one line in the log; the connection goes on."""
    answered, refused = await client.read_error()
    assert (answered, refused.code, refused.fatal) == (sequence, "INTERNAL", False)
    assert not refused.retryable
    (line,) = [line for line in logged if line["event"] == "daemon.internal_error"]
    assert line["reference"] in refused.text
    assert isinstance(line["exc_info"], Bug)
    await check_works(client)


async def check_works(client: RawClient) -> None:
    await client.send(wire.frame(Kind.PING, 1000))
    assert (await client.read())[:2] == (Kind.PONG, 1000)


@pytest.mark.parametrize(
    "frame,broken",
    [
        (push_frame(5, make_run()), "read_head"),
        (wire.frame(Kind.STAGE, 5, WRITE + b"s" * 16 + STAGED), "unpack_stage"),
        (wire.frame(Kind.STATS, 5), "_document"),
        (wire.frame(Kind.FETCH, 5, b'{"queue":"crm","state":"cold"}'), "unpack_fetch"),
    ],
    ids=["push", "stage", "stats", "fetch"],
)
async def test_bug_in_one_request_is_answered_and_the_connection_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frame: bytes, broken: str
) -> None:
    before = INTERNAL_ERRORS.total
    async with serve(tmp_path) as served:
        client, other = await served.greeted(), await served.greeted()
        monkeypatch.setattr(requests_module, broken, fail)
        with structlog.testing.capture_logs() as logged:
            await client.send(frame)
            await check_answer(client, 5, logged)
        await check_works(other)
        assert served.ingest.figures()["refused"] == {"INTERNAL": 1}
        assert served.in_flight_bytes == 0
    assert INTERNAL_ERRORS.total == before + 1


@pytest.mark.parametrize(
    "frame",
    [
        wire.frame(Kind.LEASE, 5, b'{"queue":"crm"}'),
        wire.frame(Kind.SETTLE, 5, b"\x03crm"),
        wire.frame(Kind.EXTEND, 5, b"\x03crm"),
    ],
    ids=["lease", "settle", "extend"],
)
async def test_bug_in_a_request_about_leases_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frame: bytes
) -> None:
    for name in ("read_lease", "read_settle", "read_extend"):
        monkeypatch.setattr(lease_frames, name, fail)
    async with serve(tmp_path) as served:
        client = await served.greeted()
        with structlog.testing.capture_logs() as logged:
            await client.send(frame)
            await check_answer(client, 5, logged)


async def test_bug_in_an_operation_is_answered(tmp_path: Path) -> None:
    async with serve(tmp_path, control=FailingControl()) as served:
        client, other = await served.greeted(), await served.greeted()
        with structlog.testing.capture_logs() as logged:
            await client.send(wire.document(Kind.CONTROL, 7, {"op": "cron.add"}))
            await check_answer(client, 7, logged)
        await check_works(other)


async def test_several_bugs_out_of_one_nursery_are_one_answer(tmp_path: Path) -> None:
    control = FailingControl(ExceptionGroup("tasks failed", [Bug("one"), Bug("two")]))
    async with serve(tmp_path, control=control) as served:
        client = await served.greeted()
        await client.send(wire.document(Kind.CONTROL, 7, {"op": "cron.add"}))
        sequence, refused = await client.read_error()
        assert (sequence, refused.code) == (7, "INTERNAL")
        await check_works(client)


async def test_bug_in_reading_ends_that_connection_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await served.connect(), await served.greeted()
    with monkeypatch.context() as patch:
        patch.setattr(wire, "read_hello", fail)
        await client.send(wire.hello("test"))
        refused = await client.read_last_words()
    assert refused.code == "INTERNAL"
    await check_works(other)


async def test_bug_in_an_answer_ends_its_connection_and_not_who_answers(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.spooler.answer = None
    client, other = await served.greeted(), await served.greeted()
    await client.push(1, make_run())
    await served.spooler.wait_for(1)
    with monkeypatch.context() as patch:
        patch.setattr(Outbox, "put", fail)
        served.spooler.release()
    await client.read_end()
    await other.push(1, make_run())
    await served.spooler.wait_for(2)
    served.spooler.release()
    assert (await other.read())[:2] == (Kind.ACK, 1)


async def test_bug_at_the_end_of_a_connection_ends_no_other(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await served.greeted(), await served.greeted()
    ended = trio.Event()

    async def close(_: object) -> None:
        ended.set()
        raise Bug("a bug")

    monkeypatch.setattr(requests_module.Requests, "close", close)
    client.stream.socket.close()
    await ended.wait()
    await check_works(other)


async def test_bug_in_looking_after_connections_ends_the_one_it_is_about(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_module, "REAP_INTERVAL_S", 0.01)
    client = await served.greeted()

    def tend(connection: Connection, now: float) -> None:
        if connection.client == "test":
            raise Bug("a bug")

    monkeypatch.setattr(Connection, "tend", tend)
    await client.read_end()
    monkeypatch.undo()
    await check_works(await served.greeted())


def test_answer_to_a_bug_reaches_the_client_with_its_reference() -> None:
    with structlog.testing.capture_logs() as logged:
        refused = INTERNAL_ERRORS.note(Bug("a bug"), "CONTROL")
    read = wire.read_error(wire.error(3, refused)[12:])
    assert isinstance(read, Refused)
    assert logged[0]["reference"] in str(read)
    assert not read.retryable
