"""Schedules over HTTP: made, seen, changed, run, deleted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.http.serving import Serving, problem, serving_on

SCHEDULES = "/api/v2/schedules"
HOURLY = {"queue": "hours", "every": "1h", "payload": {"n": 1}}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    config = {"schedules": {"fixed": {"queue": "fixed", "daily": {"at": "02:30"}}}}
    with serving_on(tmp_path_factory.mktemp("serving"), config) as served:
        yield served


def test_a_schedule_is_made_seen_changed_run_and_deleted(serving: Serving) -> None:
    made = serving.http.post(SCHEDULES, json={"name": "hourly", "settings": HOURLY})
    assert made.status_code == 201, made.text
    assert (made.json()["origin"], made.json()["when"]) == ("control", "every 1h")
    serving.host.until_counts("hours", held=4)
    names = [each["name"] for each in serving.http.get(SCHEDULES).json()["schedules"]]
    assert names == ["fixed", "hourly"]

    address = f"{SCHEDULES}/hourly"
    ticks = serving.http.get(f"{address}/next", params={"count": 3}).json()["ticks_ms"]
    assert [tick % 3_600_000 for tick in ticks] == [0, 0, 0]
    assert ticks[0] == serving.http.get(address).json()["next_ms"]

    shown = made.json()
    assert (shown["last_ms"], shown["last_state"]) == (None, None)
    assert (shown["missed_total"], shown["missed_ms"]) == (0, None)

    wanted = {"settings": {"every": None, "cron": "0 12 * * *", "zone": "Europe/Berlin"}}
    changed = serving.http.patch(address, json=wanted)
    assert changed.json()["when"] == "0 12 * * * (Europe/Berlin)", changed.text
    serving.host.until_counts("hours", held=4)

    pushed = serving.http.post(f"{address}/run")
    assert (pushed.status_code, pushed.json()["queue"]) == (200, "hours")
    item = serving.http.get(f"/api/queue-items/{pushed.json()['id']}").json()
    assert item["queue"] == "hours"

    serving.http.patch(address, json={"settings": {"enabled": False}})
    assert serving.http.get(address).json()["next_ms"] is None
    serving.host.until_counts("hours", held=1)
    assert serving.http.delete(address).status_code == 204
    problem(serving.http.get(address), 404, "not-found")


def test_one_of_the_configuration_is_run_and_not_changed(serving: Serving) -> None:
    address = f"{SCHEDULES}/fixed"
    assert serving.http.get(address).json()["origin"] == "file"
    assert serving.http.post(f"{address}/run").status_code == 200
    problem(serving.http.patch(address, json={"settings": {"enabled": False}}), 409, "conflict")
    problem(serving.http.delete(address), 409, "conflict")
    answer = serving.http.post(SCHEDULES, json={"name": "fixed", "settings": HOURLY})
    problem(answer, 409, "conflict")


def test_payloads_and_secrets_are_not_for_everybody(tmp_path: Path) -> None:
    for name in ("read", "admin"):
        (tmp_path / name).write_text(f"{name}-token-of-the-test\n")
        (tmp_path / name).chmod(0o600)
    settings = {**HOURLY, "headers": {"api_token": "hush"}}
    with serving_on(
        tmp_path,
        {"schedules": {"s": settings}},
        read_token_file=str(tmp_path / "read"),
        admin_token_file=str(tmp_path / "admin"),
    ) as served:
        for name, payload in (("read", "***"), ("admin", {"n": 1})):
            headers = {"Authorization": f"Bearer {name}-token-of-the-test"}
            found = served.http.get(f"{SCHEDULES}/s", headers=headers).json()["settings"]
            assert (found["payload"], found["headers"]) == (payload, {"api_token": "***"})
            all_of_it = served.http.get("/api/v2/configuration", headers=headers).json()
            assert all_of_it["settings"]["schedules"]["s"]["payload"] == "***"
            ran = served.http.post(f"{SCHEDULES}/s/run", headers=headers)
            assert ran.status_code == (403 if name == "read" else 200)


@pytest.mark.parametrize(
    "settings, text, field",
    [
        ({"queue": "q"}, "bad: give one of cron, daily and every", None),
        ({"queue": "q", "cron": "* * * *"}, "has 4 fields", "cron"),
        ({"queue": "q", "every": "1ms"}, "bad: every: ", "every"),
        ({"queue": "q", "daily": {"at": "25:00"}}, "bad: daily.at: ", "daily.at"),
        ({"queue": "q", "every": "10s", "priority": "urgent"}, "no priority 'urgent'", None),
        ({"queue": "q", "every": "10s", "nonsense": 1}, "nonsense", "nonsense"),
    ],
)
def test_what_cannot_be_is_422_and_says_why_and_which_key_it_is(
    serving: Serving, settings: dict[str, Any], text: str, field: str | None
) -> None:
    answer = serving.http.post(SCHEDULES, json={"name": "bad", "settings": settings})
    found = problem(answer, 422, "bad-request")
    assert text in found["detail"]
    assert found.get("field") == field


@pytest.mark.parametrize(
    "method, path", [("GET", ""), ("GET", "/next"), ("DELETE", ""), ("POST", "/run")]
)
def test_unknown_schedule_is_404(serving: Serving, method: str, path: str) -> None:
    problem(serving.http.request(method, f"{SCHEDULES}/nobody{path}"), 404, "not-found")
