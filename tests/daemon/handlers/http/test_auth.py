"""How requests are signed, and where tokens come from: a real token server, and what it may do."""

import base64
import hmac
import json
import ssl
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from actors.config.http import HttpHandler
from actors.model.outcomes import Failure
from actors.model.secret_values import SECRET_VALUES
from actors.ports.handler import DeliveryFailed
from daemon.config.secrets import read_secrets
from daemon.errors import ConfigError
from daemon.handlers.http import auth as authentication
from daemon.handlers.http.auth import Auth, open_auth
from daemon.handlers.http.handler import HttpDelivery, tls_context
from tests.daemon.handlers.http.certificates import make_certificates
from tests.daemon.handlers.http.faulty import (
    Act,
    Conversation,
    FaultyServer,
    answer,
    faulty_server,
    says_and_closes,
    says_and_hangs,
)

SECRET = "hush&4711 = ü"
BODY = b'{"a": 1}\n'
KEY = "0198c-17"
NOW_S = 1_700_000_000.9


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIN", "hush-4711")
    monkeypatch.setenv("ODD", SECRET)
    monkeypatch.setenv("LINES", "hush\nhush")
    # How long a token server may take is the test's business, never the machine's.
    monkeypatch.setattr(authentication, "TOKEN_S_MAX", 3600.0)


class Clock:
    """The clock that tokens expire by."""

    def __init__(self) -> None:
        self._at = 1000.0

    def __call__(self) -> float:
        return self._at

    def add(self, seconds: float) -> None:
        self._at += seconds


def settings_of(auth: dict[str, Any], **keys: Any) -> HttpHandler:
    given = {"url": "http://crm/", "timeout": "1h", "auth": auth, **keys}
    settings = HttpHandler.model_validate(given)
    read_secrets(settings)
    return settings


def opened(
    tls: ssl.SSLContext | None = None,
    clock: Callable[[], float] = trio.current_time,
    **auth: Any,
) -> Auth:
    return open_auth("crm", settings_of(auth), tls, clock)


async def lines_of(auth: Auth, body: bytes = BODY) -> dict[str, str]:
    lines = (await auth.lines(KEY, body, NOW_S)).decode("latin-1")
    assert not lines or lines.endswith("\r\n")
    return dict(line.split(": ", 1) for line in lines.split("\r\n")[:-1])


# Fixed credentials.


async def test_without_auth_nothing_is_added() -> None:
    auth = open_auth("crm", HttpHandler(url="http://crm/"), None)
    assert (await lines_of(auth), auth.query, auth.secrets) == ({}, "", ())
    assert not await auth.renewed(b"")


async def test_basic() -> None:
    auth = opened(type="basic", username="me", password={"env": "ODD"})
    kind, pair = (await lines_of(auth))["Authorization"].split(" ")
    assert (kind, base64.b64decode(pair).decode()) == ("Basic", f"me:{SECRET}")
    assert set(auth.secrets) == {pair.encode(), SECRET.encode()}
    assert SECRET_VALUES.masked(f"401 for {pair}") == "401 for ***"
    assert not await auth.renewed(b"")


async def test_bearer() -> None:
    auth = opened(type="bearer", token={"env": "PLAIN"})
    assert await lines_of(auth) == {"Authorization": "Bearer hush-4711"}
    assert auth.secrets == (b"hush-4711",)


async def test_a_key_in_a_header() -> None:
    auth = opened(type="api_key", header="X-Api-Key", key={"env": "PLAIN"})
    assert await lines_of(auth) == {"X-Api-Key": "hush-4711"}


async def test_a_key_in_the_query() -> None:
    auth = opened(type="api_key", query="api key", key={"env": "ODD"})
    assert await lines_of(auth) == {}
    assert parse_qs(auth.query) == {"api key": [SECRET]}
    assert SECRET_VALUES.masked(f"Cannot POST /?{auth.query}") == "Cannot POST /?api%20key=***"


@pytest.mark.parametrize(
    "auth, problem",
    [
        ({"type": "bearer", "token": {"env": "LINES"}}, "token: the secret has characters that no"),
        ({"type": "api_key", "header": "X", "key": {"env": "LINES"}}, "key: the secret has"),
        (
            {"type": "basic", "username": "a:b", "password": {"env": "PLAIN"}},
            "username: a user name here has no colon",
        ),
        ({"type": "hmac", "secret": {"env": "ODD"}}, "secret: the secret is not base64"),
        ({"type": "bearer", "token": {"env": "NO_SUCH"}}, "token: the environment variable"),
    ],
)
def test_a_secret_that_cannot_be_used_is_named_and_not_shown(
    auth: dict[str, Any], problem: str
) -> None:
    from actors.config.queue import QueueSettings
    from daemon.handlers import open_handler

    queue = QueueSettings.model_validate(
        {"handler": {"type": "http", "url": "http://crm/", "auth": auth}}
    )
    with pytest.raises(ConfigError) as caught:
        open_handler("crm", queue)
    assert str(caught.value).startswith(f"queues.crm.handler.auth.{problem}")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "auth, problem",
    [
        ({"type": "api_key", "key": {"env": "A"}}, "give either header or query"),
        (
            {"type": "api_key", "key": {"env": "A"}, "header": "X", "query": "y"},
            "give either header or query",
        ),
        ({"type": "api_key", "key": {"env": "A"}, "header": "X Y"}, "is not a valid header name"),
        ({"type": "api_key", "key": {"env": "A"}, "header": "Host"}, "Host is set by forebay"),
        ({"type": "bearer", "token": {"env": "A"}}, "auth sets Authorization"),
        ({"type": "bearer", "token": "hush-4711"}, "a secret is not written here"),
        ({"type": "hmac", "secret": {"env": "A"}, "header": "X"}, "header needs scheme: plain"),
        (
            {"type": "hmac", "scheme": "plain", "secret": {"env": "A"}, "prefix": "a\r\n"},
            "has a line break",
        ),
        (
            {
                "type": "oauth2",
                "token_url": "ftp://x",
                "client_id": "a",
                "client_secret": {"env": "A"},
            },
            "token_url: 'ftp://x' is not a valid URL",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(auth: dict[str, Any], problem: str) -> None:
    headers = {"authorization": "x"} if auth["type"] == "bearer" else {}
    with pytest.raises(ValueError, match=problem) as caught:
        HttpHandler.model_validate({"url": "http://crm/", "auth": auth, "headers": headers})
    assert problem in str(caught.value)


def test_settings_are_shown_with_their_references() -> None:
    auth = {
        "type": "oauth2",
        "token_url": "https://login.example/token",
        "client_id": "forebay",
        "client_secret": {"env": "PLAIN"},
        "scope": "a b",
        "audience": "https://crm.example",
        "form": {"resource": {"env": "ODD"}, "password": {"env": "PLAIN"}},
        "client_auth": "basic",
    }
    settings = settings_of(auth)
    assert settings.shown()["auth"] == auth
    assert "hush" not in repr(settings)


# Signatures.


async def test_standard_webhooks_as_its_specification_has_it() -> None:
    """The example of github.com/standard-webhooks/standard-webhooks."""
    text = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    settings = settings_of({"type": "hmac", "secret": {"env": "PLAIN"}})
    assert settings.auth is not None
    settings.auth.secret.keep(text)  # type: ignore[union-attr]
    auth = open_auth("crm", settings, None)
    body = b'{"test": 2432232314}'
    lines = (await auth.lines("msg_p5jXN8AQM9LWM0D4loKWxJek", body, 1614265330.0)).decode()
    assert dict(line.split(": ", 1) for line in lines.split("\r\n")[:-1]) == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize("body", [BODY, b"", b"\x1f\x8b\x00\xff"])
async def test_a_plain_signature(body: bytes) -> None:
    digest = hmac.digest(b"hush-4711", body, sha256)
    plain: dict[str, Any] = {"type": "hmac", "scheme": "plain", "secret": {"env": "PLAIN"}}
    assert await lines_of(opened(**plain), body) == {"X-Signature": digest.hex()}
    auth = opened(**plain, header="X-Hub-Signature-256", prefix="sha256=", encoding="base64")
    assert await lines_of(auth, body) == {
        "X-Hub-Signature-256": f"sha256={base64.b64encode(digest).decode()}"
    }


# Tokens.


def token(text: str, **members: Any) -> Act:
    members = {"access_token": text, "token_type": "Bearer", "expires_in": 3600, **members}
    body = json.dumps({key: value for key, value in members.items() if value is not None})
    return answer("200 OK", body.encode(), Content_Type="application/json")


def oauth2(
    server: FaultyServer,
    tls: ssl.SSLContext | None = None,
    clock: Callable[[], float] = trio.current_time,
    **keys: Any,
) -> Auth:
    given = {"client_id": "me&you", "client_secret": {"env": "ODD"}, **keys}
    url = server.url(path="/token?x=1")
    return opened(tls, clock, type="oauth2", token_url=url, **given)


async def used(auth: Auth) -> str:
    return (await lines_of(auth))["Authorization"]


async def failure(auth: Auth) -> Failure:
    with pytest.raises(DeliveryFailed) as caught:
        await auth.lines(KEY, BODY, NOW_S)
    assert "hush" not in str(caught.value)
    return caught.value.failure


async def test_credentials_in_the_form(server: FaultyServer) -> None:
    server.will(token("token-1"))
    auth = oauth2(
        server, scope="a b", audience="https://crm", form={"resource": {"env": "PLAIN"}, "n": "1"}
    )
    assert await used(auth) == "Bearer token-1"
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/token?x=1")
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert "authorization" not in request.headers
    assert parse_qs(request.body.decode()) == {
        "grant_type": ["client_credentials"],
        "client_id": ["me&you"],
        "client_secret": [SECRET],
        "scope": ["a b"],
        "audience": ["https://crm"],
        "resource": ["hush-4711"],
        "n": ["1"],
    }


async def test_credentials_as_basic_auth(server: FaultyServer) -> None:
    server.will(token("token-1"))
    await used(oauth2(server, client_auth="basic"))
    (request,) = server.requests
    kind, pair = request.headers["authorization"].split(" ")
    assert kind == "Basic"
    # Both were encoded as in a form (RFC 6749, section 2.3.1).
    assert base64.b64decode(pair) == b"me%26you:hush%264711+%3D+%C3%BC"
    assert parse_qs(request.body.decode()) == {"grant_type": ["client_credentials"]}
    assert SECRET_VALUES.masked(pair) == "***"


async def test_a_token_is_fetched_once_for_all_workers(server: FaultyServer) -> None:
    server.will(token("token-1"))
    auth = oauth2(server)
    found: list[str] = []

    async def worker() -> None:
        for _ in range(10):
            found.append(await used(auth))

    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(worker)
    assert set(found) == {"Bearer token-1"}
    assert len(server.requests) == 1
    assert b"token-1" in auth.secrets


async def test_a_failed_fetch_is_shared_by_those_who_waited(server: FaultyServer) -> None:
    server.will(answer("503 Away"))
    auth = oauth2(server)
    texts: list[str] = []

    async def worker() -> None:
        texts.append((await failure(auth)).text)

    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(worker)
    assert len(texts) == 16
    assert len(server.requests) == 1
    server.will(token("token-1"))
    assert await used(auth) == "Bearer token-1"


@pytest.mark.parametrize(
    "expires_in, renewed_s",
    [(3600, 2880), (300, 240), (200, 140), (100, 50), (10, 5), ("3600", 2880)],
)
async def test_a_token_is_renewed_before_it_expires(
    server: FaultyServer, expires_in: object, renewed_s: float
) -> None:
    now = Clock()
    server.will(token("token-1", expires_in=expires_in), token("token-2"))
    auth = oauth2(server, clock=now)
    assert await used(auth) == "Bearer token-1"
    now.add(renewed_s - 1)
    assert await used(auth) == "Bearer token-1"
    now.add(1)
    assert await used(auth) == "Bearer token-2"
    assert {b"token-1", b"token-2"} <= set(auth.secrets)
    assert SECRET_VALUES.masked("token-1") == "token-1", "it is too short to be masked anywhere"


@pytest.mark.parametrize("expires_in", [None, "soon", 0, -1])
async def test_a_token_without_an_end_is_used_until_it_is_refused(
    server: FaultyServer, expires_in: object
) -> None:
    now = Clock()
    server.will(token("token-1", expires_in=expires_in), token("token-2"))
    auth = oauth2(server, clock=now)
    lines = await auth.lines(KEY, BODY, NOW_S)
    now.add(10**9)
    assert await auth.lines(KEY, BODY, NOW_S) == lines
    assert await auth.renewed(lines)
    assert await used(auth) == "Bearer token-2"


async def test_the_others_use_the_token_while_one_renews_it(server: FaultyServer) -> None:
    now = Clock()
    go_on = trio.Event()

    async def late(conversation: Conversation) -> None:
        await go_on.wait()
        await token("token-2")(conversation)

    server.will(token("token-1", expires_in=100), late)
    auth = oauth2(server, clock=now)
    await used(auth)
    now.add(60)
    server.acting = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(used, auth)
        await server.acting.wait()
        assert await used(auth) == "Bearer token-1"
        # Past its end they wait.
        now.add(60)
        found: list[str] = []

        async def wait() -> None:
            found.append(await used(auth))

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not found
        go_on.set()
    assert found == ["Bearer token-2"]
    assert len(server.requests) == 2


async def test_a_token_that_cannot_be_renewed_is_used_to_its_end(server: FaultyServer) -> None:
    now = Clock()
    server.will(token("token-1", expires_in=100), answer("503 Away"), answer("503 Away"))
    auth = oauth2(server, clock=now)
    await used(auth)
    now.add(60)
    with capture_logs() as said:
        assert await used(auth) == "Bearer token-1"
        assert await used(auth) == "Bearer token-1"
    assert [line["event"] for line in said] == ["http.token_not_renewed"]
    assert len(server.requests) == 2
    now.add(60)
    assert "answered 503" in (await failure(auth)).text


async def test_a_refused_token_is_renewed_once(server: FaultyServer) -> None:
    now = Clock()
    server.will(token("token-1"), token("token-2"))
    auth = oauth2(server, clock=now)
    first = await auth.lines(KEY, BODY, NOW_S)
    assert not await auth.renewed(first), "it is fresh: another one would be refused as well"
    now.add(authentication.FRESH_S)
    found: list[bool] = []

    async def refused() -> None:
        found.append(await auth.renewed(first))

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(refused)
    assert found == [True] * 8
    assert len(server.requests) == 2
    assert await auth.lines(KEY, BODY, NOW_S) != first


async def test_the_same_token_again_makes_no_other_try(server: FaultyServer) -> None:
    now = Clock()
    server.will(token("token-1"), token("token-1"), answer("500 No"))
    auth = oauth2(server, clock=now)
    lines = await auth.lines(KEY, BODY, NOW_S)
    now.add(5)
    assert not await auth.renewed(lines)
    now.add(5)
    with pytest.raises(DeliveryFailed, match="answered 500"):
        await auth.renewed(lines)


@pytest.mark.parametrize(
    "act, text, retry_after_s",
    [
        (
            answer(
                "401 Unauthorized",
                b'{"error": "invalid_client", "error_description": "no such\\nclient"}',
                Content_Type="application/json",
            ),
            " answered 401: invalid_client: no such client",
            None,
        ),
        (
            answer("401 No", f"wrong: {SECRET}".encode(), Content_Type="text/plain"),
            " answered 401: wrong: ***",
            None,
        ),
        (answer("429 Slow", Retry_After="7"), " answered 429: it gives no reason", 7),
        (answer("302 Found", Location="http://x/"), " answered 302: it redirects, which", None),
        (answer("200 OK", b"<html>"), " answered 200 without an access_token", None),
        (answer("200 OK", b'{"access_token": 5}'), " answered 200 without an access_token", None),
        (answer("200 OK", b'["x"]'), " answered 200 without an access_token", None),
        (
            answer("200 OK", b'{"access_token": "a\\r\\nX: y"}'),
            " answered with a token that no header can hold",
            None,
        ),
        (answer("200 OK", b'{"a":"' + b"x" * 100_000), " answered 200 without", None),
        (says_and_closes(b""), " closed the connection and gave no answer", None),
        (says_and_closes(b"220 smtp"), " closed the connection", None),
    ],
)
async def test_a_token_endpoint_that_fails_is_a_failure_of_the_destination(
    server: FaultyServer, act: Act, text: str, retry_after_s: float | None
) -> None:
    server.will(act)
    found = await failure(oauth2(server))
    assert found.text.startswith(f"token endpoint {server.url(path='/token')}")
    assert text in found.text
    assert (found.is_permanent, found.blames_destination, found.status) == (False, True, None)
    assert found.retry_after_s == retry_after_s


async def test_secrets_too_short_to_be_masked_everywhere_are_masked_here(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORT", "hush7")
    server.will(answer("401 No", b"wrong: hush7", Content_Type="text/plain"))
    found = await failure(oauth2(server, client_secret={"env": "SHORT"}))
    assert found.text.endswith("answered 401: wrong: ***")


async def test_a_token_endpoint_that_is_not_there() -> None:
    auth = opened(
        type="oauth2",
        token_url="http://127.0.0.1:1/t",
        client_id="a",
        client_secret={"env": "PLAIN"},
    )
    found = await failure(auth)
    assert found.text == ("token endpoint http://127.0.0.1:1/t: connection refused by 127.0.0.1:1")


async def test_a_token_endpoint_that_hangs(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.will(says_and_hangs(b"HTTP/1.1 200 OK\r\n"))
    monkeypatch.setattr(authentication, "TOKEN_S_MAX", 0.05)
    found = await failure(oauth2(server))
    assert found.text.endswith("took longer than 50ms")


async def test_a_cancelled_fetch_is_begun_anew(server: FaultyServer) -> None:
    server.will(says_and_hangs(), token("token-1"))
    auth = oauth2(server)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(used, auth)
        await server.acting.wait()
        nursery.cancel_scope.cancel()
    assert await used(auth) == "Bearer token-1"


async def test_the_token_endpoint_must_have_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    async with faulty_server(certificates.server_context("local")) as server:
        found = await failure(oauth2(server))
        assert "the certificate is not accepted" in found.text
        server.will(token("token-1"))
        handler = HttpHandler(url="https://crm/", ca_file=certificates.authority)
        auth = oauth2(server, tls_context("crm", handler))
        assert await used(auth) == "Bearer token-1"


def test_the_handler_opens_it() -> None:
    settings = settings_of({"type": "bearer", "token": {"env": "PLAIN"}})
    assert HttpDelivery("crm", settings).auth.secrets == (b"hush-4711",)
