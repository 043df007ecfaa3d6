"""Items over HTTP against a real daemon: added, leased, settled, found, changed, deleted."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from forebay import encode_run
from forebay.ids import (
    format_item_id,
    format_run_id,
    new_run_id,
    pack_item_id,
    parse_item_id,
)
from tests.daemon.cli.commands import HANG_S, LOOK_S
from tests.daemon.http.serving import Serving, problem, serving_on
from tests.eventually import eventually_sync

PULLED: dict[str, Any] = {"handler": {"type": "pull"}, "history": "all"}


@pytest.fixture
def queue(serving: Serving, request: pytest.FixtureRequest) -> str:
    name = f"q{abs(hash(request.node.name))}"
    answer = serving.http.post("/api/v2/queues", json={"queue": name, "settings": PULLED})
    assert answer.status_code == 201, answer.text
    return name


def add(serving: Serving, queue: str, **fields: Any) -> str:
    answer = serving.http.post("/api/queue-items/add", json={"queue": queue, **fields})
    assert answer.status_code == 201, answer.text
    assert answer.json()["outcome"] == "STORED"
    item_id: str = answer.json()["id"]
    return item_id


def test_an_item_is_added_leased_and_acknowledged(serving: Serving, queue: str) -> None:
    item_id = add(serving, queue, payload={"a": 1}, reference="k", headers={"x": "y"}, priority=1)
    leased = serving.lease(queue, consumer="me")
    assert (leased["id"], leased["payload"], leased["key"]) == (item_id, '{"a":1}', "k")
    assert (leased["headers"], leased["consumer"]) == ({"x": "y"}, "me")
    assert serving.until_state(item_id, "RUNNING")["attempt"] == 0
    answer = serving.http.post(f"/api/queue-items/{item_id}/ack", json={"token": leased["token"]})
    assert (answer.status_code, answer.json()["outcome"]) == (200, "delivered")
    again = serving.http.post(f"/api/queue-items/{item_id}/ack", json={"token": leased["token"]})
    problem(again, 409, "lease-lost")
    serving.host.until_books({"accepted": 1, "delivered": 1}, queue)
    serving.until_state(item_id, "DONE")


def test_by_the_queue_s_id(serving: Serving, queue: str) -> None:
    answer = serving.http.post("/api/queue-items", json={"queue_id": queue, "payload": "x"})
    assert answer.status_code == 201
    assert serving.item(answer.json()["id"])["payload"] == "x"


def test_nothing_to_lease(serving: Serving, queue: str) -> None:
    answer = serving.http.get("/api/queue-items/next", params={"queue": queue})
    assert (answer.status_code, answer.content) == (204, b"")


def test_a_refused_item_comes_again_and_dies(serving: Serving, queue: str) -> None:
    item_id = add(serving, queue, payload="x")
    leased = serving.lease(queue)
    assert leased["scheduled_at_ms"] == leased["scheduled_at_initially_ms"] == leased["enqueued_ms"]
    body = {"token": leased["token"], "error": "not now", "delay_s": 0}
    assert serving.http.post(f"/api/queue-items/{item_id}/nack", json=body).status_code == 200
    leased = serving.lease(queue)
    assert (leased["id"], leased["attempt"]) == (item_id, 1)
    assert leased["scheduled_at_ms"] > leased["scheduled_at_initially_ms"]
    body = {"token": leased["token"], "error": "never", "permanent": True}
    assert serving.http.post(f"/api/queue-items/{item_id}/nack", json=body).status_code == 200
    shown = serving.until_state(item_id, "FAILED")
    assert [error["text"] for error in shown["errors"]] == ["not now", "never"]
    serving.host.until_books({"accepted": 1, "dead": 1}, queue)


def test_a_business_failure_is_dead_at_once_and_counted_apart(serving: Serving, queue: str) -> None:
    ids = [add(serving, queue, payload="x") for _ in range(2)]
    said: list[dict[str, Any]] = [{"failure_reason": "business"}, {"permanent": True}]
    for more in said:
        leased = serving.lease(queue)
        body = {"token": leased["token"], "error": "no credit", **more}
        path = f"/api/queue-items/{leased['id']}/nack"
        assert serving.http.post(path, json=body).status_code == 200
    shown = [serving.until_state(item_id, "FAILED") for item_id in ids]
    assert [item["failure_reason"] for item in shown] == ["business", "application"]
    assert {item["locked_by"] for item in shown} == {f"{socket.gethostname()}/{queue}/consumer"}
    params = {"queue": queue, "failure_reason": "business"}
    found = serving.http.get("/api/queue-items", params=params).json()["items"]
    assert [item["id"] for item in found] == ids[:1]
    letters = serving.http.get("/api/v2/dead-letters", params=params).json()
    assert [letter["id"] for letter in letters["letters"]] == ids[:1]

    def counted() -> None:
        stats = serving.http.get(f"/api/v2/queues/{queue}/stats").json()
        assert stats["exceptions"] == {"application": 1, "business": 1}
        assert (stats["states"]["FAILED"], stats["processing"]["items"]) == (2, 2)

    eventually_sync(counted)


def test_an_item_goes_on_with_what_its_request_is_part_of(serving: Serving, queue: str) -> None:
    request = {"traceparent": "00-a-b-01", "X-Correlation-Id": "c-1"}
    new = {"queue": queue, "payload": "x", "headers": {"Correlation-Id": "mine"}}
    for body, expected in ((new, "mine"), ({"queue": queue, "payload": "x"}, "c-1")):
        answer = serving.http.post("/api/queue-items/add", json=body, headers=request)
        shown = serving.item(answer.json()["id"])
        assert (shown["correlation_id"], shown["traceparent"]) == (expected, "00-a-b-01")


def test_who_has_an_item_and_what_was_said_of_it_is_shown(serving: Serving, queue: str) -> None:
    item_id = add(serving, queue, payload="x")
    leased = serving.lease(queue, consumer="robot 7")
    shown = serving.until_state(item_id, "RUNNING")
    me = f"{socket.gethostname()}/{queue}/robot 7"
    assert (shown["locked_by"], shown["retries"]) == (me, 0)
    assert shown["enqueued_ms"] <= shown["locked_ms"] == shown["updated_ms"]
    body = {"token": leased["token"], "result": "invoice 4711"}
    assert serving.http.post(f"/api/queue-items/{item_id}/ack", json=body).status_code == 200
    shown = serving.until_state(item_id, "DONE")
    assert (shown["result"], shown["locked_by"]) == ("invoice 4711", me)


def test_a_lease_is_extended_and_is_of_its_item_alone(serving: Serving, queue: str) -> None:
    first, second = add(serving, queue, payload="1"), add(serving, queue, payload="2")
    leased = serving.lease(queue)
    other = second if leased["id"] == first else first
    path = f"/api/queue-items/{leased['id']}/extend"
    answer = serving.http.post(path, json={"token": leased["token"], "lease_s": 7200})
    assert answer.json()["until_ms"] > leased["until_ms"]
    wrong = serving.http.post(f"/api/queue-items/{other}/ack", json={"token": leased["token"]})
    problem(wrong, 409, "lease-lost")


def changed(serving: Serving, item_id: str, **change: Any) -> dict[str, Any]:
    """The item after a change, which must be seen."""
    before = serving.item(item_id)
    while time.time_ns() // 1_000_000 <= before["updated_ms"]:
        time.sleep(LOOK_S)
    answer = serving.http.put(f"/api/queue-items/{item_id}", json=change)
    assert answer.status_code == 200, answer.text
    after = serving.item(item_id)
    assert after["updated_ms"] > before["updated_ms"], change
    moments = [event for event in after["timeline"] if event["what"] == "changed"]
    assert [event["at_ms"] for event in moments] == [after["updated_ms"]]
    assert after["scheduled_at_initially_ms"] <= after["scheduled_at_ms"]
    return after


def test_every_change_moves_updated_ms_and_the_timeline(serving: Serving, queue: str) -> None:
    item_id = add(serving, queue, payload="x")
    serving.until_state(item_id, "QUEUED")
    assert changed(serving, item_id, priority=1)["priority"] == 1
    assert changed(serving, item_id, payload="y")["payload"] == "y"
    later_ms = time.time_ns() // 1_000_000 + 3_600_000
    assert changed(serving, item_id, due_ms=later_ms)["due_ms"] == later_ms
    changed(serving, item_id, state="QUEUED")
    # A failure comes after it, and the change is still told.
    leased = serving.lease(queue)
    body = {"token": leased["token"], "error": "no", "permanent": True}
    assert serving.http.post(f"/api/queue-items/{item_id}/nack", json=body).status_code == 200
    dead = serving.until_state(item_id, "FAILED")
    assert [event["what"] for event in dead["timeline"]] == [
        "accepted",
        "changed",
        "failed",
        "dead",
    ]
    assert dead["updated_ms"] == dead["ended_ms"]
    assert changed(serving, item_id, payload="z")["payload"] == "z"
    (listed,) = serving.http.get("/api/queue-items", params={"queue": queue}).json()["items"]
    assert listed["updated_ms"] > listed["ended_ms"]
    changed(serving, item_id, state="QUEUED")


def test_when_an_item_was_first_due_stays(serving: Serving, queue: str) -> None:
    at_once = add(serving, queue, payload="x")
    first_ms = serving.until_state(at_once, "QUEUED")["scheduled_at_initially_ms"]
    later_ms = time.time_ns() // 1_000_000 + 3_600_000
    for change in ({"due_ms": later_ms}, {"due_ms": later_ms + 1}, {"state": "FAILED"}):
        assert changed(serving, at_once, **change)["scheduled_at_initially_ms"] == first_ms
    retried = changed(serving, at_once, state="QUEUED")
    assert retried["scheduled_at_ms"] == retried["scheduled_at_initially_ms"] == first_ms

    # One that an operator wants earlier is due at first then.
    delayed = add(serving, queue, payload="y", due_ms=later_ms)
    shown = changed(serving, delayed, due_ms=later_ms + 1)
    assert (shown["scheduled_at_ms"], shown["scheduled_at_initially_ms"]) == (
        later_ms + 1,
        later_ms,
    )
    shown = changed(serving, delayed, due_ms=later_ms - 1)
    assert shown["scheduled_at_ms"] == shown["scheduled_at_initially_ms"] == later_ms - 1
    now = changed(serving, delayed, state="QUEUED")
    assert now["scheduled_at_ms"] == now["scheduled_at_initially_ms"] == now["updated_ms"]


def test_a_dead_letter_that_was_mended_and_pushed_again_is_told_as_it_is(serving: Serving) -> None:
    """What was pushed again is in the journal, and delivered from there."""
    item_id = add(serving, "mended", payload="old")
    leased = serving.lease("mended")
    body = {"token": leased["token"], "error": "no", "permanent": True}
    assert serving.http.post(f"/api/queue-items/{item_id}/nack", json=body).status_code == 200
    serving.until_state(item_id, "FAILED")
    again = encode_run(
        [b"other", b"new"],
        queue="mended",
        item_ids=[pack_item_id(new_run_id(), 0), pack_item_id(*parse_item_id(item_id))],
    )
    with serving.client() as client:
        client.submit(again)
        client.drain()
        client.control("dead.remove", which={"ids": [item_id]})
        waiting = serving.until_state(item_id, "QUEUED")
        assert waiting["payload"] == "new"
        with client.lease("mended", 2, wait_s=HANG_S) as taken:
            assert item_id in [item.id for item in taken]
            assert serving.item(item_id)["state"] == "RUNNING"
    done = serving.until_state(item_id, "DONE")
    assert done["payload"] == "new"
    # Also when it is written to the history.
    serving.host.until_books({"accepted": 3, "delivered": 2, "deleted": 1}, "mended")
    eventually_sync(lambda: len(serving.host.ok("history", "mended", "--json").splitlines()) == 3)
    assert [serving.item(item_id)[name] for name in ("state", "payload")] == ["DONE", "new"]
    assert "new" in serving.host.ok("items", "show", item_id)


def test_long_errors_and_results_are_cut_and_not_refused(serving: Serving, queue: str) -> None:
    long = "é" * 100_000
    item_id = add(serving, queue, payload="x")
    for error, kept in (
        (long, "é" * 1999 + "…"),
        ({"code": 17, "text": "no"}, '{"code":17,"text":"no"}'),
    ):
        leased = serving.lease(queue)
        body = {"token": leased["token"], "error": error, "delay_s": 0}
        answer = serving.http.post(f"/api/queue-items/{item_id}/nack", json=body)
        assert answer.status_code == 200, answer.text
        assert serving.until_state(item_id, "QUEUED")["errors"][-1]["text"] == kept
    leased = serving.lease(queue)
    body = {"token": leased["token"], "result": {"invoice": 4711, "lines": ["a", None]}}
    assert serving.http.post(f"/api/queue-items/{item_id}/ack", json=body).status_code == 200
    assert serving.until_state(item_id, "DONE")["result"] == '{"invoice":4711,"lines":["a",null]}'

    other = add(serving, queue, payload="y")
    leased = serving.lease(queue)
    body = {"token": leased["token"], "result": long}
    assert serving.http.post(f"/api/queue-items/{other}/ack", json=body).status_code == 200
    assert serving.until_state(other, "DONE")["result"] == "é" * 16_383 + "…"

    given_up = add(serving, queue, payload="z")
    serving.until_state(given_up, "QUEUED")
    change = {"state": "FAILED", "error": long}
    answer = serving.http.put(f"/api/queue-items/{given_up}", json=change)
    assert answer.status_code == 200, answer.text
    assert serving.until_state(given_up, "FAILED")["last_error"] == "é" * 1999 + "…"


def test_long_errors_and_results_of_the_socket_and_the_command_are_cut(
    serving: Serving, queue: str
) -> None:
    ids = [add(serving, queue, payload=payload) for payload in "abc"]
    with serving.client() as client, client.lease(queue, 2, wait_s=HANG_S) as taken:
        first, second = list(taken)
        taken.nack(first, error="x" * 100_000, permanent=True)
        taken.ack(second, result={"size": "y" * 100_000})
    assert serving.until_state(first.id, "FAILED")["last_error"] == "x" * 1999 + "…"
    result = serving.until_state(second.id, "DONE")["result"]
    assert result.startswith('{"size":"yyy')
    assert result.endswith("y…")
    (last,) = set(ids) - {first.id, second.id}
    lock = json.loads(serving.host.ok("items", "poll", queue, "--wait", "60s"))["lock"]
    serving.host.ok("items", "ack", lock, "--result", "z" * 20_000)
    assert serving.until_state(last, "DONE")["result"].rstrip("z…") == ""


def test_the_same_run_id_is_stored_once(serving: Serving, queue: str) -> None:
    new = {"queue": queue, "payload": "x", "run_id": format_run_id(new_run_id())}
    first = serving.http.post("/api/queue-items/add", json=new)
    second = serving.http.post("/api/queue-items/add", json=new)
    assert (first.json()["outcome"], second.json()["outcome"]) == ("STORED", "DUPLICATE")
    assert first.json()["id"] == second.json()["id"]
    other = serving.http.post("/api/queue-items/add", json=new | {"payload": "y"})
    assert "other content" in problem(other, 422, "bad-run")["detail"]
    serving.host.until_counts(queue, accepted=1)


def test_an_item_is_deleted_and_still_seen(serving: Serving, queue: str) -> None:
    item_id = add(serving, queue, payload="x")
    serving.until_state(item_id, "QUEUED")
    answer = serving.http.delete(f"/api/queue-items/{item_id}")
    assert answer.json() == {"id": item_id, "queue": queue, "state": "DELETED"}
    shown = serving.until_state(item_id, "DELETED")
    assert shown["timeline"][-1]["what"] == "deleted"
    found = problem(serving.http.delete(f"/api/queue-items/{item_id}"), 409, "wrong-state")
    assert found["allowed"] == []
    serving.host.until_books({"accepted": 1, "deleted": 1}, queue)


def test_a_change_that_the_states_do_not_allow_names_those_that_they_do(
    serving: Serving, queue: str
) -> None:
    item_id = add(serving, queue, payload="x")
    serving.until_state(item_id, "QUEUED")
    answer = serving.http.put(f"/api/queue-items/{item_id}", json={"state": "DONE"})
    found = problem(answer, 409, "wrong-state")
    assert (found["state"], found["allowed"]) == ("QUEUED", ["SCHEDULED", "FAILED", "DELETED"])
    answer = serving.http.put(f"/api/queue-items/{item_id}", json={"payload": "y", "priority": 0})
    assert (answer.status_code, answer.json()["priority"]) == (200, 0)
    assert serving.until_state(item_id, "QUEUED")["payload"] == "y"
    leased = serving.lease(queue)
    assert leased["payload"] == "y"
    answer = serving.http.put(f"/api/queue-items/{item_id}", json={"state": "DELETED"})
    found = problem(answer, 409, "wrong-state")
    assert (found["state"], found["allowed"]) == ("RUNNING", [])


def test_items_are_searched_page_by_page(serving: Serving, queue: str) -> None:
    ids = [add(serving, queue, payload=str(n), reference=f"k{n}") for n in range(5)]
    for item_id in ids:
        # What moves between two pages may be on none of them.
        serving.until_state(item_id, "QUEUED")
    found: list[str] = []
    params: dict[str, Any] = {"queue": queue, "limit": 2}
    while True:
        page = serving.http.get("/api/queue-items", params=params).json()
        found += [item["id"] for item in page["items"]]
        if page["cursor"] is None:
            break
        params["cursor"] = page["cursor"]
    assert sorted(found) == sorted(ids)
    by_key = serving.http.get("/api/queue-items", params={"queue": queue, "reference": "k3"})
    assert [item["id"] for item in by_key.json()["items"]] == [ids[3]]
    old = serving.http.get("/api/queue-items", params={"queue": queue, "older_than": "7d"})
    assert old.json() == {"items": [], "cursor": None}
    wrong = serving.http.get("/api/queue-items", params={"cursor": "AAAA"})
    problem(wrong, 422, "bad-request")


def test_what_is_not_there(serving: Serving) -> None:
    item_id = format_item_id(new_run_id(), 0)
    problem(serving.http.get(f"/api/queue-items/{item_id}"), 404, "not-found")
    problem(serving.http.delete(f"/api/queue-items/{item_id}"), 404, "not-found")
    problem(serving.http.get("/api/queue-items/nonsense"), 422, "invalid")


def test_bad_items_are_refused(serving: Serving, queue: str) -> None:
    for fields in (
        {"payload": "x", "payload_b64": "eA=="},
        {"payload_b64": "?"},
        {"priority": "urgent"},
        {"priority": 256},
        {"due_ms": 1, "delay_s": 1},
        {"reference": "ä" * 150},
        {"headers": {"forebay-write": "x"}},
        {"colour": "red"},
    ):
        answer = serving.http.post("/api/queue-items/add", json={"queue": queue, **fields})
        assert answer.status_code == 422, (fields, answer.text)
    big = serving.http.post("/api/queue-items/add", json={"queue": queue, "payload": "x" * 2**21})
    problem(big, 413, "too-large")


@pytest.mark.parametrize(
    "member",
    [
        r'"payload":"\ud800"',
        r'"reference":"\ud800"',
        r'"payload":["\ud800"]',
        '"payload":NaN',
        '"payload":[-Infinity]',
        '"payload":[1e400]',
        '"payload":1,"payload":2',
        '"payload":' + "[" * 101 + "]" * 101,
        '"payload":' + "9" * 5000,
    ],
)
def test_what_is_no_strict_json_is_refused(serving: Serving, queue: str, member: str) -> None:
    answer = serving.http.post(
        "/api/queue-items/add",
        content='{"queue":"' + queue + '",' + member + "}",
        headers={"content-type": "application/json"},
    )
    found = problem(answer, 400, "bad-request")
    assert found["detail"].startswith("the body is not JSON: ")


@pytest.mark.parametrize(
    "wrong", [{"priority": True}, {"due_ms": True}, {"delay_s": "5"}, {"payload_b64": 5}]
)
def test_a_lookalike_is_not_what_was_asked_for(
    serving: Serving, queue: str, wrong: dict[str, Any]
) -> None:
    new = {"queue": queue, **wrong}
    problem(serving.http.post("/api/queue-items/add", json=new), 422, "invalid")
    stream = serving.http.post(f"/api/v2/queues/{queue}/items", content=json.dumps(wrong))
    assert json.loads(stream.text.splitlines()[0])["problem"]["status"] == 422


@pytest.mark.parametrize("payload", ["NaN", "[Infinity]", "[1e400]", r'"\ud800"', "[" * 300])
def test_a_line_that_is_no_strict_json_is_refused_alone(
    serving: Serving, queue: str, payload: str
) -> None:
    lines = '{"payload":' + payload + '}\n{"payload":1}'
    answers = serving.http.post(f"/api/v2/queues/{queue}/items", content=lines).text.splitlines()
    refused, stored = map(json.loads, answers[:2])
    assert refused["problem"]["status"] == 422
    assert stored["outcome"] == "STORED"


# Streams.


def test_a_stream_is_answered_line_by_line(serving: Serving, queue: str) -> None:
    lines = [
        {"payload": "a", "reference": "k"},
        {"payload": {"n": 1}, "priority": "high"},
        {"colour": "red"},
        {"payload_b64": "?"},
        {"payload": "b"},
    ]
    text = "\n".join(json.dumps(line) for line in lines) + "\nnot json\n\n"
    answer = serving.http.post(f"/api/v2/queues/{queue}/items", content=text.encode())
    assert answer.status_code == 200
    answers = [json.loads(line) for line in answer.text.splitlines()]
    assert [entry.get("line") for entry in answers] == [1, 2, 3, 4, 5, 6, None]
    assert [entry.get("outcome") for entry in answers[:6]] == [
        "STORED",
        "STORED",
        None,
        None,
        "STORED",
        None,
    ]
    assert answers[-1] == {"lines": 7, "stored": 3, "refused": 3}
    assert serving.item(answers[1]["id"])["priority"] == 0
    serving.host.until_counts(queue, accepted=3)


def test_a_long_stream_of_a_client_that_reads_nothing_meanwhile(
    serving: Serving, queue: str
) -> None:
    """Its answers are longer than all buffers between it and the daemon."""
    count = 60_000

    def lines() -> Iterator[bytes]:
        for first in range(0, count, 1000):
            yield b"".join(b'{"payload":"%d"}\n' % n for n in range(first, first + 1000))

    with httpx.Client(base_url=serving.address, trust_env=False, timeout=HANG_S) as client:
        answer = client.post(f"/api/v2/queues/{queue}/items", content=lines())
    answers = answer.text.splitlines()
    assert json.loads(answers[-1]) == {"lines": count, "stored": count, "refused": 0}
    assert len(answers) == count + 1
    serving.host.until_counts(queue, accepted=count)


def test_a_stream_is_answered_while_it_is_open(serving: Serving, queue: str) -> None:
    host, port = serving.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
        head = f"POST /api/v2/queues/{queue}/items HTTP/1.1\r\nHost: {host}\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        line = b'{"payload":"x"}\n'
        connection.sendall(b"%x\r\n%s\r\n" % (len(line), line))
        received = b""
        while b"STORED" not in received:
            received += connection.recv(65536)
        connection.sendall(b"0\r\n\r\n")
        while b'"lines":1' not in received:
            received += connection.recv(65536)


def test_a_client_that_goes_away_has_stored_whole_lines_only(serving: Serving, queue: str) -> None:
    host, port = serving.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
        head = f"POST /api/v2/queues/{queue}/items HTTP/1.1\r\nHost: {host}\r\n"
        connection.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode())
        connection.sendall(b'{"payload":"x"}\n{"payload":"y"}\n{"payl')
        received = b""
        while received.count(b"STORED") < 2:
            received += connection.recv(65536)
    serving.push(queue, "last")
    serving.host.until_counts(queue, accepted=3)


def test_an_unknown_queue(tmp_path: Path) -> None:
    with serving_on(tmp_path, {"auto_create_queues": False}) as serving:
        new = {"queue": "none", "payload": "x"}
        problem(serving.http.post("/api/queue-items/add", json=new), 404, "unknown-queue")
        answer = serving.http.post("/api/v2/queues/none/items", content=b"{}\n")
        problem(answer, 404, "unknown-queue")
        answer = serving.http.get("/api/queue-items/next", params={"queue": "none"})
        problem(answer, 404, "unknown-queue")


def test_a_full_queue_is_429_and_says_when_to_come_back(tmp_path: Path) -> None:
    config = {
        "spool": {"max_size": 1},
        "queues": {"q": {"handler": {"type": "pull"}, "full_policy": "drop_newest"}},
    }
    with serving_on(tmp_path, config) as serving:
        new = {"queue": "q", "payload": "x"}
        assert serving.http.post("/api/queue-items/add", json=new).status_code == 201
        answer = serving.http.post("/api/queue-items/add", json=new)
        problem(answer, 429, "queue-full")
        assert int(answer.headers["retry-after"]) >= 1
        lines = serving.http.post("/api/v2/queues/q/items", content=b'{"payload":"y"}\n')
        assert json.loads(lines.text.splitlines()[0])["problem"]["status"] == 429


def test_who_waits_for_an_item_is_told_when_the_daemon_stops(tmp_path: Path) -> None:
    with (
        serving_on(tmp_path, {"queues": {"q": PULLED}}) as serving,
        closing(HTTPConnection("127.0.0.1", serving.port, timeout=HANG_S)) as waiting,
    ):
        waiting.request("GET", "/api/queue-items/next?queue=q&wait_s=30")
        # One that came later and took the same way has come to its end: the first one waits.
        later = serving.http.get("/api/queue-items/next", params={"queue": "q"})
        assert later.status_code == 204
        serving.host.stop()
        assert waiting.getresponse().status in (204, 503)


def test_item_that_waits_unchanged_keeps_its_id(serving: Serving) -> None:
    settings = {"handler": {"type": "pull"}, "unique": "replace"}
    made = serving.http.post("/api/v2/queues", json={"queue": "calendar", "settings": settings})
    assert made.is_success
    new = {"queue": "calendar", "payload": "x", "reference": "k", "due_ms": 2**42}
    first = serving.http.post("/api/queue-items/add", json=new)
    again = serving.http.post(
        "/api/queue-items/add", json=new, headers={"X-Correlation-Id": "another request"}
    )
    assert again.json() == {**first.json(), "outcome": "IGNORED"}
    other = serving.http.post("/api/queue-items/add", json={**new, "due_ms": 2**42 + 1})
    assert other.json()["outcome"] == "UPDATED"
    assert other.json()["id"] != first.json()["id"]


def test_a_reference_that_is_taken_names_its_holder(serving: Serving) -> None:
    for policy in ("reject", "ignore"):
        settings = {"handler": {"type": "pull"}, "unique": policy}
        name = f"unique-{policy}"
        assert serving.http.post(
            "/api/v2/queues", json={"queue": name, "settings": settings}
        ).is_success
        new = {"queue": name, "payload": "x", "reference": "k"}
        first = serving.http.post("/api/queue-items/add", json=new)
        assert (first.status_code, first.json()["outcome"]) == (201, "CREATED")
        second = serving.http.post("/api/queue-items/add", json=new)
        if policy == "reject":
            assert problem(second, 409, "duplicate-reference")["holder"] == first.json()["id"]
        else:
            assert second.json() == {**first.json(), "outcome": "IGNORED"}
        lines = b'{"payload":"y","reference":"k"}\n{"payload":"z"}\n'
        answers = serving.http.post(f"/api/v2/queues/{name}/items", content=lines).text.splitlines()
        taken, created, summary = (json.loads(line) for line in answers)
        # Nothing was stored: there is no item to name.
        outcome = "CONFLICT" if policy == "reject" else "IGNORED"
        assert taken == {"line": 1, "id": None, "outcome": outcome}
        assert serving.item(created["id"])["queue"] == name
        assert summary == {"lines": 2, "stored": 1, "refused": 1}
        # The key is free again once its item is deleted.
        item_id = first.json()["id"]
        assert serving.http.delete(f"/api/queue-items/{item_id}").status_code == 200
        third = serving.http.post("/api/queue-items/add", json=new)
        assert (third.status_code, third.json()["outcome"]) == (201, "CREATED")
