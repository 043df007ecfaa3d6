"""Schedules: list, create, read, change, delete, the next ticks, and run now.

A schedule of the configuration file can be run here, not changed: 409.
"""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from actors.config.schedules import NAME_PATTERN
from actors.control.schedules import TICKS_DEFAULT, TICKS_MAX
from actors.cron.last_ticks import TickState
from actors.model.masking import MASK
from daemon.http.access import Admin, Reader, Who
from daemon.http.doors import Doors
from daemon.http.problems import documented
from daemon.http.strict import Body, StrictRoute

ScheduleName = Annotated[
    str,
    Path(description="A schedule's name", pattern=NAME_PATTERN, examples=["nightly"]),
]
SETTINGS_EXAMPLE: Final[JsonDict] = {
    "queue": "jobs",
    "cron": "30 2 * * 1-5",
    "zone": "Europe/Berlin",
    "payload": {"job": "reindex"},
}
SCHEDULE_EXAMPLE: Final[JsonDict] = {
    "name": "nightly",
    "origin": "control",
    "when": "30 2 * * 1-5 (Europe/Berlin)",
    "queue": "jobs",
    "enabled": True,
    "next_ms": 1755045000000,
    "last_ms": 1754958600000,
    "last_state": "done",
    "missed_total": 2,
    "missed_ms": 1754699400000,
    "problem": "",
    "settings": SETTINGS_EXAMPLE,
}


class Schedule(BaseModel):
    """A schedule as operators see it."""

    model_config = ConfigDict(json_schema_extra={"examples": [SCHEDULE_EXAMPLE]})

    name: str
    origin: Literal["file", "control"] = Field(
        description="Who defines it: the configuration file, or an operator"
    )
    when: str = Field(description="When it ticks, in a few words")
    queue: str
    enabled: bool
    next_ms: int | None = Field(description="The next tick; null: none, or it is disabled")
    last_ms: int | None = Field(
        description="The latest tick that came due; null: none since the schedule last changed"
    )
    last_state: TickState | None = Field(
        description="State of that tick: `waiting`, `started` (workers may have it), `done` "
        "(delivered or deleted), `dead`, `missed`; null: not known"
    )
    missed_total: int = Field(
        description="Ticks that were given up because no daemon was there; 0 anew when it is "
        "disabled"
    )
    missed_ms: int | None = Field(description="When the latest missed tick was due")
    problem: str = Field(description="Why its ticks are not installed; empty if they are")
    settings: dict[str, Any] = Field(description="All keys, as in etc/forebay.yaml")


class ScheduleList(BaseModel):
    schedules: list[Schedule]


class NewSchedule(Body):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "nightly", "settings": SETTINGS_EXAMPLE}]},
    )

    name: str = Field(pattern=NAME_PATTERN)
    settings: dict[str, Any] = Field(description="Its keys; `queue` and one of cron, daily, every")


class ScheduleChange(Body):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"settings": {"enabled": False}}]}
    )

    settings: dict[str, Any] = Field(
        description="Keys to change; the others stay. null takes one back, as "
        '`{"cron": null, "every": "10s"}`'
    )


class NextTicks(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "nightly", "ticks_ms": [1755045000000]}]}
    )

    name: str
    ticks_ms: list[int] = Field(description="Milliseconds since 1970, in order")


class Pushed(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "nightly",
                    "queue": "jobs",
                    "id": "0198c2a4-6f00-7000-8000-000000000001-0",
                }
            ]
        }
    )

    name: str
    queue: str
    id: str = Field(description="The item that was pushed")


def routes(doors: Doors) -> APIRouter:
    router = APIRouter(prefix="/api/v2/schedules", tags=["schedules"], route_class=StrictRoute)
    _reading(router, doors)
    _changing(router, doors)
    return router


def _reading(router: APIRouter, doors: Doors) -> None:
    @router.get("", operation_id="listSchedules")
    async def list_schedules(who: Reader) -> ScheduleList:
        """Lists all schedules of this daemon: configured, or defined at run time."""
        found = (await doors.perform("cron.list", {}))["schedules"]
        return ScheduleList(schedules=[shown(each, who) for each in found])

    @router.get("/{name}", operation_id="showSchedule", responses=documented(404))
    async def show(name: ScheduleName, who: Reader) -> Schedule:
        """Shows a schedule and all its settings; its payload if the client may see payloads."""
        return shown(await doors.perform("cron.show", {"name": name}), who)

    @router.get("/{name}/next", operation_id="nextTicks", responses=documented(404))
    async def next_ticks(
        name: ScheduleName,
        _: Reader,
        count: Annotated[int, Query(ge=1, le=TICKS_MAX, description="How many")] = TICKS_DEFAULT,
    ) -> NextTicks:
        """Lists the next ticks, also of a disabled schedule."""
        fields = {"name": name, "count": count}
        return NextTicks.model_validate(await doors.perform("cron.next", fields))


def _changing(router: APIRouter, doors: Doors) -> None:
    @router.post(
        "", status_code=201, operation_id="createSchedule", responses=documented(404, 409, 422)
    )
    async def create(new: NewSchedule, who: Admin) -> Schedule:
        """Defines a schedule, and installs its next ticks."""
        fields = {"name": new.name, "settings": new.settings}
        return shown(await doors.perform("cron.add", fields), who)

    @router.patch("/{name}", operation_id="changeSchedule", responses=documented(404, 409, 422))
    async def change(name: ScheduleName, wanted: ScheduleChange, who: Admin) -> Schedule:
        """Changes some keys; future ticks are replaced in the same step."""
        fields = {"name": name, "settings": wanted.settings}
        return shown(await doors.perform("cron.change", fields), who)

    @router.delete(
        "/{name}", status_code=204, operation_id="deleteSchedule", responses=documented(404, 409)
    )
    async def delete(name: ScheduleName, _: Admin) -> None:
        """Removes a schedule and its future ticks."""
        await doors.perform("cron.remove", {"name": name})

    @router.post("/{name}/run", operation_id="runSchedule", responses=documented(404))
    async def run(name: ScheduleName, _: Admin) -> Pushed:
        """Pushes the schedule's item now; its ticks do not change."""
        return Pushed.model_validate(await doors.perform("cron.run", {"name": name}))


def shown(schedule: dict[str, Any], who: Who) -> Schedule:
    return Schedule.model_validate(schedule | {"settings": shown_settings(schedule, who)})


def shown_settings(defined: dict[str, Any], who: Who) -> dict[str, Any]:
    """The settings of a schedule or a trigger. The payload (QUEUE triggers have none) is shown only
    to clients that may see payloads."""
    settings: dict[str, Any] = defined["settings"]
    if "payload" in settings and not who.sees_payloads:
        return settings | {"payload": MASK}
    return settings
