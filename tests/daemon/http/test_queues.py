"""Queues over HTTP: made, seen, changed, paused, purged, deleted; their figures."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors.control.queues import empty
from actors.model.masking import MASK, holds_mask, masked
from forebay.errors import Refused
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.daemon.http.serving import Serving, problem, serving_on
from tests.eventually import eventually_sync

QUEUES = "/api/v2/queues"


SUB_RESOURCES = [
    ("GET", ""),
    ("GET", "/stats"),
    ("PATCH", ""),
    ("DELETE", ""),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("POST", "/purge"),
]


def made(serving: Serving, queue: str, **settings: Any) -> dict[str, Any]:
    answer = serving.http.post(QUEUES, json={"queue": queue, "settings": settings})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_queue_is_made_seen_changed_and_deleted(serving: Serving) -> None:
    created = made(serving, "mail", max_retries=3)
    assert (created["queue"], created["origin"]) == ("mail", "control")
    assert created["settings"]["max_retries"] == 3

    changed = serving.http.patch(f"{QUEUES}/mail", json={"settings": {"description": "to people"}})
    assert changed.status_code == 200
    shown = serving.http.get(f"{QUEUES}/mail").json()
    assert shown["settings"]["description"] == "to people"
    assert shown["settings"]["max_retries"] == 3
    names = [queue["queue"] for queue in serving.http.get(QUEUES).json()["queues"]]
    assert "mail" in names

    assert serving.http.delete(f"{QUEUES}/mail").status_code == 204
    names = [queue["queue"] for queue in serving.http.get(QUEUES).json()["queues"]]
    assert "mail" not in names
    problem(serving.http.delete(f"{QUEUES}/mail"), 404, "not-found")


def names(serving: Serving) -> list[str]:
    return [queue["queue"] for queue in serving.http.get(QUEUES).json()["queues"]]


@pytest.mark.parametrize("is_defined", [True, False])
def test_a_deleted_queue_is_gone_until_something_is_pushed_to_it(
    serving: Serving, is_defined: bool
) -> None:
    queue = f"gone-{is_defined}"
    if is_defined:
        made(serving, queue)
    serving.push(queue, "one", "two")
    assert serving.http.get(f"{QUEUES}/{queue}").json()["held"] == 2
    problem(serving.http.delete(f"{QUEUES}/{queue}"), 409, "conflict")
    answer = serving.http.delete(f"{QUEUES}/{queue}", params={"items": "delete"})
    assert answer.status_code == 204
    assert queue not in names(serving)
    for method, path in SUB_RESOURCES:
        body: dict[str, Any] = {"json": {"settings": {}}} if method == "PATCH" else {}
        address = f"{QUEUES}/{queue}{path}"
        problem(serving.http.request(method, address, **body), 404, "not-found")
    # Its books stay.
    assert serving.host.books(queue) == {"accepted": 2, "deleted": 2}
    serving.push(queue, "three")
    assert queue in names(serving)
    assert serving.http.get(f"{QUEUES}/{queue}").json()["held"] == 1


def test_a_deleted_queue_is_gone_after_a_restart(tmp_path: Path) -> None:
    with running(Host(tmp_path)) as host:
        for queue in ("gone", "stays"):
            host.ok("push", queue, stdin=b"one\n")
            host.ok("queues", "purge", queue, "--yes")
        host.ok("queues", "rm", "gone", "--yes")
        host.stop()
        host.start()
        listed = host.ok("queues", "ls", "--json").splitlines()
        assert [json.loads(line)["queue"] for line in listed] == ["stays"]
        host.ok("push", "gone", stdin=b"two\n")
        assert json.loads(host.ok("queues", "show", "gone", "--json"))["held"] == 1


def test_a_queue_with_dead_letters_stays(serving: Serving) -> None:
    made(serving, "mourns")
    serving.push("mourns", "one")
    with serving.client() as client, client.lease("mourns", 1, wait_s=HANG_S) as lease:
        lease.nack(list(lease), error="no", permanent=True)

    def is_dead() -> bool:
        return serving.host.books("mourns").get("dead") == 1

    eventually_sync(is_dead)
    found = problem(serving.http.delete(f"{QUEUES}/mourns"), 409, "conflict")
    assert "dead 1" in found["detail"]
    answer = serving.http.delete(f"{QUEUES}/mourns", params={"items": "delete"})
    assert answer.status_code == 204
    assert "mourns" not in names(serving)


def test_commands_on_a_queue_that_does_not_exist_end_with_4(serving: Serving) -> None:
    for words in (
        ("pull", "TYPO"),
        ("queues", "pause", "TYPO"),
        ("queues", "resume", "TYPO"),
        ("history", "TYPO"),
        ("items", "poll", "TYPO"),
        ("queues", "show", "TYPO"),
        ("queues", "set", "TYPO", "--set", "max_retries=1"),
        ("queues", "purge", "TYPO", "--yes"),
        ("queues", "rm", "TYPO", "--yes"),
    ):
        done = serving.host.command(*words)
        assert (done.returncode, b"there is no queue TYPO" in done.stderr) == (4, True), words
    assert "TYPO" not in names(serving)


def test_a_consumer_may_wait_for_a_queue_that_does_not_exist_yet(serving: Serving) -> None:
    serving.host.ok("pull", "early", "--wait", "10ms")
    with serving.client() as client:
        assert not client.lease("early", 1)
    serving.push("early", "one")
    words = ("pull", "early", "--wait", "60s", "--format", "raw", "-n", "1")
    assert serving.host.ok(*words) == "one\n"


def test_every_answer_about_a_queue_says_what_it_holds(serving: Serving) -> None:
    assert made(serving, "counted")["held"] == 0
    serving.push("counted", "one", "two", "three")
    found = [
        serving.http.get(f"{QUEUES}/counted"),
        serving.http.patch(f"{QUEUES}/counted", json={"settings": {"max_retries": 1}}),
        serving.http.post(f"{QUEUES}/counted/pause"),
        serving.http.post(f"{QUEUES}/counted/resume"),
    ]
    assert [answer.json()["held"] for answer in found] == [3] * 4


def test_a_queue_that_is_switched_off_is_not_resumed(serving: Serving) -> None:
    made(serving, "off", is_active=False)
    serving.http.post(f"{QUEUES}/off/pause")
    answer = serving.http.post(f"{QUEUES}/off/resume")
    assert "is_active is false" in problem(answer, 409, "conflict")["detail"]
    assert serving.http.get(f"{QUEUES}/off").json()["is_paused"]
    done = serving.host.command("queues", "resume", "off")
    assert (done.returncode, b"is_active is false" in done.stderr) == (5, True)
    serving.http.patch(f"{QUEUES}/off", json={"settings": {"is_active": True}})
    assert not serving.http.post(f"{QUEUES}/off/resume").json()["is_paused"]


def test_a_queue_is_made_once(serving: Serving) -> None:
    made(serving, "once")
    problem(serving.http.post(QUEUES, json={"queue": "once"}), 409, "conflict")


@pytest.mark.parametrize(
    "body, where",
    [
        ({"queue": "bad name"}, "body.queue"),
        ({"queue": ""}, "body.queue"),
        ({}, "body.queue"),
        ({"queue": "q", "more": 1}, "body.more"),
        ({"queue": "q", "settings": []}, "body.settings"),
    ],
)
def test_what_is_no_queue_is_422_and_says_where(
    serving: Serving, body: dict[str, Any], where: str
) -> None:
    found = problem(serving.http.post(QUEUES, json=body), 422, "invalid")
    assert where in [error["where"] for error in found["errors"]]


def test_settings_that_cannot_be_are_422(serving: Serving) -> None:
    for settings in ({"max_retries": -1}, {"nonsense": 1}, {"handler": {"type": "command"}}):
        answer = serving.http.post(QUEUES, json={"queue": "q", "settings": settings})
        assert problem(answer, 422, "bad-request")["code"] == "BAD_REQUEST"


def test_what_is_no_json_is_400(serving: Serving) -> None:
    headers = {"Content-Type": "application/json"}
    answer = serving.http.post(QUEUES, content=b'{"queue":', headers=headers)
    problem(answer, 400, "bad-request")


@pytest.mark.parametrize("method, path", SUB_RESOURCES)
def test_unknown_queue_is_404(serving: Serving, secretive: Serving, method: str, path: str) -> None:
    """Whether a push would create it or not."""
    body: dict[str, Any] = {"json": {"settings": {}}} if method == "PATCH" else {}
    for served in (serving, secretive):
        address = f"{QUEUES}/nobody{path}"
        problem(served.http.request(method, address, **body), 404, "not-found")


def test_pause_and_resume(serving: Serving) -> None:
    made(serving, "stops")
    paused = serving.http.post(f"{QUEUES}/stops/pause").json()
    assert paused["is_paused"]
    flow = serving.http.post(f"{QUEUES}/stops/pause", params={"flow": "nightly"}).json()
    assert flow["paused_flows"] == ["nightly"]
    resumed = serving.http.post(f"{QUEUES}/stops/resume").json()
    assert (resumed["is_paused"], resumed["paused_flows"]) == (False, ["nightly"])


def test_purge_deletes_what_waits(serving: Serving) -> None:
    made(serving, "full", handler={"type": "pull"})
    serving.push("full", "one", "two", "three")
    answer = serving.http.post(f"{QUEUES}/full/purge")
    assert answer.json() == {"queue": "full", "deleted": 3, "more": False}
    serving.host.until_books({"accepted": 3, "deleted": 3}, "full")


def test_purge_by_command(serving: Serving) -> None:
    made(serving, "byhand", handler={"type": "pull"})
    serving.push("byhand", "one", "two")
    assert serving.host.command("queues", "purge", "byhand").returncode == 2
    serving.host.until_books({"accepted": 2, "held": 2}, "byhand")
    assert serving.host.ok("queues", "purge", "byhand", "--yes") == "2 items of byhand deleted\n"
    serving.host.until_books({"accepted": 2, "deleted": 2}, "byhand")


def test_a_queue_goes_with_its_items_only_when_asked(serving: Serving) -> None:
    made(serving, "kept", handler={"type": "pull"})
    serving.push("kept", "one", "two")
    found = problem(serving.http.delete(f"{QUEUES}/kept"), 409, "conflict")
    assert "held 2" in found["detail"]
    answer = serving.http.delete(f"{QUEUES}/kept", params={"items": "delete"})
    assert answer.status_code == 204
    serving.host.until_books({"accepted": 2, "deleted": 2}, "kept")


def test_what_a_consumer_has_keeps_its_queue(serving: Serving) -> None:
    made(serving, "leased", handler={"type": "pull"})
    serving.push("leased", "one", "two")
    with serving.client() as client:
        lease = client.lease("leased", 1, wait_s=HANG_S, lease_s=3600)
        answer = serving.http.delete(f"{QUEUES}/leased", params={"items": "delete"})
        problem(answer, 409, "conflict")
        lease.ack(list(lease))
    serving.host.until_books({"accepted": 2, "delivered": 1, "deleted": 1}, "leased")


async def test_emptying_a_queue_ends_whatever_comes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Endless:
        async def purge(self, queue: str) -> tuple[int, bool]:
            await trio.sleep(10)
            return 1, True

    letters: Any = None
    with pytest.raises(Refused, match="send it again"):
        await empty("q", Endless(), letters)
    assert trio.current_time() <= 30


def test_stats_say_where_items_are_and_how_long_they_took(serving: Serving) -> None:
    made(serving, "fast", handler={"type": "null"})
    serving.push("fast", *(str(number) for number in range(50)))

    def delivered() -> dict[str, Any]:
        found: dict[str, Any] = serving.http.get(f"{QUEUES}/fast/stats").json()
        assert found["states"]["DONE"] == 50, found
        assert (found["processing"] or {}).get("items") == 50, found
        return found

    stats = eventually_sync(delivered)
    assert set(stats["states"]) == {
        "SPOOLED", "SCHEDULED", "QUEUED", "COLD_QUEUED", "RUNNING", "DONE", "FAILED", "DELETED",
    }  # fmt: skip
    assert stats["books"]["accepted"] == 50
    assert stats["exceptions"] == {"application": 0, "business": 0}
    took = stats["processing"]
    assert 0 <= took["p50_ms"] <= took["p95_ms"] <= took["p99_ms"]


def test_stats_of_a_queue_without_items(serving: Serving) -> None:
    made(serving, "quiet")
    stats = serving.http.get(f"{QUEUES}/quiet/stats").json()
    assert set(stats["states"].values()) == {0}
    assert stats["processing"] is None


# The configuration's queues, and secrets.

SECRET = "s3cret-value"
CRM = {
    "handler": {
        "type": "http",
        "url": f"https://crm.example/hook?api_key={SECRET}&team=a",
        "headers": {"Authorization": f"Bearer {SECRET}", "X-Team": "a"},
    }
}
COMMAND = {
    "handler": {"type": "command", "command": ["true", "--token", SECRET, f"--key={SECRET}"]}
}


@pytest.fixture(scope="module")
def secretive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    config = {"queues": {"crm": CRM, "program": COMMAND}, "auto_create_queues": False}
    with serving_on(tmp_path_factory.mktemp("secretive"), config) as served:
        yield served


def test_secrets_are_masked_everywhere(secretive: Serving) -> None:
    secretive.push("program", "one")

    def known() -> str:
        breakers = secretive.http.get("/api/v2/breakers").json()["breakers"]
        assert breakers
        return str(breakers[0]["destination"])

    program = eventually_sync(known)
    forced = secretive.http.put(
        "/api/v2/breakers", params={"destination": program}, json={"state": "open"}
    )
    assert forced.json()["forced"]
    configuration = ("/api/v2/configuration", f"{QUEUES}/crm", QUEUES)
    for path in (*configuration, "/api/v2/breakers", "/api/v2/events/recent", "/metrics"):
        answer = secretive.http.get(path)
        assert answer.status_code == 200
        assert SECRET not in answer.text
    handler = secretive.http.get(f"{QUEUES}/crm").json()["settings"]["handler"]
    assert handler["headers"] == {"Authorization": MASK, "X-Team": "a"}
    assert handler["url"] == f"https://crm.example/hook?api_key={MASK}&team=a"
    # What has changed is told with the destination's name, and the log says what was done to it.
    eventually_sync(lambda: program in secretive.http.get("/api/v2/events/recent").text)
    secretive.until_logged("http.admin", query=f"destination={program}")


def test_the_configurations_queue_is_changed_there(secretive: Serving) -> None:
    body = {"settings": {"max_retries": 1}}
    problem(secretive.http.patch(f"{QUEUES}/crm", json=body), 409, "conflict")
    problem(secretive.http.delete(f"{QUEUES}/crm"), 409, "conflict")
    problem(secretive.http.post(QUEUES, json={"queue": "crm"}), 409, "conflict")
    assert secretive.http.post(f"{QUEUES}/crm/pause").json()["is_paused"]


def test_a_mask_is_never_taken_for_a_secret(serving: Serving) -> None:
    made(serving, "hook", handler={"type": "http", "url": "http://127.0.0.1:1/", "headers": {}})
    masked_headers = {"handler": {"headers": {"Authorization": MASK}}}
    answer = serving.http.patch(f"{QUEUES}/hook", json={"settings": masked_headers})
    assert "masked" in problem(answer, 422, "invalid")["detail"]


@pytest.mark.parametrize(
    "name, text, shown",
    [
        ("url", "postgresql://me:pw@db/x", f"postgresql://me:{MASK}@db/x"),
        ("url", "https://a/?token=pw&b=c", f"https://a/?token={MASK}&b=c"),
        ("API_TOKEN", "pw", MASK),
        ("Cookie", "pw", MASK),
        ("read_token_file", "/etc/token", "/etc/token"),
        ("error", "500 from http://a/?key=pw for it", f"500 from http://a/?key={MASK} for it"),
        ("plain", "text", "text"),
    ],
)
def test_masking(name: str, text: str, shown: str) -> None:
    assert masked({"a": [{name: text}, 1, None]}) == {"a": [{name: shown}, 1, None]}


@pytest.mark.parametrize(
    "words, shown",
    [
        (["curl", "-H", "Authorization: Bearer pw"], ["curl", "-H", f"Authorization: {MASK}"]),
        (["a", "--api-key", "pw", "b"], ["a", "--api-key", MASK, "b"]),
        (["a", "--token=pw", "--no-auth", "-v"], ["a", f"--token={MASK}", "--no-auth", "-v"]),
        (["sh", "-c", "PASSWORD='pw' x"], ["sh", "-c", "PASSWORD='pw' x"]),
        (["sh", "-c", "PASSWORD=pw x"], ["sh", "-c", f"PASSWORD={MASK} x"]),
        (["a", "redis://u:pw@h", "b=c"], ["a", f"redis://u:{MASK}@h", "b=c"]),
    ],
)
def test_words_of_a_command_are_masked(words: list[str], shown: list[str]) -> None:
    assert masked({"command": words}) == {"command": shown}


def test_masks_are_seen() -> None:
    assert holds_mask({"a": [{"b": MASK}]})
    assert holds_mask({"url": f"redis://u:{MASK}@h"})
    assert holds_mask({"url": f"https://h/?token={MASK}"})
    assert not holds_mask({"a": "**"})
