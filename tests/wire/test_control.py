"""Transcripts of control requests; the operations themselves are somebody else's."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors.model.refusals import bad_request, not_found
from actors.ports.tiers import StoreCorrupt, StoreUnavailable
from forebay import wire
from forebay.errors import Code, Refused
from forebay.wire import Kind
from tests.wire.harness import RawClient, Served, serve
from tests.wire.test_protocol_examples import EXAMPLES


class FakeControl:
    """Answers with `result`, after `go`, and takes notes."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.result: dict[str, Any] | Exception = {}
        self.go = trio.Event()
        self.go.set()

    async def perform(self, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append((op, dict(fields)))
        await self.go.wait()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


@pytest.fixture
async def served(tmp_path: Path, control: FakeControl) -> AsyncIterator[Served]:
    async with serve(tmp_path, control=control) as served:
        yield served


def ask(sequence: int, **content: Any) -> bytes:
    return wire.document(Kind.CONTROL, sequence, content)


async def refusal(client: RawClient, sequence: int) -> Refused:
    answered, refused = await client.read_error()
    assert (answered, refused.fatal) == (sequence, False)
    return refused


async def test_daemon_answers_as_the_document_says(served: Served, control: FakeControl) -> None:
    control.result = json.loads(EXAMPLES["RESULT"][12:])
    client = await served.greeted()
    await client.send(EXAMPLES["CONTROL"])
    assert wire.frame(*await client.read()) == EXAMPLES["RESULT"]
    assert control.asked == [("queues.pause", {"queue": "crm"})]


async def test_slow_operation_holds_up_no_other_request(
    served: Served, control: FakeControl
) -> None:
    control.go = trio.Event()
    client = await served.greeted()
    await client.send(ask(5, op="dead.retry", which={"queue": "crm"}), wire.frame(Kind.PING, 6))
    assert (await client.read())[:2] == (Kind.PONG, 6)
    control.go.set()
    assert (await client.read())[:2] == (Kind.RESULT, 5)


@pytest.mark.parametrize(
    "problem,code,retryable",
    [
        (bad_request("there is no operation dead.rise"), "BAD_REQUEST", False),
        (bad_request("limit is not a whole number"), "BAD_REQUEST", False),
        (not_found("queue crm"), "NOT_FOUND", False),
        (StoreUnavailable("the cold store does not answer"), "UNAVAILABLE", True),
        (StoreCorrupt("a row makes no sense"), "UNAVAILABLE", True),
    ],
)
async def test_refusal_of_an_operation_is_passed_on_and_the_connection_goes_on(
    served: Served, control: FakeControl, problem: Exception, code: Code, retryable: bool
) -> None:
    control.result = problem
    client = await served.greeted()
    await client.send(ask(5, op="dead.rise"))
    refused = await refusal(client, 5)
    assert (refused.code, refused.retryable) == (code, retryable)
    assert (refused.retry_after_ms > 0) is retryable
    control.result = {"done": 1}
    await client.send(ask(6, op="dead.retry"))
    assert await client.read() == (Kind.RESULT, 6, b'{"done":1}')


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"op":7}', b'"op"', b"\xff\xfe", b"[" * 5000]
)
async def test_body_that_is_no_operation_is_refused_and_the_connection_goes_on(
    served: Served, control: FakeControl, body: bytes
) -> None:
    client = await served.greeted()
    await client.send(wire.frame(Kind.CONTROL, 5, body))
    assert (await refusal(client, 5)).code == "BAD_REQUEST"
    assert control.asked == []
    await client.send(ask(6, op="queues.ls"))
    assert (await client.read())[:2] == (Kind.RESULT, 6)


async def test_result_over_the_limit_is_refused(served: Served, control: FakeControl) -> None:
    control.result = {"letters": "x" * 2**24}
    client = await served.greeted()
    await client.send(ask(5, op="dead.find"))
    assert (await refusal(client, 5)).code == "TOO_LARGE"


async def test_daemon_without_operations_names_the_one_it_does_not_have(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        client = await served.greeted()
        await client.send(ask(5, op="queues.ls"))
        refused = await refusal(client, 5)
        assert (refused.code, "queues.ls" in refused.text) == ("BAD_REQUEST", True)


async def test_client_that_leaves_frees_the_place_of_what_it_asked(
    served: Served, control: FakeControl
) -> None:
    control.go = trio.Event()
    client = await served.greeted()
    await client.send(ask(5, op="dead.retry"))
    await trio.testing.wait_all_tasks_blocked()
    assert served.in_flight_bytes > 0
    for connection in served.ingest._connections:
        connection._whole.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert served.in_flight_bytes == 0
    assert served.ingest.figures()["connections"] == 0
