"""Requests with `auth`, as the destination receives them; and what a refused token leads to."""

import hashlib
import hmac
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from actors.config.http import HttpHandler
from actors.model.outcomes import Failure, Report
from daemon.config.secrets import read_secrets
from daemon.handlers.http import auth as authentication
from daemon.handlers.http.handler import HttpDelivery
from tests.daemon.handlers.http.batches import Sending, a_slice
from tests.daemon.handlers.http.faulty import FaultyServer, answer

BATCH = a_slice(b'{"a":1}', b'{"a":2}')


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hush-4711")
    # A token may be renewed as soon as it is refused.
    monkeypatch.setattr(authentication, "FRESH_S", 0.0)
    monkeypatch.setattr(authentication, "TOKEN_S_MAX", 3600.0)


@asynccontextmanager
async def sending(server: FaultyServer, **keys: Any) -> AsyncIterator[Sending]:
    settings = HttpHandler.model_validate({"url": server.url(), "timeout": "1h", **keys})
    read_secrets(settings)
    opened = Sending(HttpDelivery("crm", settings))
    try:
        yield opened
    finally:
        await opened.sender.aclose()


def oauth2(server: FaultyServer) -> dict[str, Any]:
    return {
        "type": "oauth2",
        "token_url": server.url(path="/token"),
        "client_id": "forebay",
        "client_secret": {"env": "TOKEN"},
    }


def token(text: str) -> Any:
    return answer("200 OK", json.dumps({"access_token": text, "expires_in": 3600}).encode())


@pytest.mark.parametrize("request_", [None, {"query": {"v": "1"}}])
async def test_a_key_is_in_a_header_or_in_the_query(
    server: FaultyServer, request_: dict[str, Any] | None
) -> None:
    in_header = {"type": "api_key", "header": "X-Key", "prefix": "ApiKey ", "key": {"env": "TOKEN"}}
    in_query = {"type": "api_key", "query": "appid", "key": {"env": "TOKEN"}}
    for auth in (in_header, in_query):
        async with sending(server, auth=auth, request=request_) as opened:
            assert await opened.send(BATCH) == Report()
    first, second = server.requests
    assert first.headers["x-key"] == "ApiKey hush-4711"
    added = "" if request_ is None else "?v=1"
    assert first.path == f"/hook{added}"
    assert second.path == f"/hook{added or '?'}{'&' * bool(added)}appid=hush-4711"


async def test_the_body_is_signed_as_it_is_sent(server: FaultyServer) -> None:
    auth = {"type": "hmac", "scheme": "plain", "header": "X-Sum", "secret": {"env": "TOKEN"}}
    async with sending(server, auth=auth, compression="gzip") as opened:
        assert await opened.send(BATCH) == Report()
    (request,) = server.requests
    assert len(zlib.decompress(request.body, wbits=31).splitlines()) == 2
    expected = hmac.new(b"hush-4711", request.body, hashlib.sha256).hexdigest()
    assert request.headers["x-sum"] == expected


async def test_a_refused_token_is_replaced_once(server: FaultyServer) -> None:
    server.will(token("one"), answer("401 No"), token("two"), answer("200 OK"), answer("200 OK"))
    async with sending(server, auth=oauth2(server)) as opened:
        assert await opened.send(BATCH) == Report()
        assert await opened.send(BATCH) == Report()
    asked = [(one.path, one.headers.get("authorization")) for one in server.requests]
    assert asked == [
        ("/token", None),
        ("/hook", "Bearer one"),
        ("/token", None),
        ("/hook", "Bearer two"),
        ("/hook", "Bearer two"),
    ]
    sent = [one for one in server.requests if one.path == "/hook"]
    assert len({one.headers["idempotency-key"] for one in sent}) == 1


async def test_no_item_dies_because_nobody_may_log_in(server: FaultyServer) -> None:
    def waits(failure: Failure) -> str:
        assert (failure.is_permanent, failure.blames_destination) == (False, True)
        return failure.text

    server.will(token("one"), answer("401 No"), token("two"), answer("401 No", b"hush-4711"))
    async with sending(server, auth=oauth2(server)) as opened:
        refused = waits(await opened.failure(BATCH))
        assert refused.startswith("401 from http://127.0.0.1:")
        assert refused.endswith(": ***")
    server.will(answer("400 Bad Request", b'{"error": "invalid_client"}'))
    async with sending(server, auth=oauth2(server)) as opened:
        said = waits(await opened.failure(BATCH))
        assert said.endswith("/token answered 400: invalid_client")
