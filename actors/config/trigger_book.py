"""The book of QUEUE triggers: which exist, and which queues this daemon holds for them.

Triggers come from the configuration or from operators at run time. The configuration has priority:
its triggers cannot be changed at run time. `save` keeps the definitions made at run time, and which
queues are held (so that a queue whose trigger disappears from the configuration is found and
released); it is durable when it returns, before any other task sees the change. The book belongs to
this daemon: in a fleet, a trigger for all daemons must be in the configuration of each.

One task may change it at a time, which actors/cron/triggers.py ensures. All may read it between
awaits.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import structlog

from actors.config import kept as kept_documents
from actors.config.schedule_book import Origin, read_definition
from actors.config.schedules import check_name, check_queue
from actors.config.section import bad_setting, merge
from actors.config.triggers import (
    CIRCLE,
    NAME_CHARS_MAX,
    TRIGGERS_MAX,
    QueueTrigger,
    in_circles,
)
from forebay.errors import Refused

log = structlog.get_logger()


class Hold(NamedTuple):
    """A queue that is held for a trigger."""

    queue: str
    name: str


@dataclass(frozen=True, slots=True)
class KeptTriggers:
    """What is kept across restarts."""

    run_time: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The keys of each trigger, as given."""
    held: frozenset[Hold] = frozenset()


SaveTriggers = Callable[[KeptTriggers], Awaitable[None]]
CheckTrigger = Callable[[QueueTrigger], int]
"""The priority of its jobs. Raises Refused for an unknown queue or priority."""


class TriggerBook:
    def __init__(
        self,
        configured: Mapping[str, QueueTrigger],
        kept: KeptTriggers,
        save: SaveTriggers,
        check: CheckTrigger,
    ) -> None:
        """`check` is called for definitions of operators."""
        self._check = check
        self._configured = configured
        self._kept = kept
        self._save = save
        self._run_time: dict[str, QueueTrigger] = {}
        self._in_circles: frozenset[str] = frozenset()
        self._adopt(kept)

    # Reading.

    @property
    def triggers(self) -> Mapping[str, QueueTrigger]:
        return {**self._run_time, **self._configured}

    @property
    def held(self) -> frozenset[Hold]:
        return self._kept.held

    def find(self, name: str) -> QueueTrigger:
        found = self._configured.get(name) or self._run_time.get(name)
        if found is None:
            raise Refused("NOT_FOUND", f"there is no trigger {name}")
        return found

    def check_usable(self, name: str) -> int:
        """The priority of its jobs; raises Refused if it cannot make any. A trigger made at run
        time may form a circle with triggers that were configured later."""
        if name in self._in_circles:
            raise Refused("CONFLICT", f"{CIRCLE}: {', '.join(sorted(self._in_circles))}")
        return self._check(self.find(name))

    def origin(self, name: str) -> Origin:
        return "file" if name in self._configured else "control"

    # Changing.

    async def add(self, name: str, keys: Mapping[str, Any]) -> None:
        if name in self.triggers:
            raise Refused("CONFLICT", f"there is a trigger {name} already")
        if len(self._run_time) >= TRIGGERS_MAX:
            raise Refused("BAD_REQUEST", f"there are {TRIGGERS_MAX} triggers already")
        await self._define(name, keys)

    async def change(self, name: str, keys: Mapping[str, Any]) -> None:
        self._check_is_ours(name)
        await self._define(name, merge(dict(self._kept.run_time[name]), dict(keys)))

    async def remove(self, name: str) -> None:
        self._check_is_ours(name)
        rest = {key: value for key, value in self._kept.run_time.items() if key != name}
        await self._keep(replace(self._kept, run_time=rest))

    async def note_held(self, held: frozenset[Hold]) -> None:
        if held != self._kept.held:
            await self._keep(replace(self._kept, held=held))

    def reload(self, configured: Mapping[str, QueueTrigger]) -> None:
        """Applies another configuration."""
        self._configured = configured
        self._adopt(self._kept)

    def _check_is_ours(self, name: str) -> None:
        """Accepts unusable definitions too: they can be changed or removed."""
        if name in self._configured:
            text = f"{name} is defined in the configuration: change it there"
            raise Refused("CONFLICT", text)
        if name not in self._kept.run_time:
            raise Refused("NOT_FOUND", f"there is no trigger {name}")

    async def _define(self, name: str, keys: Mapping[str, Any]) -> None:
        trigger = build(name, keys)
        self._check(trigger)
        circle = in_circles({**self.triggers, name: trigger})
        if name in circle:
            raise Refused("BAD_REQUEST", f"{name}: {CIRCLE}: {', '.join(sorted(circle))}")
        await self._keep(replace(self._kept, run_time={**self._kept.run_time, name: dict(keys)}))

    async def _keep(self, kept: KeptTriggers) -> None:
        await self._save(kept)
        self._adopt(kept)

    def _adopt(self, kept: KeptTriggers) -> None:
        self._kept = kept
        self._run_time = {}
        for name, keys in kept.run_time.items():
            try:
                self._run_time[name] = build(name, keys)
            except Exception as problem:
                log.error(
                    "triggers.definition_unusable",
                    trigger=name,
                    error=str(problem),
                    hint="it stays in triggers.json: change or remove it",
                )
        self._in_circles = in_circles(self.triggers)


def build(name: str, keys: Mapping[str, Any]) -> QueueTrigger:
    try:
        check_name(name)
        if len(name) > NAME_CHARS_MAX:
            raise ValueError(f"a name has at most {NAME_CHARS_MAX} characters")
        return QueueTrigger.model_validate(dict(keys))
    except ValueError as problem:
        raise bad_setting(name, problem) from problem


def kept_to_json(kept: KeptTriggers) -> str:
    held = [list(hold) for hold in sorted(kept.held)]
    return json.dumps({"version": 1, "triggers": dict(kept.run_time), "held": held}, indent=1)


def kept_from_json(text: str, rejected: list[str]) -> KeptTriggers:
    """Raises ValueError for an invalid document; invalid entries are added to `rejected`."""
    content = kept_documents.read_document(text)
    triggers = kept_documents.members(content, "triggers")
    held = kept_documents.elements(content, "held")
    return KeptTriggers(
        dict(kept_documents.readable(triggers, read_definition, rejected)),
        frozenset(kept_documents.readable(held, _read_hold, rejected)),
    )


def _read_hold(queue: str, name: str) -> Hold:
    return Hold(check_queue(queue), check_name(name))
