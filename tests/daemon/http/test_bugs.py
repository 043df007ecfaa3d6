"""A request that meets a bug is a problem like any other, with the reference of its log line."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
import structlog
import trio
from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from actors.config.settings import HttpSettings
from actors.ingest.large_bodies import LargeBodies
from actors.model.internal_errors import INTERNAL_ERRORS
from daemon.http import bulk, problems
from daemon.http.access import Access
from daemon.http.bulk import read_line
from daemon.http.guard import Guard
from daemon.http.problems import Problem
from daemon.http.pushing import Waiter
from forebay.errors import Refused
from tests.daemon.http.serving import problem


class Failing(Response):
    """Begins an answer, and fails in a task of its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)


async def fail() -> None:
    raise OverflowError("a bug")


def failing_api() -> FastAPI:
    api = FastAPI()
    problems.install(api)

    @api.get("/bug")
    async def bug() -> None:
        await fail()

    @api.get("/group")
    async def group() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)

    @api.get("/begun")
    async def begun() -> Response:
        return Failing()

    return api


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    settings = HttpSettings()
    app: Any = Guard(failing_api(), settings, Access(settings), LargeBodies())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize("path", ["/bug", "/group"])
async def test_bug_is_a_problem_with_the_reference_of_its_one_log_line(
    client: httpx.AsyncClient, path: str
) -> None:
    before = INTERNAL_ERRORS.total
    with structlog.testing.capture_logs() as logged:
        found = problem(await client.get(path), 500, "internal")
    (line,) = logged
    assert (line["event"], line["path"]) == ("daemon.internal_error", path)
    assert line["exc_info"] is not None
    assert line["reference"] in found["detail"]
    assert found["code"] == "INTERNAL"
    assert INTERNAL_ERRORS.total == before + 1


async def test_bug_in_an_answer_that_has_begun_is_logged_and_counted(
    client: httpx.AsyncClient,
) -> None:
    before = INTERNAL_ERRORS.total
    # The transport misses the end of the answer.
    with structlog.testing.capture_logs() as logged, suppress(AssertionError):
        await client.get("/begun")
    assert [line["event"] for line in logged] == ["daemon.internal_error"]
    assert INTERNAL_ERRORS.total == before + 1


def test_bug_in_one_line_of_a_stream_is_that_line_s_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(*_: object) -> Any:
        raise OverflowError("a bug")

    monkeypatch.setattr(bulk, "made", made)
    found = read_line(b'{"payload": 1}', {})
    assert isinstance(found, Problem)
    assert (found.status_code, found.slug) == (500, "internal")


async def test_answer_that_makes_no_sense_fails_its_push_and_not_who_answers() -> None:
    waiter = Waiter(1)
    waiter.answer(0, b"nonsense")
    waiter.flush()
    with pytest.raises(Refused, match="INTERNAL"):
        await waiter.wait(1)
