"""Breakers, receipts, writes, the spool, the configuration, events, health, the description."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from daemon.http.routes.health import readiness
from forebay.encode import encode_run
from forebay.stage_frames import WRITE_HEADER
from forebay.writes import new_write_id
from tests.daemon.cli.commands import HANG_S
from tests.daemon.http.serving import Serving, problem, serving_on
from tests.eventually import eventually_sync


class Refusing(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def destination() -> Iterator[str]:
    """One that is down."""
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def breaker_of(serving: Serving, url: str) -> dict[str, Any] | None:
    for breaker in serving.http.get("/api/v2/breakers").json()["breakers"]:
        if breaker["destination"].startswith(url.rstrip("/")):
            return dict(breaker)
    return None


def test_breaker_opens_and_is_forced(tmp_path: Path, destination: str) -> None:
    queue = {
        "handler": {"type": "http", "url": destination},
        "breaker": {"threshold": 1, "reset_timeout": "1h"},
    }
    with serving_on(tmp_path, {"queues": {"crm": queue}}, rate_limit=0) as served:
        served.push("crm", "one")

        def is_open() -> dict[str, Any]:
            found = breaker_of(served, destination)
            assert found is not None
            assert found["state"] == "open", found
            return found

        found = eventually_sync(is_open)
        assert found["failures"] == 1
        assert found["last_error"]
        name = {"destination": found["destination"]}

        closed = served.http.put("/api/v2/breakers", params=name, json={"state": "closed"})
        assert closed.json()["state"] == "closed"
        forced = served.http.put("/api/v2/breakers", params=name, json={"state": "open"})
        assert (forced.json()["state"], forced.json()["forced"]) == ("open", True)
        wrong = served.http.put("/api/v2/breakers", params=name, json={"state": "ajar"})
        problem(wrong, 422, "invalid")

        def told() -> None:
            events = served.http.get("/api/v2/events/recent").json()["events"]
            assert ["breaker", "open"] in [[event["kind"], event.get("state")] for event in events]

        eventually_sync(told)


def test_unknown_breaker_is_404(serving: Serving) -> None:
    answer = serving.http.put(
        "/api/v2/breakers", params={"destination": "http://nobody"}, json={"state": "open"}
    )
    problem(answer, 404, "not-found")


def test_receipt_and_writes(serving: Serving) -> None:
    assert serving.http.get("/api/v2/writes").json() == {"writes": [], "more": 0}
    found = problem(serving.http.get(f"/api/v2/receipts/{'1' * 32}"), 404, "not-found")
    assert found["code"] == "NOT_FOUND"
    problem(serving.http.get("/api/v2/receipts/short"), 422, "invalid")


def test_receipt_of_a_write(serving: Serving) -> None:
    write = new_write_id()
    run = encode_run([b"one", b"two"], queue="staged", headers={WRITE_HEADER: write.hex()})
    with serving.client() as client:
        staged = client.stage(write)
        staged.submit(run)
        client.publish(write, [staged.seal().stage])
    found = serving.http.get(f"/api/v2/receipts/{write.hex()}").json()
    assert (found["accepted"], found["pending"]) == (2, 2)
    (listed,) = serving.http.get("/api/v2/writes", params={"over": True}).json()["writes"]
    assert (listed["phase"], listed["items"]) == ("published", 2)


def test_spool(serving: Serving) -> None:
    serving.push("somewhere", "one")
    spool = serving.http.get("/api/v2/spool").json()
    assert spool["max_bytes"] == 2**30
    assert spool["bytes"] > 0
    assert 0 < spool["fill"] < 1
    assert not spool["disk_is_low"]


def test_configuration(serving: Serving) -> None:
    found = serving.http.get("/api/v2/configuration").json()
    assert found["settings"]["spool"]["chunk_size"] == "4Mi"
    assert found["settings"]["priorities"] == {"high": 0, "normal": 5, "low": 10}


def test_recent_events_go_on_after_a_number(serving: Serving) -> None:
    found = serving.http.get("/api/v2/events/recent").json()
    assert found["events"][0] == {
        "number": 1,
        "kind": "daemon",
        "at_ms": found["events"][0]["at_ms"],
        "state": "started",
    }
    latest = found["latest"]
    later = serving.http.get("/api/v2/events/recent", params={"after": latest - 1}).json()
    assert later["events"][0]["number"] == latest
    problem(serving.http.get("/api/v2/events/recent", params={"limit": 0}), 422, "invalid")


# The stream.


def events_of(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    event: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            event[name] = value
        else:
            yield event
            event = {}


def test_stream_has_samples_and_changes_and_ends_when_the_daemon_stops(tmp_path: Path) -> None:
    with serving_on(tmp_path) as served:
        with served.http.stream("GET", "/api/v2/events") as answer:
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
            events = events_of(answer.iter_lines())
            assert next(events) == {"retry": "2000"}
            sample = next(events)
            assert sample["event"] == "sample"
            data = json.loads(sample["data"])
            assert data["daemon"]["held"] == 0
            assert data["stores"] == {"cold": "up", "warm": "up", "disk": "up"}

            assert served.host.daemon is not None
            served.host.daemon.terminate()
            rest = list(events)
        changes = [json.loads(event["data"]) for event in rest if event.get("event") == "change"]
        assert [change["state"] for change in changes if change["kind"] == "daemon"] == ["draining"]
        assert served.host.daemon.wait(HANG_S) == 0


def test_stream_goes_on_after_an_event(serving: Serving) -> None:
    headers = {"Last-Event-ID": "0"}

    def watch() -> dict[str, str]:
        with serving.http.stream("GET", "/api/v2/events", headers=headers) as answer:
            assert answer.status_code == 200
            events = events_of(answer.iter_lines())
            next(events)
            return next(events)

    # All places may be taken by watchers of another test, whose end is noticed in a moment.
    first = eventually_sync(watch)
    assert (first["event"], first["id"]) == ("change", "1")
    assert json.loads(first["data"])["state"] == "started"


def test_stream_to_a_client_that_is_gone_is_ended(serving: Serving) -> None:
    """More of them, one after the other, than may watch at a time."""

    def watch() -> None:
        with serving.http.stream("GET", "/api/v2/events") as answer:
            assert answer.status_code == 200

    for _ in range(70):
        # The end of those before it may take a moment to be noticed.
        eventually_sync(watch)


def test_too_many_watchers_are_refused(serving: Serving) -> None:
    clients: list[httpx.Response] = []
    limits = httpx.Limits(max_connections=200)
    with httpx.Client(
        base_url=serving.address, trust_env=False, limits=limits, timeout=HANG_S
    ) as client:
        try:
            refused = None
            while refused is None:
                request = client.build_request("GET", "/api/v2/events")
                answer = client.send(request, stream=True)
                clients.append(answer)
                if answer.status_code != 200:
                    answer.read()
                    refused = answer
            problem(refused, 503, "busy")
            assert len(clients) <= 65
        finally:
            for answer in clients:
                answer.close()


# Health.


def not_ready(served: Serving) -> list[str]:
    """Why it is not, once it is not."""

    def refused() -> list[str]:
        answer = served.http.get("/readyz")
        assert answer.status_code == 503
        reasons: list[str] = answer.json()["reasons"]
        return reasons

    return eventually_sync(refused)


def test_ready_says_why_not(tmp_path: Path) -> None:
    config = {"spool": {"chunk_size": "4Mi", "min_free_bytes": "900Ti", "spare_chunks": 0}}
    with serving_on(tmp_path, config) as served:
        assert served.http.get("/healthz").status_code == 200
        assert not_ready(served)[0].startswith("disk: ")


def test_readiness() -> None:
    names = ("is_draining", "disk_is_low", "cold_is_away", "warm_is_away")
    fine = dict.fromkeys(names, False)
    assert readiness(**fine).is_ready
    away = readiness(**{**fine, "cold_is_away": True, "warm_is_away": True})
    assert (away.is_ready, len(away.reasons)) == (True, 2)
    assert not readiness(**{**fine, "is_draining": True}).is_ready


def test_draining_daemon_is_alive_and_not_ready(tmp_path: Path) -> None:
    """A consumer that has an item keeps it draining for a while."""
    with serving_on(tmp_path, {"drain_timeout": "1h"}) as served, served.client() as client:
        served.push("crm", "one")
        lease = client.lease("crm", 1, wait_s=HANG_S, lease_s=3600)
        assert served.host.daemon is not None
        served.host.daemon.terminate()
        assert not_ready(served) == ["draining: the daemon is shutting down"]
        assert served.http.get("/healthz").status_code == 200
        lease.ack(list(lease))
        client.close()
        assert served.host.daemon.wait(HANG_S) == 0


# The description, and what is not there.


def test_every_route_is_described(serving: Serving) -> None:
    described = serving.http.get("/openapi.json").json()
    assert described["openapi"] == "3.1.0"
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation.get("operationId"), where
            assert operation.get("description"), where
            assert {"429", "503"} <= set(operation["responses"]), where
            for status, answer in operation["responses"].items():
                if status.startswith(("4", "5")) and (path, status) != ("/readyz", "503"):
                    assert "application/problem+json" in answer["content"], (where, status)
            if operation.get("security"):
                assert "401" in operation["responses"], where
    assert "HTTPValidationError" not in json.dumps(described)


def test_only_these_need_no_token(serving: Serving) -> None:
    described = serving.http.get("/openapi.json").json()
    open_to_all = {
        path
        for path, operations in described["paths"].items()
        for operation in operations.values()
        if not operation.get("security")
    }
    assert open_to_all <= {"/healthz", "/readyz", "/queue-metrics"}


def test_nothing_there_is_404_and_wrong_method_405(serving: Serving) -> None:
    problem(serving.http.get("/api/v2/nothing"), 404, "not-found")
    problem(serving.http.get("/docs"), 404, "not-found")
    answer = serving.http.delete("/healthz")
    problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == "GET"
