"""The book of schedules: which exist, and which of them this daemon has installed.

Schedules come from the configuration or from operators at run time. The configuration has priority:
its schedules cannot be changed at run time. `save` keeps the definitions made at run time, and what
was installed (so that a schedule that disappears from the configuration is found and removed); it
is durable when it returns, before any other task sees the change. The book belongs to this daemon:
in a fleet, a schedule for all daemons must be in the configuration of each.

One task may change it at a time, which actors/cron/schedules.py ensures. All may read it between
awaits.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import structlog

from actors.config import kept as kept_documents
from actors.config.schedules import SCHEDULES_MAX, ScheduleSettings, check_name
from actors.config.section import bad_setting, merge
from forebay.errors import Refused

log = structlog.get_logger()

Origin = Literal["file", "control"]


class Installed(NamedTuple):
    fingerprint: str
    is_done: bool
    """False: the installation had only begun."""


@dataclass(frozen=True, slots=True)
class KeptSchedules:
    """What is kept across restarts."""

    run_time: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The keys of each schedule, as given."""
    installed: Mapping[str, Installed] = field(default_factory=dict)


SaveKept = Callable[[KeptSchedules], Awaitable[None]]
Check = Callable[[ScheduleSettings], int]
"""The priority of a schedule's ticks. Raises Refused for an unknown queue or priority."""


class ScheduleBook:
    def __init__(
        self,
        configured: Mapping[str, ScheduleSettings],
        kept: KeptSchedules,
        save: SaveKept,
        check: Check,
    ) -> None:
        """`check` is called for definitions of operators."""
        self._check = check
        self._configured = configured
        self._kept = kept
        self._save = save
        self._run_time: dict[str, ScheduleSettings] = {}
        self._adopt(kept)

    # Reading.

    @property
    def schedules(self) -> Mapping[str, ScheduleSettings]:
        return {**self._run_time, **self._configured}

    @property
    def installed(self) -> Mapping[str, Installed]:
        return self._kept.installed

    def find(self, name: str) -> ScheduleSettings:
        found = self._configured.get(name) or self._run_time.get(name)
        if found is None:
            raise Refused("NOT_FOUND", f"there is no schedule {name}")
        return found

    def origin(self, name: str) -> Origin:
        return "file" if name in self._configured else "control"

    # Changing.

    async def add(self, name: str, keys: Mapping[str, Any]) -> ScheduleSettings:
        if name in self.schedules:
            raise Refused("CONFLICT", f"there is a schedule {name} already")
        if len(self._run_time) >= SCHEDULES_MAX:
            raise Refused("BAD_REQUEST", f"there are {SCHEDULES_MAX} schedules already")
        return await self._define(name, keys)

    async def change(self, name: str, keys: Mapping[str, Any]) -> ScheduleSettings:
        self._check_is_ours(name)
        before = dict(self._kept.run_time[name])
        if "payload" in keys:
            # It is data, not settings: members that are left out must disappear.
            before.pop("payload", None)
        return await self._define(name, merge(before, dict(keys)))

    async def remove(self, name: str) -> None:
        self._check_is_ours(name)
        rest = {key: value for key, value in self._kept.run_time.items() if key != name}
        await self._keep(replace(self._kept, run_time=rest))

    async def note_installed(self, installed: Mapping[str, Installed]) -> None:
        if installed != self._kept.installed:
            await self._keep(replace(self._kept, installed=dict(installed)))

    def reload(self, configured: Mapping[str, ScheduleSettings]) -> None:
        """Applies another configuration."""
        self._configured = configured
        self._adopt(self._kept)

    def _check_is_ours(self, name: str) -> None:
        """Accepts unusable definitions too: they can be changed or removed."""
        if name in self._configured:
            text = f"{name} is defined in the configuration: change it there"
            raise Refused("CONFLICT", text)
        if name not in self._kept.run_time:
            raise Refused("NOT_FOUND", f"there is no schedule {name}")

    async def _define(self, name: str, keys: Mapping[str, Any]) -> ScheduleSettings:
        settings = build(name, keys)
        self._check(settings)
        await self._keep(replace(self._kept, run_time={**self._kept.run_time, name: dict(keys)}))
        return settings

    async def _keep(self, kept: KeptSchedules) -> None:
        await self._save(kept)
        self._adopt(kept)

    def _adopt(self, kept: KeptSchedules) -> None:
        self._kept = kept
        self._run_time = {}
        for name, keys in kept.run_time.items():
            try:
                self._run_time[name] = build(name, keys)
            except Exception as problem:
                log.error(
                    "cron.definition_unusable",
                    schedule=name,
                    error=str(problem),
                    hint="it stays in schedules.json: change or remove it",
                )


def build(name: str, keys: Mapping[str, Any]) -> ScheduleSettings:
    try:
        check_name(name)
        return ScheduleSettings.model_validate(dict(keys))
    except ValueError as problem:
        raise bad_setting(name, problem) from problem


def kept_to_json(kept: KeptSchedules) -> str:
    installed = {name: list(one) for name, one in kept.installed.items()}
    return json.dumps(
        {"version": 1, "schedules": dict(kept.run_time), "installed": installed}, indent=1
    )


def kept_from_json(text: str, rejected: list[str]) -> KeptSchedules:
    """Raises ValueError for an invalid document; invalid entries are added to `rejected`."""
    content = kept_documents.read_document(text)
    schedules, installed = (
        kept_documents.members(content, name) for name in ("schedules", "installed")
    )
    return KeptSchedules(
        dict(kept_documents.readable(schedules, read_definition, rejected)),
        dict(kept_documents.readable(installed, _read_installed, rejected)),
    )


def read_definition(name: str, keys: Any) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(keys, dict):
        raise ValueError("its keys are not an object")
    return name, keys


def _read_installed(name: str, entry: Any) -> tuple[str, Installed]:
    fingerprint, is_done = entry
    return name, Installed(str(fingerprint), bool(is_done))
