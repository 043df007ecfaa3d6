"""Triggers: list, create, read, change, delete, run now, pause and resume.

A QUEUE trigger makes jobs from the items of a queue; a TIME trigger is a schedule, which is also
under `/api/v2/schedules`. A trigger of the configuration file can be run and (if of type QUEUE)
paused here, but not changed: 409.
"""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from actors.config.schedules import NAME_PATTERN
from daemon.http.access import Admin, Reader, Who
from daemon.http.doors import Doors
from daemon.http.problems import documented
from daemon.http.routes.schedules import shown_settings
from daemon.http.strict import Body, StrictRoute

TriggerName = Annotated[
    str,
    Path(description="A trigger's name", pattern=NAME_PATTERN, examples=["embed"]),
]
SETTINGS_EXAMPLE: Final[JsonDict] = {
    "type": "QUEUE",
    "queue": "documents",
    "target": "embedding-jobs",
    "polling_interval": "30s",
    "batch_size": 500,
}
JOB_EXAMPLE: Final[JsonDict] = {
    "id": "0198c2a4-6f00-7000-8000-000000000001-0",
    "target": "embedding-jobs",
    "items": 500,
    "made_ms": 1755045000000,
}
TRIGGER_EXAMPLE: Final[JsonDict] = {
    "name": "embed",
    "type": "QUEUE",
    "origin": "control",
    "when": "every 30s",
    "queue": "documents",
    "target": "embedding-jobs",
    "enabled": True,
    "paused": False,
    "next_ms": None,
    "problem": "",
    "failures": 0,
    "runs_here": True,
    "jobs": 1,
    "live_jobs": [JOB_EXAMPLE],
    "settings": SETTINGS_EXAMPLE,
}


class LiveJob(BaseModel):
    id: str = Field(description="The job item's id; the items that it claimed name it")
    target: str
    items: int = Field(description="How many it claimed")
    made_ms: int


class Trigger(BaseModel):
    """A trigger as operators see it."""

    model_config = ConfigDict(json_schema_extra={"examples": [TRIGGER_EXAMPLE]})

    name: str
    type: Literal["TIME", "QUEUE"]
    origin: Literal["file", "control"] = Field(
        description="Who defines it: the configuration file, or an operator"
    )
    when: str = Field(description="In a few words")
    queue: str | None = Field(description="The queue that is polled; null for a TIME trigger")
    target: str = Field(description="The queue that gets its jobs")
    enabled: bool
    paused: bool = Field(description="No daemon claims items for it")
    next_ms: int | None = Field(description="The next tick of a TIME trigger")
    problem: str = Field(description="Why it failed last; empty if it did not")
    failures: int = Field(description="Consecutive failures; it waits longer after each")
    runs_here: bool = Field(description="Whether this daemon has its lease")
    jobs: int = Field(description="Unfinished jobs, as this daemon last saw them")
    live_jobs: list[LiveJob] = Field(
        default=[], description="The oldest 100 of these; only if a single trigger is shown"
    )
    settings: dict[str, Any] = Field(description="All keys, as in etc/forebay.yaml")


class TriggerList(BaseModel):
    triggers: list[Trigger]


class NewTrigger(Body):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "embed", "settings": SETTINGS_EXAMPLE}]},
    )

    name: str = Field(pattern=NAME_PATTERN)
    settings: dict[str, Any] = Field(
        description="Its keys: `type`, `target`, and `queue` or one of cron, daily, every"
    )


class TriggerChange(Body):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"settings": {"batch_size": 100}}]}
    )

    settings: dict[str, Any] = Field(description="Keys to change; the others stay")


class Ran(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "embed",
                    "target": "embedding-jobs",
                    "id": "0198c2a4-6f00-7000-8000-000000000001-0",
                    "items": 500,
                }
            ]
        }
    )

    name: str
    target: str
    id: str | None = Field(description="The job item; null if there was nothing to claim")
    items: int = Field(description="How many it claimed")


def routes(doors: Doors) -> APIRouter:
    router = APIRouter(prefix="/api/v2/triggers", tags=["triggers"], route_class=StrictRoute)
    _reading(router, doors)
    _defining(router, doors)
    _acting(router, doors)
    return router


def _reading(router: APIRouter, doors: Doors) -> None:
    @router.get("", operation_id="listTriggers")
    async def list_triggers(who: Reader) -> TriggerList:
        """Lists all triggers of this daemon, and its schedules, which are TIME triggers."""
        found = (await doors.perform("trigger.list", {}))["triggers"]
        return TriggerList(triggers=[shown(each, who) for each in found])

    @router.get("/{name}", operation_id="showTrigger", responses=documented(404))
    async def show(name: TriggerName, who: Reader) -> Trigger:
        """Shows a trigger, all its settings, and its unfinished jobs."""
        return shown(await doors.perform("trigger.show", {"name": name}), who)


def _defining(router: APIRouter, doors: Doors) -> None:
    @router.post(
        "", status_code=201, operation_id="createTrigger", responses=documented(404, 409, 422)
    )
    async def create(new: NewTrigger, who: Admin) -> Trigger:
        """Defines a trigger. From now on only the trigger gets items of its queue."""
        fields = {"name": new.name, "settings": new.settings}
        return shown(await doors.perform("trigger.add", fields), who)

    @router.patch("/{name}", operation_id="changeTrigger", responses=documented(404, 409, 422))
    async def change(name: TriggerName, wanted: TriggerChange, who: Admin) -> Trigger:
        """Changes some keys; existing jobs do not change."""
        fields = {"name": name, "settings": wanted.settings}
        return shown(await doors.perform("trigger.change", fields), who)

    @router.delete(
        "/{name}", status_code=204, operation_id="deleteTrigger", responses=documented(404, 409)
    )
    async def delete(name: TriggerName, _: Admin) -> None:
        """Removes a trigger. Unfinished jobs keep the items they have claimed."""
        await doors.perform("trigger.remove", {"name": name})


def _acting(router: APIRouter, doors: Doors) -> None:
    @router.post("/{name}/run", operation_id="runTrigger", responses=documented(404, 409))
    async def run(name: TriggerName, _: Admin) -> Ran:
        """Polls now and makes a job of the items that are due. A TIME trigger pushes its item."""
        return Ran.model_validate(await doors.perform("trigger.run", {"name": name}))

    @router.post("/{name}/pause", operation_id="pauseTrigger", responses=documented(404, 409))
    async def pause(name: TriggerName, who: Admin) -> Trigger:
        """Pauses a trigger on all daemons: no items are claimed. Existing jobs continue."""
        return shown(await doors.perform("trigger.pause", {"name": name}), who)

    @router.post("/{name}/resume", operation_id="resumeTrigger", responses=documented(404, 409))
    async def resume(name: TriggerName, who: Admin) -> Trigger:
        """Resumes a paused trigger."""
        return shown(await doors.perform("trigger.resume", {"name": name}), who)


def shown(trigger: dict[str, Any], who: Who) -> Trigger:
    return Trigger.model_validate(trigger | {"settings": shown_settings(trigger, who)})
