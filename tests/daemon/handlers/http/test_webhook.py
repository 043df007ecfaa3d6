"""Notices posted to a real server: what is sent, and what its answers mean."""

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.config.observers import WebhookSettings
from actors.observers.notifier import NotSent
from daemon.notify.webhook import HttpWebhook
from tests.daemon.handlers.http.faulty import FaultyServer, answer, says_and_closes, says_and_hangs

BODY = json.dumps({"text": "3 items are dead letters"}).encode()


def hook(server: FaultyServer, **keys: Any) -> HttpWebhook:
    url = server.url(path="/hooks/secret?room=7")
    return HttpWebhook(WebhookSettings.model_validate({"url": url, "timeout": "1m", **keys}))


async def refused(webhook: HttpWebhook) -> NotSent:
    with pytest.raises(NotSent) as caught:
        await webhook.post("n-1", BODY)
    assert "secret" not in str(caught.value)
    return caught.value


async def test_a_notice_is_posted_as_json(server: FaultyServer) -> None:
    webhook = hook(server, headers={"Authorization": "Bearer x", "user-agent": "ops"})
    await webhook.post("n-1", BODY)
    await webhook.post("n-2", BODY)
    first, second = server.requests
    assert (first.method, first.path) == ("POST", "/hooks/secret?room=7")
    assert first.body == BODY
    assert first.headers["content-type"] == "application/json"
    assert (first.headers["authorization"], first.headers["user-agent"]) == ("Bearer x", "ops")
    assert (first.headers["idempotency-key"], second.headers["idempotency-key"]) == ("n-1", "n-2")


@pytest.mark.parametrize(
    "status, is_final",
    [("404 Not Found", True), ("302 Found", True), ("413 Too Large", True), ("503 Away", False)],
)
async def test_answers(server: FaultyServer, status: str, is_final: bool) -> None:
    server.will(answer(status, b"no such hook", Content_Type="text/plain"))
    problem = await refused(hook(server))
    assert problem.is_final == is_final
    assert status.split()[0] in str(problem)


async def test_a_server_that_repeats_the_path_is_not_quoted(server: FaultyServer) -> None:
    # What is shown of an answer is cut: it may end in the middle of the path.
    for said in (b"Cannot POST /hooks/secret?room=7", b"-" * 195 + b" /hooks/secret"):
        server.will(answer("404 Not Found", said, Content_Type="text/plain"))
        problem = await refused(hook(server))
        assert "404 from " in str(problem)
        assert "/hooks" not in str(problem)
    server.will(answer("400 Bad Request", b"no_text", Content_Type="text/plain"))
    assert "no_text" in str(await refused(hook(server)))


@pytest.mark.parametrize(
    "where, shown",
    [
        ("https://chat.example/hooks/secret?room=7", "redirects to https://chat.example/…,"),
        ("/hooks/secret/", "redirects to another path,"),
        ("https://me:secret@chat.example/", "redirects to another path,"),
    ],
)
async def test_where_a_server_redirects_to_is_its_host_alone(
    server: FaultyServer, where: str, shown: str
) -> None:
    server.will(answer("301 Moved", Location=where))
    with pytest.raises(NotSent) as caught:
        await hook(server).post("n-1", BODY)
    assert shown in str(caught.value)


async def test_a_pause_that_is_asked_for_is_passed_on(server: FaultyServer) -> None:
    server.will(answer("429 Too Many Requests", Retry_After="17"))
    problem = await refused(hook(server))
    assert (problem.is_final, problem.pause_s) == (False, 17)


async def test_a_connection_that_breaks_is_tried_again(server: FaultyServer) -> None:
    server.will(says_and_closes())
    assert not (await refused(hook(server))).is_final
    await hook(server).post("n-1", BODY)
    assert len(server.requests) == 2


async def test_nobody_listens() -> None:
    nobody = HttpWebhook(WebhookSettings(url="http://127.0.0.1:1/hooks/secret"))
    problem = await refused(nobody)
    assert "refused" in str(problem)
    assert not problem.is_final


async def test_a_server_that_hangs_is_left_after_the_timeout(
    server: FaultyServer, mock_clock: MockClock
) -> None:
    server.will(says_and_hangs())
    async with trio.open_nursery() as nursery:

        async def fails() -> None:
            problem = await refused(hook(server, timeout="10s"))
            assert "waiting for the answer took longer than 10s" in str(problem)

        nursery.start_soon(fails)
        await server.acting.wait()
        await wait_all_tasks_blocked()
        mock_clock.jump(9.9)
        await wait_all_tasks_blocked()
        assert nursery.child_tasks
        mock_clock.jump(0.2)
    await hook(server).post("n-1", BODY)
