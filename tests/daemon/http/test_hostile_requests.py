"""No request ends the daemon or keeps it from starting again: on the socket, and over HTTP."""

import json
from pathlib import Path
from typing import Any

import pytest

from forebay import Refused, wire
from forebay.client import Client
from forebay.wire import Kind
from tests.daemon.http.serving import Serving, serving_on
from tests.eventually import eventually_sync

DEEP: Any = json.loads("[" * 90 + "]" * 90)
DEEPER = "[" * 256 + "]" * 256
EVERY = {"queue": "jobs", "every": "1h"}
TIME = {"type": "TIME", "target": "jobs", "every": "1h"}
LARGE = 2**63

WRONG: list[dict[str, Any]] = [
    {"op": "cron.add", "name": "n", "settings": {**EVERY, "payload": DEEP}},
    {"op": "trigger.add", "name": "n", "settings": {**TIME, "payload": DEEP}},
    {"op": "cron.add", "name": "n", "settings": {**EVERY, "every": 1e28}},
    {"op": "cron.add", "name": "n", "settings": {**EVERY, "enabled": 0}},
    {"op": "cron.add", "name": "n", "settings": {**EVERY, "priority": True}},
    {"op": "cron.add", "name": "n", "settings": {"queue": "jobs", "cron": "* " * 10_000}},
    {"op": "cron.add", "name": "n", "settings": {**EVERY, "every": None, "cron": "1-9" * 60}},
    {"op": "cron.add", "name": "n", "settings": {"queue": "jobs", "cron": "@daily", "zone": "/"}},
    {"op": "cron.next", "name": "n", "count": LARGE},
    {"op": "trigger.add", "name": "n", "settings": {"type": ["TIME"]}},
    {"op": "queues.add", "queue": "x", "settings": {"lease_time": 1e28}},
    {"op": "queues.add", "queue": "x", "settings": {"lease_time": "9" * 1_000_000}},
    {"op": "queues.add", "queue": "x", "settings": {"warm_max_bytes": "9" * 1_000_000}},
    {"op": "queues.add", "queue": "x", "settings": {"warm_max_items": LARGE}},
    {"op": "queues.add", "queue": "x", "settings": {"rate_limit": 10**300}},
    {"op": "queues.add", "queue": "x", "settings": {"is_active": 0}},
    {"op": "queues.add", "queue": "x", "settings": {"handler": DEEP}},
    {"op": "dead.find", "which": {"died_before_ms": LARGE}},
    {"op": "dead.find", "limit": LARGE},
    {"op": "dead.count", "stop_at": LARGE},
    {"op": "dead.groups", "cursor": "////////////////////"},
    {"op": "items.find", "which": {"before_ms": LARGE}},
    {"op": "items.find", "cursor": "WyJjb2xkIiwiIiw5MjIzMzcyMDM2ODU0Nzc1ODA4LDAsIiJd"},
    {"op": "items.change", "id": "01981b2c-0000-7000-8000-000000000000-0", "due_ms": LARGE},
    {"op": "streams.claim", "queue": "q", "consumer": "c", "after": LARGE},
    {"op": "streams.claim", "queue": "q", "consumer": "c", "after": 0, "items": LARGE},
    {"op": "stage.seal", "write": "00" * 16, "stage": "01" * 16, "runs": LARGE},
    {"op": "stage.seal", "write": "00" * 16, "stage": "01" * 16, "items": LARGE},
    {"op": "write.publish", "write": "00" * 16, "app": "a", "version": LARGE},
    {"op": "write.list", "limit": LARGE},
    {"op": "write.list", "all": 0},
]
NOT_JSON = (DEEPER, "[1e400]", "NaN", '{"a":1,"a":2}', r'"\ud800"', "9" * 5000)
FETCHES: list[dict[str, Any]] = [
    {"state": state, "cursor": cursor}
    for state in ("cold", "history", "queued")
    for cursor in (f"1-{LARGE}", f"{LARGE}-1", "9" * 39, f"{LARGE}", "-", "1-", "١-١", "1-1-1")
] + [
    {"consumer": "c", "claim": LARGE},
    {"consumer": "c", "claim": 1, "first": LARGE},
    {"state": "cold", "rows": LARGE},
    {"state": "cold", "bytes": LARGE},
    {"state": "cold", "rows": True},
]


def new_schedule(payload: str) -> str:
    """A request with this text for its payload."""
    settings = json.dumps(EVERY)[:-1] + ',"payload":' + payload + "}"
    return '{"op":"cron.add","name":"n","settings":' + settings + "}"


def refusal(client: Client, kind: Kind, body: bytes) -> Refused:
    with pytest.raises(Refused) as refused:
        client._exchange.ask(kind, body)
    return refused.value


def test_no_request_ends_the_daemon_or_keeps_it_from_starting_again(tmp_path: Path) -> None:
    with serving_on(tmp_path) as serving:
        with serving.client() as client:
            client.push("q", ["waits"])
            for fields in WRONG:
                refused = refusal(client, Kind.CONTROL, json.dumps(fields).encode())
                assert refused.code == "BAD_REQUEST", (str(fields)[:200], refused)
                assert len(refused.text) < 1000, (str(fields)[:200], refused)
            for payload in NOT_JSON:
                refused = refusal(client, Kind.CONTROL, new_schedule(payload).encode())
                assert refused.code == "BAD_REQUEST", (payload[:200], refused)
            for fields in FETCHES:
                body = wire.pack_json({"queue": "q", **fields})
                assert refusal(client, Kind.FETCH, body).code == "BAD_REQUEST", fields
            assert client.stats()["internal_errors_total"] == 0
        check_http(serving)
        assert serving.host.stop() == 0
        serving.host.start()
        with serving.client() as client:
            assert client.control("cron.list") == {"schedules": []}
            assert client.control("trigger.list") == {"triggers": []}
            assert {queue["queue"] for queue in client.control("queues.ls")["queues"]} == {"q"}


def check_http(serving: Serving) -> None:
    def status(path: str, content: str) -> int:
        headers = {"content-type": "application/json"}
        return serving.http.post(path, content=content, headers=headers).status_code

    for settings in (
        {**EVERY, "payload": DEEP},
        {**EVERY, "every": 1e28},
        {**EVERY, "every": "9" * 1_000_000},
    ):
        body = json.dumps({"name": "n", "settings": settings})
        assert status("/api/v2/schedules", body) == 422
    for settings in ({"lease_time": 1e28}, {"warm_max_bytes": "9" * 1_000_000}, {"is_active": 1}):
        body = json.dumps({"queue": "x", "settings": settings})
        assert status("/api/v2/queues", body) == 422
    for payload in NOT_JSON:
        assert status("/api/v2/schedules", new_schedule(payload)) == 400
    assert status("/api/v2/dead-letters/retry", '{"all":0}') == 422
    assert status("/api/v2/dead-letters/retry", '{"which":{"died_before_ms":true}}') == 422
    for path in (
        f"/api/queue-items?cursor={'9' * 900}",
        f"/api/queue-items?limit={LARGE}",
        f"/api/queue-items?older_than={'9' * 20}",
        f"/api/v2/events/recent?after={LARGE}",
    ):
        assert serving.http.get(path).status_code == 422, path


def test_definitions_that_were_kept_and_cannot_be_do_not_keep_the_daemon_from_starting(
    tmp_path: Path,
) -> None:
    with serving_on(tmp_path) as serving:
        with serving.client() as client:
            client.control("cron.add", name="good", settings=EVERY)
            client.control("queues.add", queue="good", settings={"max_retries": 3})
        assert serving.host.stop() == 0
        state = serving.host.state_dir
        schedules = json.loads((state / "schedules.json").read_text())
        deep = {**EVERY, "payload": json.loads(DEEPER)}
        schedules["schedules"] |= {"deep": deep, "odd": 5, "long": {**EVERY, "every": 1e28}}
        (state / "schedules.json").write_text(json.dumps(schedules))
        queues = json.loads((state / "queues.json").read_text())
        queues["queues"] |= {
            "odd": 5,
            "long": {**queues["queues"]["good"], "keys": {"lease_time": 1e28}},
        }
        (state / "queues.json").write_text(json.dumps(queues))
        (state / "triggers.json").write_text("[" * 100_000)
        serving.host.start()
        with serving.client() as client:
            shown = client.control("cron.list")["schedules"]
            assert [schedule["name"] for schedule in shown] == ["good"]
            assert client.control("queues.show", queue="good")["settings"]["max_retries"] == 3
            # What is not in force can be removed.
            client.control("cron.remove", name="deep")
            client.control("queues.rm", queue="long")

        def told() -> None:
            events = [line["event"] for line in serving.host.log()]
            assert events.count("cron.definition_unusable") >= 2
            assert events.count("catalogue.definition_unusable") >= 1
            assert events.count("state.entries_rejected") == 2
            assert events.count("state.file_damaged") == 1

        eventually_sync(told)
        (aside,) = state.glob("schedules.json.rejected-*")
        assert json.loads(aside.read_text()) == schedules
        assert len(list(state.glob("triggers.json.damaged-*"))) == 1
