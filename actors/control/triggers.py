"""Operations on triggers (docs/protocol.md, "Triggers"): `trigger.list`, `trigger.show`,
`trigger.add`, `trigger.change`, `trigger.remove`, `trigger.run`, `trigger.pause` and
`trigger.resume`.

It owns nothing. For a QUEUE trigger each operation is a step of actors/cron/triggers.py. A TIME
trigger is a schedule: each operation is a step of actors/cron/schedules.py, with `target` for its
queue. Every schedule is listed, however it was defined.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

from actors.config.grids import next_ticks
from actors.config.triggers import with_queue
from actors.control.fields import Fields, Operation
from actors.cron.cron import Cron
from actors.model.clock import Clock
from actors.model.refusals import bad_request
from actors.model.units import format_duration
from actors.ports.trigger_jobs import TriggerJob
from forebay.errors import Refused
from forebay.ids import format_item_id

JOBS_SHOWN_MAX: Final = 100


class TriggerControl:
    def __init__(self, cron: Cron, now_ms: Clock) -> None:
        self._triggers = cron.triggers
        self._cron = cron.schedules
        self._now_ms = now_ms

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {
            "trigger.list": self._list,
            "trigger.show": self._show,
            "trigger.add": self._add,
            "trigger.change": self._change,
            "trigger.remove": self._remove,
            "trigger.run": self._run,
            "trigger.pause": self._pause,
            "trigger.resume": self._resume,
        }

    async def _list(self, fields: Fields) -> dict[str, Any]:
        fields.end()
        names = {*self._triggers.book.definitions, *self._cron.book.definitions}
        jobs = self._triggers.jobs_by_name()
        return {"triggers": [self._object(name, jobs) for name in sorted(names)]}

    async def _show(self, fields: Fields) -> dict[str, Any]:
        name = fields.text("name")
        fields.end()
        return self._shown(name)

    async def _add(self, fields: Fields) -> dict[str, Any]:
        name, settings = fields.text("name"), fields.settings()
        fields.end()
        type_ = settings.get("type")
        if type_ not in ("TIME", "QUEUE"):
            raise bad_request("settings.type must be TIME or QUEUE")
        if self._type(name) is not None:
            raise Refused("CONFLICT", f"there is a trigger {name} already")
        if type_ == "QUEUE":
            await self._triggers.add(name, settings)
        else:
            await self._cron.add(name, as_schedule(settings))
        return self._shown(name)

    async def _change(self, fields: Fields) -> dict[str, Any]:
        name, settings = fields.text("name"), fields.settings()
        fields.end()
        type_ = self._known(name)
        if settings.get("type", type_) != type_:
            raise bad_request(
                f"{name} is a {type_} trigger, which cannot change: remove it and add another"
            )
        if type_ == "QUEUE":
            await self._triggers.change(name, settings)
        else:
            await self._cron.change(name, as_schedule(settings))
        return self._shown(name)

    async def _remove(self, fields: Fields) -> dict[str, Any]:
        name = fields.text("name")
        fields.end()
        if self._known(name) == "QUEUE":
            await self._triggers.remove(name)
        else:
            await self._cron.remove(name)
        return {}

    async def _run(self, fields: Fields) -> dict[str, Any]:
        name = fields.text("name")
        fields.end()
        if self._known(name) == "TIME":
            item = await self._cron.run_now(name)
            target = self._cron.book.find(name).queue
            return {"name": name, "target": target, "id": format_item_id(*item), "items": 0}
        job = await self._triggers.run_now(name)
        target = self._triggers.book.find(name).target
        items = 0 if job is None else job.items
        return {"name": name, "target": target, "id": job and job.id, "items": items}

    async def _pause(self, fields: Fields) -> dict[str, Any]:
        return await self._set_paused(fields, is_paused=True)

    async def _resume(self, fields: Fields) -> dict[str, Any]:
        return await self._set_paused(fields, is_paused=False)

    async def _set_paused(self, fields: Fields, *, is_paused: bool) -> dict[str, Any]:
        name = fields.text("name")
        fields.end()
        if self._known(name) == "QUEUE":
            await self._triggers.pause(name, is_paused=is_paused)
        else:
            await self._cron.change(name, {"enabled": not is_paused})
        return self._shown(name)

    def _type(self, name: str) -> Literal["TIME", "QUEUE"] | None:
        if name in self._triggers.book.definitions:
            return "QUEUE"
        return "TIME" if name in self._cron.book.definitions else None

    def _known(self, name: str) -> Literal["TIME", "QUEUE"]:
        found = self._type(name)
        if found is None:
            raise Refused("NOT_FOUND", f"there is no trigger {name}")
        return found

    def _shown(self, name: str) -> dict[str, Any]:
        """The trigger, with its oldest jobs."""
        shown = self._object(name, self._triggers.jobs_by_name())
        jobs = self._triggers.jobs(name, JOBS_SHOWN_MAX)
        return shown | {"live_jobs": [job_object(job) for job in jobs]}

    def _object(self, name: str, jobs: Mapping[str, int]) -> dict[str, Any]:
        if self._known(name) == "TIME":
            return self._of_time(name)
        return self._of_queue(name, jobs.get(name, 0))

    def _of_queue(self, name: str, jobs: int) -> dict[str, Any]:
        trigger, watch = self._triggers.book.find(name), self._triggers.watch(name)
        return {
            "name": name,
            "type": "QUEUE",
            "origin": self._triggers.book.origin(name),
            "when": f"every {format_duration(trigger.polling_interval)}",
            "queue": trigger.queue,
            "target": trigger.target,
            "enabled": trigger.enabled,
            "paused": watch.is_paused,
            "next_ms": None,
            "problem": watch.error,
            "failures": watch.failures,
            "runs_here": watch.is_ours,
            "jobs": jobs,
            "settings": trigger.shown(),
        }

    def _of_time(self, name: str) -> dict[str, Any]:
        schedule = self._cron.book.find(name)
        ticks = next_ticks(schedule.grid, self._now_ms(), 1) if schedule.enabled else []
        settings = schedule.shown()
        return {
            "name": name,
            "type": "TIME",
            "origin": self._cron.book.origin(name),
            "when": schedule.when,
            "queue": None,
            "target": schedule.queue,
            "enabled": schedule.enabled,
            "paused": not schedule.enabled,
            "next_ms": ticks[0] if ticks else None,
            "problem": self._cron.problem(name),
            "failures": 0,
            "runs_here": True,
            "jobs": 0,
            "settings": {"type": "TIME", "target": settings.pop("queue"), **settings},
        }


def as_schedule(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a TIME trigger, as those of a schedule."""
    try:
        return {key: value for key, value in with_queue(settings).items() if key != "type"}
    except ValueError as problem:
        raise bad_request(str(problem)) from problem


def job_object(job: TriggerJob) -> dict[str, Any]:
    return {"id": job.id, "target": job.target, "items": job.items, "made_ms": job.made_ms}
