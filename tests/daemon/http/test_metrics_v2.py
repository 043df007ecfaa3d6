"""/api/v2/metrics/ of a real daemon: what waits, what runs, who handles it, and the last hour."""

import socket
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from forebay import Client
from tests.daemon.cli.commands import HANG_S
from tests.daemon.http.serving import Serving, problem, serving_on
from tests.eventually import eventually_sync

CONFIG: dict[str, Any] = {
    "queues": {
        "pulled": {"warm_max_items": 10},
        "streamed": {},
        "null": {"handler": {"type": "null"}},
        "timed": {"handler": {"type": "null"}},
        "scored": {"handler": {"type": "python", "function": "httpx:head"}, "is_active": False},
        "own": {
            "handler": {"type": "python", "function": "tests.daemon.handlers.functions:keep"},
            "is_active": False,
        },
        "mailed": {"handler": {"type": "command", "command": ["/bin/cat"]}, "is_active": False},
    }
}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving_on(tmp_path_factory.mktemp("metrics"), CONFIG, rate_limit=0) as served:
        yield served


def ask(served: Serving, path: str, **query: Any) -> dict[str, Any]:
    answer = served.http.get(f"/api/v2/metrics/{path}", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def ask_until(
    served: Serving, path: str, holds: Callable[[dict[str, Any]], bool], **query: Any
) -> dict[str, Any]:
    """What is shown may be a second old, a sample five: asked again until it is not."""

    def found() -> dict[str, Any]:
        answer = ask(served, path, **query)
        assert holds(answer), answer
        return answer

    return eventually_sync(found)


def of(queue: str, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["queue"] == queue]


def push(client: Client, queue: str, items: int, flow: str, action: str = "act") -> None:
    client.push(queue, [b"x"] * items, flow=flow, action=action)


def test_detailed_shows_warm_and_cold_by_flow_and_action(serving: Serving) -> None:
    with serving.client() as client:
        push(client, "pulled", 8, "signup", "welcome")
        push(client, "pulled", 6, "order", "confirm")

    def is_there(found: dict[str, Any]) -> bool:
        rows = of("pulled", found["warm"]) + of("pulled", found["cold"])
        return sum(row["count"] for row in rows) == 14

    found = ask_until(serving, "queues/detailed", is_there)
    warm = {row["flowName"]: row for row in of("pulled", found["warm"])}
    cold = {row["flowName"]: row for row in of("pulled", found["cold"])}
    assert warm["signup"]["count"] == 8
    assert warm["order"]["count"] == 2
    assert cold.keys() == {"order"}
    entry = cold["order"]
    assert entry["count"] == 4
    assert (entry["actionName"], entry["actionClass"]) == ("confirm", "pull")
    assert (entry["flowType"], entry["timestamp"]) == ("pull", found["timestamp"])
    queued, shown = (datetime.fromisoformat(entry[k]) for k in ("oldestQueuedAt", "timestamp"))
    assert queued < shown
    assert not found["isPartial"]


def test_flow_type_says_how_a_queue_is_emptied(serving: Serving) -> None:
    with serving.client() as client:
        push(client, "streamed", 1, "f")
        push(client, "own", 1, "f")
        client.claim("streamed", "me", after=0, items=1)
        kinds = {}

        def is_there(found: dict[str, Any]) -> bool:
            rows = found["warm"] + found["cold"]
            kinds.update({row["queue"]: (row["flowType"], row["actionClass"]) for row in rows})
            return kinds.get("streamed", ("",))[0] == "stream" and "own" in kinds

        ask_until(serving, "queues/detailed", is_there)
    assert kinds["own"] == ("push", "python:tests.daemon.handlers.functions:keep")


def test_plugins_name_the_distribution_of_each_handler(serving: Serving) -> None:
    found = ask(serving, "queues/action-plugins")["plugins"]
    plugins = {entry["actionClass"]: entry for entry in found}
    assert plugins["null"]["plugin"] == "forebayd"
    assert plugins["null"]["version"]
    assert plugins["null"]["queues"] == ["null", "timed"]
    assert plugins["command:cat"]["plugin"] == "forebayd"
    assert plugins["python:httpx:head"]["plugin"] == "httpx"
    assert plugins["python:httpx:head"]["version"]
    assert plugins["python:tests.daemon.handlers.functions:keep"]["plugin"] is None


def test_running_shows_what_a_consumer_has_leased(serving: Serving) -> None:
    with serving.client() as client:
        push(client, "consumed", 5, "f", "pay")
        with client.lease("consumed", 3, wait_s=HANG_S, lease_s=4000, consumer="cashier") as lease:
            found = ask_until(
                serving, "queues/running", lambda found: bool(of("consumed", found["tasks"]))
            )
            (task,) = of("consumed", found["tasks"])
            assert task["did"] == lease[0].id
            assert (task["count"], task["actionName"], task["actionClass"]) == (3, "pay", "pull")
            assert task["appName"].endswith("/consumed/cashier")
            assert task["heartbeatThresholdMs"] == 4_000_000
            assert task["runningForMs"] >= 0
            assert datetime.fromisoformat(task["startTime"]).utcoffset() == timedelta(0)
        ask_until(serving, "queues/running", lambda found: not of("consumed", found["tasks"]))


def test_running_shows_what_a_worker_is_sending(serving: Serving) -> None:
    # It takes connections, and says nothing.
    with socket.create_server(("127.0.0.1", 0)) as silent, serving.client() as client:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/hook"
        handler = {"type": "http", "url": url, "timeout": "1d"}
        client.control("queues.add", queue="stuck", settings={"handler": handler})
        push(client, "stuck", 7, "f", "call")
        found = ask_until(
            serving, "queues/running", lambda found: bool(of("stuck", found["tasks"]))
        )
        (task,) = of("stuck", found["tasks"])
        assert (task["count"], task["actionName"], task["actionClass"]) == (7, "call", "http")
        assert task["appName"].endswith("/stuck/1")
        assert task["heartbeatThresholdMs"] > 2 * 86_400_000
        assert found["total"] >= 1


def test_history_has_samples_rates_and_a_forecast(serving: Serving) -> None:
    with serving.client() as client:
        push(client, "null", 50, "f")

    def is_sampled(found: dict[str, Any]) -> bool:
        return found["series"][0]["delivered"][-1:] == [50]

    found = ask_until(serving, "history", is_sampled, queue="null")
    (series,) = found["series"]
    assert series["queue"] == "null"
    columns = [value for value in series.values() if isinstance(value, list)]
    assert len(columns) == 10
    assert len({len(column) for column in columns}) == 1
    assert series["at"] == sorted(series["at"])
    assert series["accepted"][-1] == 50
    assert series["warm"][-1] == series["running"][-1] == 0
    assert found["spool"]["maxBytes"] > 0
    assert found["forecast"]["direction"] in ("full", "empty", "steady", "unknown")
    assert "null" in found["queues"]
    assert found["intervalSeconds"] == 5


def test_history_of_several_queues_of_the_whole_and_of_none(serving: Serving) -> None:
    both = ask(serving, "history", queue=["null", "never-seen", "null"], minutes=1, points=2)
    assert [series["queue"] for series in both["series"]] == ["null", "never-seen"]
    assert both["series"][1]["at"] == []
    assert len(both["series"][0]["at"]) <= 2
    found = ask_until(serving, "history", lambda found: len(found["series"][0]["at"]) >= 1)
    (whole,) = found["series"]
    assert whole["queue"] == ""


@pytest.mark.parametrize(
    "query", [{"minutes": 0}, {"minutes": 61}, {"points": 1}, {"queue": "x" * 300}]
)
def test_history_refuses_what_makes_no_sense(serving: Serving, query: dict[str, Any]) -> None:
    problem(serving.http.get("/api/v2/metrics/history", params=query), 422, "invalid")


def test_stats_of_a_queue_have_percentiles(serving: Serving) -> None:
    with serving.client() as client:
        push(client, "timed", 1, "f")

    def processed() -> dict[str, Any]:
        found: dict[str, Any] = serving.http.get("/api/v2/queues/timed/stats").json()
        assert found["processing"] is not None, found
        return found

    stats = eventually_sync(processed)
    assert stats["processing"]["items"] == 1
    assert stats["processing"]["p50_ms"] <= stats["processing"]["p99_ms"]
    assert stats["exceptions"] == {"application": 0, "business": 0}
