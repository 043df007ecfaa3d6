"""Dead letters over HTTP against a real daemon, and the jobs on many of them."""

from typing import Any

import pytest

from forebay.ids import format_item_id, new_run_id
from tests.daemon.http.serving import Serving, problem
from tests.eventually import eventually_sync

LETTERS = "/api/v2/dead-letters"


@pytest.fixture
def queue(serving: Serving, request: pytest.FixtureRequest) -> str:
    name = f"d{abs(hash(request.node.name))}"
    settings = {"handler": {"type": "pull"}, "history": "all"}
    answer = serving.http.post("/api/v2/queues", json={"queue": name, "settings": settings})
    assert answer.status_code == 201, answer.text
    return name


def die(serving: Serving, queue: str, error: str, payload: str = "x") -> str:
    new = {"queue": queue, "payload": payload, "reference": "k"}
    item_id: str = serving.http.post("/api/queue-items/add", json=new).json()["id"]
    leased = serving.lease(queue)
    body = {"token": leased["token"], "error": error, "permanent": True}
    assert serving.http.post(f"/api/queue-items/{item_id}/nack", json=body).status_code == 200
    eventually_sync(lambda: serving.http.get(f"{LETTERS}/{item_id}").status_code != 404)
    return item_id


def finished(serving: Serving, job: dict[str, Any]) -> dict[str, Any]:
    def over() -> dict[str, Any]:
        found: dict[str, Any] = serving.http.get(f"/api/v2/jobs/{job['id']}").json()
        assert found["state"] not in ("waiting", "running"), found
        return found

    return eventually_sync(over)


def test_dead_letters_are_listed_shown_and_grouped(serving: Serving, queue: str) -> None:
    ids = [die(serving, queue, f"no customer {n}") for n in range(3)]
    page = serving.http.get(LETTERS, params={"queue": queue, "limit": 2}).json()
    assert [letter["id"] for letter in page["letters"]] == ids[:2]
    assert "payload" not in page["letters"][0] or page["letters"][0]["payload"] is None
    query = {"queue": queue, "limit": 2, "cursor": page["cursor"], "payloads": True}
    page = serving.http.get(LETTERS, params=query).json()
    assert [(letter["id"], letter["payload"]) for letter in page["letters"]] == [(ids[2], "x")]
    shown = serving.http.get(f"{LETTERS}/{ids[0]}").json()
    assert (shown["payload"], shown["errors"][0]["text"]) == ("x", "no customer 0")
    (group,) = serving.http.get(f"{LETTERS}/groups", params={"queue": queue}).json()["groups"]
    assert (group["error"], group["count"]) == ("no customer …", 3)


def test_one_is_edited_and_retried(serving: Serving, queue: str) -> None:
    item_id = die(serving, queue, "bad")
    answer = serving.http.put(f"{LETTERS}/{item_id}/payload", json={"payload": {"good": True}})
    assert answer.status_code == 200, answer.text
    assert serving.http.post(f"{LETTERS}/{item_id}/retry").json()["outcome"] == "retried"
    leased = serving.lease(queue)
    assert (leased["id"], leased["payload"]) == (item_id, '{"good":true}')
    problem(serving.http.post(f"{LETTERS}/{item_id}/retry"), 404, "not-found")


def test_one_is_deleted(serving: Serving, queue: str) -> None:
    item_id = die(serving, queue, "bad")
    assert serving.http.delete(f"{LETTERS}/{item_id}").json()["outcome"] == "deleted"
    problem(serving.http.delete(f"{LETTERS}/{item_id}"), 404, "not-found")
    serving.until_state(item_id, "DELETED")
    serving.host.until_books({"accepted": 1, "deleted": 1}, queue)


def test_chosen_ones_and_all_that_match_are_jobs(serving: Serving, queue: str) -> None:
    ids = [die(serving, queue, error) for error in ("one", "one", "two", "three")]
    answer = serving.http.post(f"{LETTERS}/delete", json={"ids": [ids[3]]})
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/api/v2/jobs/{answer.json()['id']}"
    assert finished(serving, answer.json())["done"] == 1
    chosen = {"which": {"queue": queue, "error": "ONE"}}
    job = finished(serving, serving.http.post(f"{LETTERS}/retry", json=chosen).json())
    assert (job["state"], job["done"], job["total"]) == ("done", 2, 2)
    serving.host.until_books({"accepted": 4, "deleted": 1, "dead": 1, "held": 2}, queue)
    assert job["id"] in [known["id"] for known in serving.http.get("/api/v2/jobs").json()["jobs"]]
    assert serving.http.delete(f"/api/v2/jobs/{job['id']}").json()["state"] == "done"


def test_what_cannot_be(serving: Serving) -> None:
    nobody = format_item_id(new_run_id(), 0)
    problem(serving.http.get(f"{LETTERS}/{nobody}"), 404, "not-found")
    answer = serving.http.put(f"{LETTERS}/{nobody}/payload", json={"payload": "x"})
    problem(answer, 404, "not-found")
    problem(serving.http.post(f"{LETTERS}/retry", json={}), 422, "invalid")
    problem(serving.http.get("/api/v2/jobs/0123456789abcdef"), 404, "not-found")
    problem(serving.http.get(LETTERS, params={"cursor": "AAAA"}), 422, "bad-request")
