"""Trying a handler: the request is shown, and sent once if asked."""

import json
from typing import Any

import pytest

from actors.config.http import HttpHandler
from actors.control.trials import trial_item
from actors.ports.handler import Trial
from daemon.handlers.http.handler import HttpDelivery
from tests.daemon.handlers.http.faulty import FaultyServer, answer

REQUEST = {
    "url": "/c/{{ key }}",
    "query": {"api_key": "hush-hush", "v": "1"},
    "headers": {"X-Token": "hush-hush", "X-Flow": "{{ flow }}"},
    "body": {"email": "{{ payload.email }}"},
}


async def tried(
    server: FaultyServer, payload: bytes, *, is_sent: bool = False, **settings: Any
) -> Trial:
    given = {"url": server.url(), "request": REQUEST, "timeout": "1h", **settings}
    handler = HttpDelivery("crm", HttpHandler.model_validate(given))
    item = trial_item("crm", payload, key="k1", flow="nightly")
    return await handler.try_out([item], is_sent=is_sent)


async def test_the_request_is_shown_without_its_secrets(server: FaultyServer) -> None:
    trial = await tried(server, b'{"email":"ann@example.org"}')
    (request,) = trial.requests
    assert (request.method, request.status, request.answer) == ("POST", None, None)
    assert request.url == f"http://127.0.0.1:{server.port}/c/k1?api_key=***&v=1"
    assert request.headers["X-Token"] == "***"
    assert request.headers["X-Flow"] == "nightly"
    assert json.loads(request.body) == {"email": "ann@example.org"}
    assert [item.outcome for item in trial.items] == ["ready"]
    assert not server.requests


@pytest.mark.parametrize(
    "status, body, outcome",
    [
        ("200 OK", b"", "delivered"),
        ("422 Unprocessable", b"no such customer", "refused"),
        ("503 Unavailable", b"later", "retry"),
        ("200 OK", b'[{"success": false, "errors": [{"message": "too old"}]}]', "refused"),
    ],
)
async def test_the_answer_and_the_outcome_are_shown(
    server: FaultyServer, status: str, body: bytes, outcome: str
) -> None:
    server.will(answer(status, body))
    trial = await tried(server, b'{"email":"ann@example.org"}', is_sent=True)
    assert trial.requests[0].status == int(status[:3])
    assert [item.outcome for item in trial.items] == [outcome]
    assert len(server.requests) == 1


async def test_an_item_that_does_not_fit_makes_no_request(server: FaultyServer) -> None:
    trial = await tried(server, b"{}", is_sent=True)
    assert trial.requests == ()
    (item,) = trial.items
    assert (item.outcome, item.error) == (
        "refused",
        "unrenderable: body.email: payload.email is missing",
    )
    assert not server.requests


async def test_no_answer_is_an_outcome_too() -> None:
    given = {"url": "http://127.0.0.1:1/", "timeout": "1h"}
    handler = HttpDelivery("crm", HttpHandler.model_validate(given))
    trial = await handler.try_out([trial_item("crm", b"x")], is_sent=True)
    assert trial.requests[0].status is None
    assert [item.outcome for item in trial.items] == ["retry"]
