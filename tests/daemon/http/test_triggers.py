"""Triggers over HTTP: made, seen, changed, run, paused, deleted."""

from collections.abc import Iterator

import pytest

from tests.daemon.http.serving import Serving, problem, serving_on
from tests.eventually import eventually_sync

TRIGGERS = "/api/v2/triggers"
EMBED = {"type": "QUEUE", "queue": "documents", "target": "embedding", "polling_interval": "1h"}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    config = {
        "queues": {"embedding": {"handler": {"type": "pull"}}},
        "triggers": {
            "fixed": {"type": "QUEUE", "queue": "in", "target": "out", "polling_interval": "1h"},
            "nightly": {"type": "TIME", "target": "nights", "daily": {"at": "02:30"}},
        },
        "schedules": {"old": {"queue": "fixed", "every": "1h"}},
    }
    with serving_on(tmp_path_factory.mktemp("serving"), config) as served:
        yield served


def test_a_queue_trigger_is_made_seen_changed_run_and_deleted(serving: Serving) -> None:
    http = serving.http
    made = http.post(TRIGGERS, json={"name": "embed", "settings": EMBED})
    assert made.status_code == 201, made.text
    assert (made.json()["origin"], made.json()["when"]) == ("control", "every 1h")
    assert made.json()["settings"]["batch_size"] == 100
    address = f"{TRIGGERS}/embed"
    changed = http.patch(address, json={"settings": {"batch_size": 2}})
    assert changed.json()["settings"]["batch_size"] == 2, changed.text

    assert http.post(f"{address}/run").json()["id"] is None
    serving.host.ok("push", "documents", stdin=b"a\nb\nc\n")
    serving.host.until_counts("documents", cold=3)
    ran = http.post(f"{address}/run").json()
    assert (ran["target"], ran["items"]) == ("embedding", 2)

    def is_live() -> None:
        (job,) = http.get(address).json()["live_jobs"]
        assert (job["id"], job["items"]) == (ran["id"], 2)

    eventually_sync(is_live, errors=(ValueError,))
    item = http.get(f"/api/queue-items/{ran['id']}").json()
    assert (item["queue"], item["headers"]["trigger"]) == ("embedding", "embed")

    def claimed() -> None:
        found = http.get("/api/queue-items", params={"queue": "documents"}).json()["items"]
        shown = [serving.item(each["id"])["job"] for each in found]
        assert sorted(shown, key=str) == [ran["id"], ran["id"], None]

    eventually_sync(claimed)

    paused = http.post(f"{address}/pause").json()
    assert (paused["paused"], paused["enabled"]) == (True, True)
    assert http.post(f"{address}/resume").json()["paused"] is False

    assert http.delete(address).status_code == 204
    problem(http.get(address), 404, "not-found")
    problem(http.delete(address), 404, "not-found")


def test_a_schedule_does_not_take_the_name_of_a_queue_trigger(serving: Serving) -> None:
    new = {"name": "fixed", "settings": {"queue": "q", "every": "1h"}}
    refused = problem(serving.http.post("/api/v2/schedules", json=new), 409, "conflict")
    assert refused["detail"] == "there is a trigger fixed already, of type QUEUE"
    added = serving.host.command("cron", "add", "fixed", "q", "--every", "1h")
    assert (added.returncode, b"of type QUEUE" in added.stderr) == (5, True)


def test_time_triggers_are_schedules(serving: Serving) -> None:
    http = serving.http
    listed = {each["name"]: each for each in http.get(TRIGGERS).json()["triggers"]}
    assert {name: one["type"] for name, one in listed.items() if name != "embed"} == {
        "fixed": "QUEUE",
        "nightly": "TIME",
        "old": "TIME",
    }
    assert (listed["nightly"]["origin"], listed["nightly"]["target"]) == ("file", "nights")
    assert "nightly" in {each["name"] for each in http.get("/api/v2/schedules").json()["schedules"]}
    hourly = {"type": "TIME", "target": "hours", "every": "1h", "payload": "now"}
    made = http.post(TRIGGERS, json={"name": "hourly", "settings": hourly})
    assert made.status_code == 201, made.text
    address = f"{TRIGGERS}/hourly"
    assert made.json()["settings"]["target"] == "hours"
    assert http.get("/api/v2/schedules/hourly").json()["queue"] == "hours"
    assert http.post(f"{address}/run").json()["target"] == "hours"
    assert http.post(f"{address}/pause").json()["enabled"] is False
    assert http.patch(address, json={"settings": {"every": "2h"}}).json()["when"] == "every 2h"
    assert http.delete(address).status_code == 204
    problem(http.get("/api/v2/schedules/hourly"), 404, "not-found")


def test_what_cannot_be_is_refused(serving: Serving) -> None:
    http = serving.http

    def refused(name: str, kind: int, code: str, **settings: object) -> None:
        answer = http.post(TRIGGERS, json={"name": name, "settings": {**EMBED, **settings}})
        problem(answer, kind, code)

    refused("fixed", 409, "conflict")
    refused("old", 409, "conflict")
    refused("x", 422, "bad-request", target="documents")
    refused("x", 422, "bad-request", batch_size=0)
    refused("x", 422, "bad-request", type="CRON")
    refused("x", 422, "bad-request", type="TIME")
    problem(http.delete(f"{TRIGGERS}/fixed"), 409, "conflict")
    change = {"settings": {"type": "TIME"}}
    problem(http.patch(f"{TRIGGERS}/fixed", json=change), 422, "bad-request")
    assert http.post(f"{TRIGGERS}/fixed/pause").json()["paused"] is True
    assert http.post(f"{TRIGGERS}/fixed/resume").json()["paused"] is False
