"""Settings of triggers, which create jobs at certain times or from the items of a queue.

A `TIME` trigger is a schedule under another name (actors/config/schedules.py): the same keys, with
`target` for the queue that receives its ticks. A `QUEUE` trigger polls a queue, claims a batch of
its items, and creates one job item in its target that lists them (actors/cron/triggers.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from actors.config.book import Keys, Kind
from actors.config.queue import QueueName
from actors.config.schedules import (
    ScheduleName,
    ScheduleSettings,
    check_item,
    check_name,
    check_priority,
)
from actors.config.section import Clash, Count, Flag, Section, bad_setting
from actors.model.units import Duration, durations, numbers
from forebay.limits import PRIORITY_MAX, PRIORITY_NORMAL
from forebay.stage_frames import WRITE_HEADER

TRIGGERS_MAX: Final = 200
"""Per daemon, for the configuration and for run time separately."""
NAME_CHARS_MAX: Final = 90
"""Leaves room for the prefix in the name of the queue's consumer."""
BATCH_MAX: Final = 10_000
"""The ids of this many items take 0.5 MB of a job's payload."""
JOBS_MAX: Final = 1000
TRIGGER_HEADER: Final = "trigger"
CIRCLE: Final = "jobs of triggers come back to the queue that they were made of"


class QueueTrigger(Section):
    type: Literal["QUEUE"]
    description: str = ""
    queue: QueueName
    """The queue that is polled."""
    target: QueueName
    """The queue that receives the jobs."""
    polling_interval: Annotated[Duration, durations("100ms", "1d")] = 10
    batch_size: Annotated[Count, numbers(1, BATCH_MAX)] = 100
    """A job claims at most this many items."""
    jobs_max: Annotated[Count, numbers(1, JOBS_MAX)] = 100
    """While this many jobs are not done, nothing more is claimed."""
    job_lease: Annotated[Duration, durations("10s", "30d")] = 3600
    """A job that is not done by then, and not leased, is taken back with its claim."""
    priority: Annotated[Count, numbers(0, PRIORITY_MAX)] | str = PRIORITY_NORMAL
    """A number, or a label."""
    flow: str = ""
    action: str = ""
    headers: dict[str, str] = Field(default={})
    enabled: Flag = True

    @model_validator(mode="after")
    def _can_make_jobs(self) -> Self:
        if self.queue == self.target:
            raise Clash("queue and target are the same: its jobs would be claimed", "target")
        own = {TRIGGER_HEADER: "x" * 100, WRITE_HEADER: "0" * 32}
        check_item(self.headers, own, self.flow, self.action)
        return self


class TimeTrigger(ScheduleSettings):
    type: Literal["TIME"]

    @model_validator(mode="before")
    @classmethod
    def _target_is_the_queue(cls, data: Any) -> Any:
        return with_queue(data) if isinstance(data, dict) else data

    @property
    def schedule(self) -> ScheduleSettings:
        return ScheduleSettings.model_validate(self.model_dump(mode="json", exclude={"type"}))


Trigger = Annotated[QueueTrigger | TimeTrigger, Field(discriminator="type")]


def with_queue(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a TIME trigger, with the names that a schedule uses."""
    if "target" not in keys:
        return dict(keys)
    if "queue" in keys:
        raise ValueError("a TIME trigger takes target instead of queue")
    return {("queue" if key == "target" else key): value for key, value in keys.items()}


def queue_triggers(triggers: Mapping[str, Trigger]) -> dict[str, QueueTrigger]:
    return {name: one for name, one in triggers.items() if isinstance(one, QueueTrigger)}


def all_schedules(
    schedules: Mapping[str, ScheduleSettings], triggers: Mapping[str, Trigger]
) -> dict[str, ScheduleSettings]:
    """The schedules of a configuration, including its TIME triggers, which are schedules too."""
    times = {name: one.schedule for name, one in triggers.items() if isinstance(one, TimeTrigger)}
    return {**schedules, **times}


def in_circles(triggers: Mapping[str, QueueTrigger]) -> frozenset[str]:
    """The triggers whose jobs return to their own queue, directly or through others: they would
    make jobs of jobs, and none would ever be done."""
    targets: dict[str, set[str]] = {}
    for trigger in triggers.values():
        targets.setdefault(trigger.queue, set()).add(trigger.target)

    def leads_back(trigger: QueueTrigger) -> bool:
        seen, to_see = set[str](), [trigger.target]
        while to_see:
            queue = to_see.pop()
            if queue == trigger.queue:
                return True
            if queue not in seen:
                seen.add(queue)
                to_see.extend(targets.get(queue, ()))
        return False

    return frozenset(name for name, trigger in triggers.items() if leads_back(trigger))


class Hold(NamedTuple):
    """A queue that is held for a trigger."""

    queue: QueueName
    name: ScheduleName


@dataclass(frozen=True, slots=True)
class KeptTriggers:
    """What is kept across restarts (triggers.json)."""

    triggers: Mapping[str, Keys] = field(default_factory=dict)
    """Those of type QUEUE that were defined at run time."""
    held: frozenset[Hold] = frozenset()
    """Recorded so that a queue whose trigger disappears from the configuration is released."""


def read_trigger(name: str, keys: Keys) -> QueueTrigger:
    try:
        check_name(name)
        if len(name) > NAME_CHARS_MAX:
            raise ValueError(f"a name has at most {NAME_CHARS_MAX} characters")
        return QueueTrigger.model_validate(dict(keys))
    except ValueError as problem:
        raise bad_setting(name, problem) from problem


TRIGGER: Final = Kind("trigger", TRIGGERS_MAX, "triggers.definition_unusable", read_trigger)


def check_triggers(
    triggers: Mapping[str, Trigger],
    schedules: Mapping[str, ScheduleSettings],
    labels: Mapping[str, int],
) -> None:
    """Checks what needs the whole configuration."""
    if len(triggers) > TRIGGERS_MAX:
        raise Clash(f"there are at most {TRIGGERS_MAX} triggers", "triggers")
    for name, trigger in triggers.items():
        if name in schedules:
            text = f"{name} is a schedule already: a TIME trigger is one too"
            raise Clash(text, f"triggers.{name}", f"schedules.{name}")
        if isinstance(trigger, QueueTrigger) and len(name) > NAME_CHARS_MAX:
            text = f"triggers.{name}: a name has at most {NAME_CHARS_MAX} characters"
            raise Clash(text, f"triggers.{name}")
        check_priority(f"triggers.{name}.priority", trigger.priority, labels)
    if circle := in_circles(queue_triggers(triggers)):
        text = f"{CIRCLE}: {', '.join(sorted(circle))}"
        raise Clash(text, *(f"triggers.{name}.target" for name in sorted(circle)))
