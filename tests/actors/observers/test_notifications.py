"""The notifier, on a clock that jumps: who is told, what is tried again, and what never waits."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from actors.config.observers import NotificationSettings, WebhookSettings
from actors.config.secrets import text_of
from actors.observers.events import NoticeMade
from actors.observers.notifier import (
    INCIDENTS_MAX,
    LAST_S,
    LINE_MIN,
    PAUSES_S,
    Notifier,
    NotSent,
    Ways,
)

HOOK = {"webhook": {"url": "http://hook.test/secret"}}
Configured = dict[str, NotificationSettings]


class World:
    """Receivers by address and by queue; each takes what it is given, unless `acts` says no."""

    def __init__(self) -> None:
        self.got: list[tuple[float, str, dict[str, Any]]] = []
        self.acts: dict[str, list[NotSent]] = {}
        self.hangs: set[str] = set()
        self.noted: list[NoticeMade] = []
        self.came = trio.Event()

    async def take(self, who: str, body: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if who in self.hangs:
            await trio.sleep_forever()
        acts = self.acts.get(who)
        if acts:
            raise acts.pop(0)
        self.got.append((trio.current_time(), who, json.loads(body)))
        self.came.set()
        self.came = trio.Event()

    def open_webhook(self, settings: WebhookSettings) -> "Hook":
        return Hook(self, text_of(settings.url))

    async def push(self, queue: str, _notice_id: str, payload: bytes) -> None:
        await self.take(queue, payload)

    async def wait_for(self, notices: int) -> None:
        while len(self.got) < notices:
            await self.came.wait()

    def told(self) -> list[tuple[float, str, int]]:
        return [(round(at - self.began, 3), who, body["count"]) for at, who, body in self.got]

    began = 0.0


class Hook:
    def __init__(self, world: World, url: str) -> None:
        self._world, self._url = world, url

    async def post(self, _notice_id: str, body: bytes) -> None:
        await self._world.take(self._url, body)


def configured(**notifications: dict[str, Any]) -> Configured:
    return {name: NotificationSettings.model_validate(keys) for name, keys in notifications.items()}


@asynccontextmanager
async def notifying(world: World, found: Configured) -> AsyncIterator[Notifier]:
    ways = Ways(world.open_webhook, world.push)
    notifier = Notifier(found, ways, lambda: 1000, "host-1", world.noted.append)
    world.began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(notifier.run)
        yield notifier
        nursery.cancel_scope.cancel()


async def test_one_at_once_then_one_a_window(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    async with notifying(world, configured(pager=HOOK)) as notifier:
        notifier.dead("crm", "503 from x", 3, ["a-1"])
        await world.wait_for(1)
        for _ in range(5):
            await trio.sleep(1)
            notifier.dead("crm", "503 from http://u:hunter2@x", 2, ["a-2"])
        await world.wait_for(2)
    hook = "http://hook.test/secret"
    assert world.told() == [(0, hook, 3), (60, hook, 10)]
    body = world.got[1][2]
    assert body["error"] == "503 from http://u:***@x"
    assert body["text"] == "10 items are dead letters of crm: 503 from http://u:***@x"
    assert (body["host"], body["queue"], body["on"]) == ("host-1", "crm", "dead")
    assert [note.state for note in world.noted] == ["dead", "dead"]
    assert notifier.figures() == {
        "dropped_total": 0,
        "by_name": {
            "pager": {
                "suppressed_total": 4,
                "sent_total": {"webhook": 2},
                "failed_total": {"webhook": 0},
            }
        },
    }


async def test_who_is_told_of_what(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    found = configured(
        all={"queue": "ops"},
        crm={"queue": "crm-team", "queues": ["crm*"], "on": ["dead"]},
        mail={"queue": "mail-team", "queues": ["mail"], "on": ["trigger_failed"]},
        triggers={"queue": "cron-team", "on": ["trigger_failed"]},
    )
    async with notifying(world, found) as notifier:
        notifier.dead("crm-eu", "no")
        notifier.dead("mail", "no")
        notifier.trigger_failed("nightly", "no such queue")
        notifier.trigger_failed("polling", "no such queue", "mail")
        await world.wait_for(9)
        await trio.testing.wait_all_tasks_blocked()
    told = {(who, body["queue"] or body["trigger"]) for _, who, body in world.got}
    assert told == {
        ("ops", "crm-eu"),
        ("ops", "mail"),
        ("ops", "nightly"),
        ("crm-team", "crm-eu"),
        ("cron-team", "nightly"),
        ("cron-team", "polling"),
        ("mail-team", "polling"),
        ("mail-team", "nightly"),
        ("ops", "polling"),
    }


async def test_notices_do_not_make_notices(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    found = configured(one={"queue": "ops"}, other={**HOOK, "queue": "ops-2"})
    async with notifying(world, found) as notifier:
        notifier.dead("ops", "cannot be delivered")
        notifier.dead("ops-2", "cannot be delivered")
        await trio.sleep(1000)
    assert world.got == []


async def test_what_fails_is_tried_again_then_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.acts["ops"] = [NotSent("away")] * (1 + len(PAUSES_S))
    with capture_logs() as logs:
        async with notifying(world, configured(pager={"queue": "ops"})) as notifier:
            notifier.dead("crm", "no")
            await trio.sleep(sum(PAUSES_S) + 1)
            assert world.acts["ops"] == []
            assert notifier.figures()["by_name"]["pager"]["failed_total"] == {"queue": 1}
            assert world.noted[-1].state == "not_sent"
            for number, queue in enumerate(("mail", "billing"), 1):
                notifier.dead(queue, "no")
                await world.wait_for(number)
            await trio.testing.wait_all_tasks_blocked()
    assert [line["event"] for line in logs] == [
        "notifications.not_sent",
        "notifications.sent_again",
    ]


async def test_a_final_refusal_is_not_tried_again(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.acts["ops"] = [NotSent("404", is_final=True), NotSent("never asked for")]
    async with notifying(world, configured(pager={"queue": "ops"})) as notifier:
        notifier.dead("crm", "no")
        await trio.sleep(100)
    assert len(world.acts["ops"]) == 1


async def test_a_pause_that_is_asked_for_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.acts["ops"] = [NotSent("429", pause_s=30), NotSent("429", pause_s=10**6)]
    async with notifying(world, configured(pager={"queue": "ops"})) as notifier:
        notifier.dead("crm", "no")
        await world.wait_for(1)
    assert world.told() == [(90, "ops", 1)]


async def test_a_receiver_that_hangs_holds_up_nobody_else(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.hangs.add("http://hook.test/secret")
    found = configured(both={**HOOK, "queue": "ops", "rate": LINE_MIN}, other={"queue": "other"})
    async with notifying(world, found) as notifier:
        for number in range(2 * LINE_MIN):
            notifier.dead(f"q{number}", "no")
        await trio.sleep(61)
    taken = [who for _, who, _ in world.got]
    assert taken.count("ops") == 2 * LINE_MIN
    assert taken.count("other") == 12
    # One is with the receiver, a line of them waits, and the rest was given up.
    failed = notifier.figures()["by_name"]["both"]["failed_total"]
    assert failed == {"webhook": LINE_MIN - 1, "queue": 0}


async def test_who_reports_never_waits_and_what_is_too_much_is_counted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    with capture_logs() as logs:
        async with notifying(world, configured(pager={"queue": "ops"})) as notifier:
            for _ in range(INCIDENTS_MAX + 7):
                notifier.dead("crm", "no")
            await world.wait_for(1)
    assert world.got[0][2]["count"] == INCIDENTS_MAX
    assert notifier.dropped_total == 7
    assert [line["event"] for line in logs] == ["notifications.dropping"]


async def test_a_reload_changes_what_is_told_and_keeps_what_is_the_same(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    async with notifying(world, configured(a={"queue": "one"}, b={"queue": "b"})) as notifier:
        notifier.dead("crm", "no")
        await world.wait_for(2)
        notifier.reload(configured(a={"queue": "two"}, b={"queue": "b"}, c={"queue": "c"}))
        await trio.testing.wait_all_tasks_blocked()
        notifier.dead("crm", "no")
        await world.wait_for(4)
        notifier.reload({})
        await trio.testing.wait_all_tasks_blocked()
        notifier.dead("crm", "no")
        await trio.sleep(1000)
    # What is new, and what is changed, knows of no earlier notice.
    assert sorted(who for _, who, _ in world.got) == ["b", "c", "one", "two"]


@pytest.mark.parametrize("is_stuck", [False, True])
async def test_what_is_known_at_the_end_is_told(
    is_stuck: bool, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    async with notifying(world, configured(pager={"queue": "ops"})) as notifier:
        notifier.dead("crm", "no")
        await world.wait_for(1)
        notifier.dead("crm", "no", 5)
        if is_stuck:
            world.hangs.add("ops")
        began = trio.current_time()
        await notifier.close()
        assert trio.current_time() - began == (LAST_S if is_stuck else 0)
    assert [body["count"] for *_, body in world.got] == ([1] if is_stuck else [1, 5])
