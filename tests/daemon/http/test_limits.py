"""A slow, greedy or hostile client costs its share, and disturbs nobody."""

import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from actors.config.settings import HttpSettings
from actors.ingest.large_bodies import VALUES_MAX, LargeBodies
from daemon.http.guard import (
    Body,
    Rates,
    bytes_max,
    changes_something,
    is_own_origin,
    is_worth_a_line,
    own_hosts,
)
from daemon.http.problems import Problem
from tests.daemon.cli.commands import HANG_S
from tests.daemon.http.serving import Serving, problem, serving_on
from tests.eventually import eventually_sync

MIB = 2**20
JSON = {"content-type": "application/json"}


def speak(served: Serving, data: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", served.port), timeout=HANG_S)
    sock.sendall(data)
    return sock


def all_of(sock: socket.socket) -> bytes:
    """Until the server ends it."""
    found = b""
    with sock, suppress(ConnectionResetError):
        while part := sock.recv(65536):
            found += part
    return found


def wait_for_a_place(served: Serving) -> None:
    """One that was taken is free again, once the end of its connection was noticed."""

    def answered() -> int:
        status = served.http.get("/healthz").status_code
        assert status != 503
        return status

    assert eventually_sync(answered) == 200


def ask_forever(sock: socket.socket, request: bytes) -> None:
    while True:
        sock.sendall(request)


def test_body_over_the_limit_is_413(serving: Serving) -> None:
    answer = serving.http.post("/api/v2/queues", content=b"x" * (3 * MIB))
    assert "2Mi" in problem(answer, 413, "too-large")["detail"]


def new_queue(serving: Serving, name: str) -> str:
    answer = serving.http.post("/api/v2/queues", json={"queue": name})
    assert answer.status_code == 201, answer.text
    return name


def test_body_with_too_many_values_is_413(serving: Serving) -> None:
    queue = new_queue(serving, "values")
    many = b'{"queue":"%s","payload":[%s[]]}' % (queue.encode(), b"[]," * VALUES_MAX)
    answer = serving.http.post("/api/queue-items/add", content=many, headers=JSON)
    assert "100000" in problem(answer, 413, "too-large")["detail"]
    text = serving.http.post(
        "/api/queue-items/add", json={"queue": queue, "payload": "[]," * VALUES_MAX}
    )
    assert text.status_code == 201, text.text
    value = serving.http.post(
        "/api/queue-items/add", json={"queue": queue, "payload": ["x" * 10] * 50_000}
    )
    assert value.status_code == 201, value.text


def test_line_with_too_many_values_is_refused_and_others_are_stored(serving: Serving) -> None:
    queue = new_queue(serving, "values-of-lines")
    many = b'{"payload":[%s[]]}' % (b"[]," * VALUES_MAX)
    lines = b"\n".join([b'{"payload":1}', many, b'{"payload":2}', b""])
    answer = serving.http.post(
        f"/api/v2/queues/{queue}/items",
        content=lines,
        headers={"content-type": "application/x-ndjson"},
    )
    *answers, summary = [json.loads(line) for line in answer.text.splitlines()]
    assert {line["line"]: line.get("outcome", "") for line in answers} == {
        1: "STORED",
        2: "",
        3: "STORED",
    }
    assert (summary["stored"], summary["refused"]) == (2, 1)


def test_body_of_unknown_length_over_the_limit_is_413(serving: Serving) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(3 * 16):
            yield b"x" * (MIB // 16)

    problem(serving.http.post("/api/v2/queues", content=parts()), 413, "too-large")
    # The connection is not left hanging with what nobody has read.
    assert serving.http.get("/healthz").status_code == 200


def test_body_that_nobody_reads_holds_no_connection(tmp_path: Path) -> None:
    """The server below would wait for a reader forever, and its connection with it."""
    head = b"GET /api/v2/queues HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2097152\r\n\r\n"
    with serving_on(tmp_path, max_connections=2, rate_limit=0) as served:
        # Half of the body is all that ever comes.
        socks = [speak(served, head + b"x" * MIB) for _ in range(2)]
        for sock in socks:
            assert all_of(sock).startswith(b"HTTP/1.1 200 ")
        wait_for_a_place(served)


def test_too_many_requests_are_429(tmp_path: Path) -> None:
    def refused() -> httpx.Response:
        answer = served.http.get("/healthz")
        assert answer.status_code != 200
        return answer

    with serving_on(tmp_path, rate_limit=1) as served:
        # A burst of two seconds' worth is let through, and one more each second.
        assert served.http.get("/healthz").status_code == 200
        answer = eventually_sync(refused)
        assert "1 requests a second" in problem(answer, 429, "too-many-requests")["detail"]
        assert int(answer.headers["retry-after"]) >= 1


BEGUN = b"POST /api/v2/queues HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
"""Slowloris: a request that goes on forever."""


def test_no_more_connections_than_allowed_and_pushes_go_on(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"max_connections": 8, "timeout": "1h", "rate_limit": 0}
    with serving_on(tmp_path, **limits) as served, ExitStack() as slow:
        for _ in range(8):
            slow.enter_context(speak(served, BEGUN))
        late = speak(served, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert all_of(late).startswith(b"HTTP/1.1 503 ")
        served.push("crm", "one", "two")
        served.host.until_counts("crm", accepted=2)


def test_slow_clients_are_cut_off_and_make_room(tmp_path: Path) -> None:
    with serving_on(tmp_path, max_connections=8, timeout="1s", rate_limit=0) as served:
        for sock in [speak(served, BEGUN) for _ in range(8)]:
            head, _, body = all_of(sock).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 408 ")
            assert json.loads(body)["type"] == "urn:forebay:problem:too-slow"
        wait_for_a_place(served)


def test_client_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    with serving_on(tmp_path, timeout="1s", max_connections=1, rate_limit=0) as served:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", served.port))
            sock.settimeout(HANG_S)
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                ask_forever(sock, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for_a_place(served)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
        b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /api/v2/queues HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n"
        b"\r\nzz\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    ],
)
def test_nonsense_ends_its_own_connection_alone(serving: Serving, data: bytes) -> None:
    with speak(serving, data) as sock:
        # It may be over already.
        with suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        answer = all_of(sock)
    assert not answer.startswith(b"HTTP/1.1 2")
    assert b"Traceback" not in answer
    assert serving.http.get("/healthz").status_code == 200


def test_keep_alive_serves_one_request_after_the_other(serving: Serving) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert all_of(speak(serving, request * 3 + last)).count(b'{"status":"alive"}') == 4


# Pure.


async def one_by_one(*messages: tuple[float, bytes]) -> AsyncIterator[dict[str, Any]]:
    """Parts of a body, each after so many seconds; then nothing comes any more."""
    for seconds, data in messages:
        await trio.sleep(seconds)
        yield {"type": "http.request", "body": data, "more_body": True}
    await trio.sleep_forever()


async def test_time_that_nobody_asks_for_the_body_is_not_the_clients(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A full queue holds up a stream of items for as long as it takes."""
    parts = one_by_one((9.0, b"a"), (0.5, b"b"))
    body = Body(partial(anext, parts), None, 10.0, LargeBodies())
    await body.receive()
    await trio.sleep(60)
    assert (await body.receive())["body"] == b"b"
    with pytest.raises(Problem, match="408"):
        await body.receive()
    assert trio.current_time() == pytest.approx(70.0, abs=0.1)


async def test_time_is_gained_by_what_comes(autojump_clock: trio.testing.MockClock) -> None:
    parts = one_by_one((9.0, b"x" * 4096), (4.5, b"b"), (1.0, b"c"))
    body = Body(partial(anext, parts), None, 10.0, LargeBodies())
    await body.receive()
    await body.receive()
    with pytest.raises(Problem, match="408"):
        await body.receive()


def test_bucket_lets_a_burst_through_and_then_the_rate() -> None:
    rates = Rates(10)
    assert [rates.take("a", 0.0) for _ in range(20)] == [0.0] * 20
    assert rates.take("a", 0.0) == pytest.approx(0.1)
    assert rates.take("b", 0.0) == 0.0
    assert rates.take("a", 0.1) == 0.0
    assert rates.take("a", 0.1) > 0


def test_clients_that_are_remembered_are_bounded() -> None:
    rates = Rates(1, clients_max=2)
    for client in ("a", "a", "b", "c"):
        rates.take(client, 0.0)
    assert len(rates._buckets) == 2


def test_no_rate_limit() -> None:
    assert Rates(0).take("a", 0.0) == 0.0


def test_what_changes_something() -> None:
    assert changes_something("POST", "/api/v2/queues")
    assert changes_something("GET", "/api/queue-items/next")
    assert not changes_something("GET", "/api/v2/queues")


def test_operators_are_logged_and_items_are_not() -> None:
    assert is_worth_a_line("POST", "/api/v2/queues/crm/purge")
    assert is_worth_a_line("DELETE", "/api/queue-items/0198-1")
    assert not is_worth_a_line("POST", "/api/queue-items/add")
    assert not is_worth_a_line("POST", "/api/queue-items/0198-1/ack")
    assert not is_worth_a_line("POST", "/api/v2/queues/crm/items")
    assert not is_worth_a_line("GET", "/api/v2/queues")


def test_only_bulk_adding_is_of_any_length() -> None:
    settings = HttpSettings()
    assert bytes_max("POST", "/api/v2/queues/crm/items", settings) is None
    assert bytes_max("POST", "/api/v2/queues/a/b/items", settings) == settings.request_bytes_max
    assert bytes_max("PUT", "/api/v2/queues/crm/items", settings) == settings.request_bytes_max


@pytest.mark.parametrize(
    "origin, is_own",
    [
        ("http://localhost:8077", True),
        ("https://localhost:8077", True),
        ("http://localhost", False),
        ("http://localhost:8077.evil.example", False),
        ("null", False),
        ("file://localhost:8077", False),
    ],
)
def test_own_origin(origin: str, is_own: bool) -> None:
    assert is_own_origin(origin, "localhost:8077") is is_own


def test_own_names() -> None:
    settings = HttpSettings(listen="[::1]:8077", hosts=("Queues.Example",))
    assert own_hosts(settings) == {"::1", "queues.example"}
