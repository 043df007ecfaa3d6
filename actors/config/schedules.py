"""Settings of schedules: when items are pushed, to which queue, and with which content.

A model checks its keys and their relations and derives its grid (actors/config/grids.py). The
fingerprint tells configurations apart in the keys of ticks: it covers everything that affects a
tick, but not its description.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import time
from functools import cache
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, NamedTuple, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, field_validator, model_validator

from actors.config.book import Keys, Kind
from actors.config.grids import Grid, Period, cron_grid, daily_grid
from actors.config.queue import QueueName
from actors.config.section import Clash, Count, Flag, Section, bad_setting
from actors.model.units import Duration, durations, numbers
from forebay import strict_json
from forebay.errors import BadRun
from forebay.head import pack_headers, short_text
from forebay.limits import ACTION_BYTES_MAX, FLOW_BYTES_MAX, PRIORITY_MAX, PRIORITY_NORMAL

SCHEDULES_MAX: Final = 1000
"""Per daemon, for the configuration and for run time separately."""
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
PAYLOAD_BYTES_MAX: Final = 64 * 1024
PAYLOAD_DEPTH_MAX: Final = 64
"""Levels of arrays and objects: answers that show it add a few more."""
FINGERPRINT_DIGITS: Final = 12
SCHEDULE_HEADER: Final = "schedule"
TICK_HEADER: Final = "tick_ms"
KINDS: Final = ("cron", "daily", "every")

Missed = Literal["run_once", "run_all", "skip"]


def check_name(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(
            f"{name!r} is not a valid name: use up to 100 letters, digits, '.', '_' and '-'"
        )
    return name


def check_zone(name: str) -> str:
    find_zone(name)
    return name


@cache
def find_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    # A name may be a directory of the zone files, or not a path at all.
    except (KeyError, ValueError, OSError) as problem:
        raise ValueError(f"there is no time zone {name!r}: write one as Europe/Berlin") from problem


ScheduleName = Annotated[str, AfterValidator(check_name)]
Zone = Annotated[str, AfterValidator(check_zone)]


def check_item(headers: dict[str, str], own: dict[str, str], flow: str, action: str) -> None:
    """Raises Clash if an item cannot have these. `own`: the headers that forebay adds to them, at
    their greatest length."""
    taken = own.keys() & headers.keys()
    if taken:
        raise Clash(f"the header {min(taken)} is set by forebay", "headers")
    try:
        short_text("flow", flow, FLOW_BYTES_MAX)
        short_text("action", action, ACTION_BYTES_MAX)
        pack_headers({**headers, **own})
    except BadRun as problem:
        raise Clash(str(problem)) from problem


def check_priority(where: str, priority: int | str, labels: Mapping[str, int]) -> None:
    if isinstance(priority, str) and priority not in labels:
        raise Clash(f"{where}: there is no priority {priority!r}", where)


class Daily(Section):
    at: str
    """HH:MM or HH:MM:SS."""
    zone: Zone = "UTC"

    @field_validator("at", mode="before")
    @classmethod
    def _at_is_a_time(cls, at: object) -> object:
        # YAML reads 12:30 without quotes as the number 750.
        if isinstance(at, str) and re.fullmatch(r"\d\d:\d\d(:\d\d)?", at, re.ASCII):
            time.fromisoformat(at)
            return at
        raise ValueError(f'{at!r} is not a valid time of day: write it in quotes, as "02:30"')


class ScheduleSettings(Section):
    description: str = ""
    queue: QueueName
    cron: str | None = None
    zone: Zone | None = None
    """The zone of `cron`; None: UTC."""
    daily: Daily | None = None
    every: Annotated[Duration, durations("1s", "365d")] | None = None
    payload: Any = ""
    """Text is pushed as it is, anything else as JSON."""
    priority: Annotated[Count, numbers(0, PRIORITY_MAX)] | str = PRIORITY_NORMAL
    """A number, or a label."""
    flow: str = ""
    action: str = ""
    headers: dict[str, str] = Field(default={})
    missed: Missed = "run_once"
    """What to do about ticks whose time passed while no daemon ran."""
    enabled: Flag = True

    @field_validator("payload")
    @classmethod
    def _payload_is_json(cls, payload: Any) -> Any:
        strict_json.check(payload, PAYLOAD_DEPTH_MAX)
        return payload

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            what = " and ".join(given) or "none of them"
            raise Clash(f"give one of cron, daily and every, not {what}", *given)
        if self.zone is not None and self.cron is None:
            raise Clash("zone belongs to cron; set the zone of daily inside daily", "zone")
        return self

    @model_validator(mode="after")
    def _can_be_pushed(self) -> Self:
        if self.cron is not None:
            try:
                cron_grid(self.cron, find_zone(self.zone or "UTC"))
            except ValueError as problem:
                raise Clash(str(problem), "cron") from problem
        if self.every is not None and round(self.every * 1000) != self.every * 1000:
            raise Clash("every is a whole number of milliseconds", "every")
        if len(self.payload_bytes) > PAYLOAD_BYTES_MAX:
            raise Clash(f"a payload has at most {PAYLOAD_BYTES_MAX} bytes", "payload")
        own = {SCHEDULE_HEADER: "x" * 100, TICK_HEADER: "0" * 13}
        check_item(self.headers, own, self.flow, self.action)
        return self

    @property
    def grid(self) -> Grid:
        if self.cron is not None:
            return cron_grid(self.cron, find_zone(self.zone or "UTC"))
        if self.daily is not None:
            return daily_grid(time.fromisoformat(self.daily.at), find_zone(self.daily.zone))
        assert self.every is not None
        return Period(round(self.every * 1000))

    @property
    def payload_bytes(self) -> bytes:
        if isinstance(self.payload, str):
            return self.payload.encode()
        return json.dumps(self.payload, ensure_ascii=False, separators=(",", ":")).encode()

    @property
    def fingerprint(self) -> str:
        said = self.model_dump(mode="json", exclude={"description", "enabled", "missed"})
        text = json.dumps(said, sort_keys=True)
        return sha256(text.encode()).hexdigest()[:FINGERPRINT_DIGITS]

    @property
    def when(self) -> str:
        """The schedule in a few words."""
        if self.cron is not None:
            return f"{self.cron} ({self.zone})" if self.zone else self.cron
        if self.daily is not None:
            return f"daily at {self.daily.at} ({self.daily.zone})"
        return f"every {self.model_dump(mode='json')['every']}"


class Installed(NamedTuple):
    fingerprint: str
    is_done: bool
    """False: the installation had only begun."""


@dataclass(frozen=True, slots=True)
class KeptSchedules:
    """What is kept across restarts (schedules.json)."""

    schedules: Mapping[str, Keys] = field(default_factory=dict)
    """Those that were defined at run time."""
    installed: Mapping[str, Installed] = field(default_factory=dict)
    """What this daemon has installed, so that a schedule that disappears from the configuration is
    found and removed."""


def read_schedule(name: str, keys: Keys) -> ScheduleSettings:
    try:
        check_name(name)
        return ScheduleSettings.model_validate(dict(keys))
    except ValueError as problem:
        raise bad_setting(name, problem) from problem


SCHEDULE: Final = Kind("schedule", SCHEDULES_MAX, "cron.definition_unusable", read_schedule)


def check_schedules(schedules: Mapping[str, ScheduleSettings], labels: Mapping[str, int]) -> None:
    """Checks what needs the whole configuration."""
    if len(schedules) > SCHEDULES_MAX:
        raise Clash(f"there are at most {SCHEDULES_MAX} schedules", "schedules")
    for name, schedule in schedules.items():
        check_priority(f"schedules.{name}.priority", schedule.priority, labels)
