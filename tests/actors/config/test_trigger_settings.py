"""Triggers as they are configured."""

from typing import Any

import pytest
from pydantic import ValidationError

from actors.config.settings import Settings
from actors.config.triggers import QueueTrigger, all_schedules, in_circles, queue_triggers

QUEUE: dict[str, Any] = {"type": "QUEUE", "queue": "q", "target": "jobs"}
TIME: dict[str, Any] = {"type": "TIME", "target": "jobs", "every": "10s"}


def settings(**given: Any) -> Settings:
    return Settings.model_validate(given)


def test_a_time_trigger_is_a_schedule_and_a_queue_trigger_is_not() -> None:
    found = settings(triggers={"t": TIME, "q": QUEUE}, schedules={"s": {"queue": "x", "every": 1}})
    schedules = all_schedules(found.schedules, found.triggers)
    assert {name: one.queue for name, one in schedules.items()} == {"s": "x", "t": "jobs"}
    assert schedules["t"].when == "every 10s"
    # It is the same as if it stood among the schedules.
    same = settings(schedules={"t": {"queue": "jobs", "every": "10s"}}).schedules["t"]
    assert schedules["t"].fingerprint == same.fingerprint
    assert list(queue_triggers(found.triggers)) == ["q"]


def test_what_is_not_said_of_a_queue_trigger() -> None:
    (trigger,) = queue_triggers(settings(triggers={"t": QUEUE}).triggers).values()
    assert (trigger.polling_interval, trigger.batch_size, trigger.jobs_max) == (10, 100, 100)
    assert (trigger.job_lease, trigger.priority, trigger.enabled) == (3600, 5, True)


def test_jobs_of_jobs_are_allowed_where_they_end() -> None:
    chain = {
        name: {**QUEUE, "queue": queue, "target": target}
        for name, queue, target in (("a", "q", "r"), ("b", "r", "s"), ("c", "q", "s"))
    }
    found = queue_triggers(settings(triggers=chain).triggers)
    assert in_circles(found) == frozenset()
    # A circle does not blame what only leads into it.
    closing = QueueTrigger.model_validate({**QUEUE, "queue": "s", "target": "r"})
    assert in_circles({**found, "d": closing}) == {"b", "d"}


@pytest.mark.parametrize(
    "given,message",
    [
        ({"triggers": {"t": {}}}, "discriminator"),
        ({"triggers": {"t": {**QUEUE, "type": "CRON"}}}, "CRON"),
        ({"triggers": {"t": {**QUEUE, "target": "q"}}}, "queue and target are the same"),
        ({"triggers": {"t": {**QUEUE, "headers": {"forebay-write": "x"}}}}, "is set by forebay"),
        ({"triggers": {"t": {**QUEUE, "polling_interval": "1ms"}}}, "outside 100ms..1d"),
        ({"triggers": {"t": {**QUEUE, "priority": "soon"}}}, "there is no priority 'soon'"),
        ({"triggers": {"t" * 91: QUEUE}}, "at most 90 characters"),
        (
            {"triggers": {"a": QUEUE, "b": {**QUEUE, "queue": "jobs", "target": "q"}}},
            "come back to the queue that they were made of: a, b",
        ),
        ({"triggers": {"t": {**TIME, "queue": "x"}}}, "takes target instead of queue"),
        ({"triggers": {"t": {**TIME, "cron": "* * * * *"}}}, "give one of cron, daily and every"),
        (
            {"triggers": {"t": TIME}, "schedules": {"t": {"queue": "x", "every": "1s"}}},
            "t is a schedule already",
        ),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        settings(**given)
