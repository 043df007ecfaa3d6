"""The catalogue: which queues exist, their settings, and which are paused.

Queues come from the configuration, from operators at run time, or from pushes to a new name
(`auto_create_queues`). The configuration has priority: its queues cannot be changed at run time.
`save` keeps definitions made at run time, pauses, deletions and the age of each definition; it is
durable when it returns, before any other task sees the change.

A queue exists (`exists`) if it is defined or paused, holds items, or was created by a push and not
deleted since. Its books outlive it: a deletion remembers how many items had been accepted by then,
and one more accepted item brings the queue back.

One task of the daemon may change it at a time (`_changing`); all may read it between awaits.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, NamedTuple

import structlog
import trio
from pydantic import ValidationError

from actors.config import kept as kept_documents
from actors.config.presets import with_preset
from actors.config.queue import QueueSettings
from actors.config.secrets import secrets_in
from actors.config.section import Clash, merge
from actors.config.settings import Settings, check_queue
from actors.model.clock import Clock
from actors.model.outcomes import HandlerUnusable
from forebay.errors import Refused
from forebay.limits import FLOW_BYTES_MAX

log = structlog.get_logger()

RUN_TIME_HANDLERS: Final = frozenset({"pull", "null", "http"})
"""Clients that may push may define queues, and must not run programs as the daemon by that."""


@dataclass(frozen=True, slots=True)
class Definition:
    """Since when a queue is defined as it is."""

    created_ms: int
    updated_ms: int
    keys: Mapping[str, Any] | None = None
    """The keys given at run time; None: the configuration defines it."""
    fingerprint: str = ""
    """Hash of the configuration's settings, to notice changes."""


Paused = frozenset[tuple[str, str | None]]
"""Paused queues, and paused flows of queues."""


@dataclass(frozen=True, slots=True)
class Definitions:
    """What is kept across restarts."""

    queues: Mapping[str, Definition] = field(default_factory=dict)
    paused: Paused = frozenset()
    deleted: Mapping[str, int] = field(default_factory=dict)
    """Deleted queues, with the number of items each had accepted by then."""


class QueueCounts(NamedTuple):
    """The counts of a queue in the books."""

    accepted: int
    held: int
    """Including staged items."""
    dead: int


UNSEEN: Final = QueueCounts(0, 0, 0)


Save = Callable[[Definitions], Awaitable[None]]


class Catalogue:
    def __init__(
        self,
        settings: Settings,
        kept: Definitions,
        save: Save,
        now_ms: Clock,
        probe: Callable[[str, QueueSettings], object] = lambda _queue, _settings: None,
    ) -> None:
        """`probe` raises HandlerUnusable if a queue's handler cannot be opened."""
        self._probe = probe
        self._settings = settings
        self._kept = kept
        self._save = save
        self._now_ms = now_ms
        self._run_time: dict[str, QueueSettings] = {}
        self._flows: dict[str, frozenset[str]] = {}
        self._changing = trio.Lock()
        self._changed = trio.Event()
        self.changes = 0
        """The number of changes so far."""
        self._adopt(kept)

    # Reading.

    def queue(self, name: str) -> QueueSettings | None:
        """The settings of a queue; None: it does not exist and pushing would not create it."""
        found = self._settings.queues.get(name) or self._run_time.get(name)
        if found is None and self._settings.auto_create_queues:
            return self._settings.defaults
        return found

    @property
    def creates_queues(self) -> bool:
        """Whether a push to a new name creates a queue."""
        return self._settings.auto_create_queues

    def exists(self, name: str, seen: QueueCounts = UNSEEN) -> bool:
        """Whether the queue exists, given its counts in the books."""
        kept = self._kept.queues.get(name)
        # A kept definition that is no longer usable counts too: it can still be removed.
        is_defined = name in self._settings.queues or (kept is not None and kept.keys is not None)
        if is_defined or self.is_paused(name) or name in self._flows or seen.held or seen.dead:
            return True
        was_pushed_to = seen.accepted > self._kept.deleted.get(name, 0)
        return was_pushed_to and self._settings.auto_create_queues

    def settings_of(self, name: str) -> QueueSettings:
        """The same for a queue that holds items, even if its definition is gone."""
        return self.queue(name) or self._settings.defaults

    def is_paused(self, queue: str) -> bool:
        return (queue, None) in self._kept.paused

    def paused_flows(self, queue: str) -> frozenset[str]:
        return self._flows.get(queue, frozenset())

    def except_flows(self, queue: str) -> frozenset[str] | None:
        """The flows that must not be leased; None: the whole queue is paused."""
        return None if self.is_paused(queue) else self.paused_flows(queue)

    @property
    def priorities(self) -> Mapping[str, int]:
        """The labels by which producers may name a priority."""
        return self._settings.priorities

    async def wait_changed(self, seen: int) -> int:
        """Returns the number of the latest change once it differs from `seen`, so that a task
        misses no change while it handles another."""
        while self.changes == seen:
            await self._changed.wait()
        return self.changes

    def describe(self, name: str) -> dict[str, Any]:
        """A queue as operators see it, also if it has no definition and still holds items."""
        settings = self.settings_of(name)
        definition = self._kept.queues.get(name)
        origin = "push"
        if name in self._settings.queues:
            origin = "file"
        elif name in self._run_time:
            origin = "control"
        return {
            "queue": name,
            "origin": origin,
            "created_ms": definition.created_ms if definition else None,
            "updated_ms": definition.updated_ms if definition else None,
            "is_paused": self.is_paused(name),
            "paused_flows": sorted(self.paused_flows(name)),
            "settings": settings.shown(),
        }

    def names(self) -> list[str]:
        """Queues that are defined or paused."""
        paused = {queue for queue, _ in self._kept.paused}
        return sorted({*self._settings.queues, *self._run_time, *paused})

    def defined(self) -> set[str]:
        """Queues that are defined, in the configuration or at run time."""
        return {*self._settings.queues, *self._run_time}

    # Changing.

    async def pause(self, queue: str, flow: str | None = None) -> bool:
        """False: it was already paused."""
        check_name(queue)
        check_flow(flow)
        return await self._set_paused(lambda paused: paused | {(queue, flow)})

    async def resume(self, queue: str, flow: str | None = None) -> bool:
        """False: it was not paused."""
        check_name(queue)
        return await self._set_paused(lambda paused: paused - {(queue, flow)})

    async def create(self, name: str, keys: Mapping[str, Any]) -> None:
        check_name(name)
        async with self._changing:
            if name in self._settings.queues or name in self._run_time:
                raise Refused("BAD_REQUEST", f"there is a queue {name} already")
            self._build(name, keys)
            now_ms = self._now_ms()
            await self._define(name, Definition(now_ms, now_ms, dict(keys)))

    async def change(self, name: str, keys: Mapping[str, Any]) -> None:
        async with self._changing:
            definition = self._of_run_time(name)
            merged = merge(dict(definition.keys or {}), dict(keys))
            self._build(name, merged)
            await self._define(name, replace(definition, updated_ms=self._now_ms(), keys=merged))

    async def delete(self, name: str, accepted: int = 0) -> None:
        """Forgets the definition and the pauses. The caller checks that the queue exists and is
        empty. `accepted`: items so far, according to the books."""
        async with self._changing:
            self._check_not_in_file(name)
            await self._keep(
                Definitions(
                    queues={key: one for key, one in self._kept.queues.items() if key != name},
                    paused=frozenset(pair for pair in self._kept.paused if pair[0] != name),
                    deleted={**self._kept.deleted, name: accepted},
                )
            )

    async def reload(self, settings: Settings) -> None:
        """Applies another configuration."""
        async with self._changing:
            before, self._settings = self._settings, settings
            try:
                await self._keep(replace(self._kept, queues=self._stamped()))
            except OSError:
                self._settings = before
                self._adopt(self._kept)
                raise

    async def stamp(self) -> None:
        """Records since when the configuration defines its queues as it does."""
        queues = self._stamped()
        if queues != self._kept.queues:
            await self._keep(replace(self._kept, queues=queues))

    def _stamped(self) -> dict[str, Definition]:
        now_ms = self._now_ms()
        stamped = {
            name: definition
            for name, definition in self._kept.queues.items()
            if definition.keys is not None or name in self._settings.queues
        }
        for name, settings in self._settings.queues.items():
            print_ = sha256(settings.model_dump_json().encode()).hexdigest()[:16]
            known = stamped.get(name)
            if known is None:
                stamped[name] = Definition(now_ms, now_ms, None, print_)
            elif known.fingerprint != print_:
                stamped[name] = replace(known, updated_ms=now_ms, fingerprint=print_)
        return stamped

    def _of_run_time(self, name: str) -> Definition:
        self._check_not_in_file(name)
        definition = self._kept.queues.get(name)
        if definition is None or definition.keys is None:
            raise not_found(name)
        return definition

    def _check_not_in_file(self, name: str) -> None:
        if name in self._settings.queues:
            text = f"{name} is defined in the configuration: change it there"
            raise Refused("BAD_REQUEST", text)

    async def _set_paused(self, change: Callable[[Paused], Paused]) -> bool:
        async with self._changing:
            paused = change(self._kept.paused)
            if paused == self._kept.paused:
                return False
            await self._keep(replace(self._kept, paused=paused))
            return True

    async def _define(self, name: str, definition: Definition) -> None:
        queues = {**self._kept.queues, name: definition}
        deleted = {key: count for key, count in self._kept.deleted.items() if key != name}
        await self._keep(replace(self._kept, queues=queues, deleted=deleted))

    async def _keep(self, definitions: Definitions) -> None:
        await self._save(definitions)
        self._adopt(definitions)

    def _adopt(self, definitions: Definitions) -> None:
        self._kept = definitions
        self._run_time = {}
        for name, definition in definitions.queues.items():
            if definition.keys is not None and name not in self._settings.queues:
                try:
                    self._run_time[name] = self._build(name, definition.keys)
                except Exception as problem:
                    log.error(
                        "catalogue.definition_unusable",
                        queue=name,
                        error=str(problem),
                        hint="it stays in queues.json: change or delete it",
                    )
        flows: dict[str, set[str]] = {}
        for queue, flow in definitions.paused:
            if flow is not None:
                flows.setdefault(queue, set()).add(flow)
        self._flows = {queue: frozenset(names) for queue, names in flows.items()}
        self.changes += 1
        self._changed.set()
        self._changed = trio.Event()

    def _build(self, name: str, keys: Mapping[str, Any]) -> QueueSettings:
        defaults = self._settings.defaults
        try:
            given = with_preset(dict(keys), self._settings.presets_dir)
            settings = QueueSettings.model_validate(merge(defaults.model_dump(), given))
        except (ValidationError, Clash) as problem:
            raise Refused("BAD_REQUEST", f"{name}: {first_problem(problem)}") from problem
        if "handler" not in keys:
            # With the secrets that were read with it.
            settings = settings.model_copy(update={"handler": defaults.handler})
        elif (kind := settings.handler.type) not in RUN_TIME_HANDLERS:
            text = f"{name}: a {kind} handler can only be given in the configuration file"
            raise Refused("BAD_REQUEST", text)
        elif any(secrets_in(settings.handler)):
            # A client could have any file that the daemon may read sent to any address, or the
            # secrets of the default handler.
            text = f"{name}: a handler with secrets can only be given in the configuration file"
            raise Refused("BAD_REQUEST", text)
        try:
            self._probe(name, settings)
        except HandlerUnusable as problem:
            raise Refused("BAD_REQUEST", str(problem)) from problem
        return settings


def check_name(name: str) -> None:
    try:
        check_queue(name)
    except ValueError as problem:
        raise Refused("BAD_REQUEST", str(problem)) from None


def check_flow(flow: str | None) -> None:
    if flow is not None and len(flow.encode(errors="replace")) > FLOW_BYTES_MAX:
        raise Refused("BAD_REQUEST", f"a flow's name has at most {FLOW_BYTES_MAX} bytes")


def not_found(name: str) -> Refused:
    return Refused("NOT_FOUND", f"there is no queue {name}")


def first_problem(problem: ValidationError | Clash) -> str:
    if isinstance(problem, Clash):
        return str(problem)
    first = problem.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"


def definitions_to_json(definitions: Definitions) -> str:
    content = {
        "version": 1,
        "queues": {
            name: {
                "created_ms": definition.created_ms,
                "updated_ms": definition.updated_ms,
                "keys": definition.keys,
                "fingerprint": definition.fingerprint,
            }
            for name, definition in definitions.queues.items()
        },
        "paused": sorted([queue, flow] for queue, flow in definitions.paused if flow is not None)
        + sorted([queue, None] for queue, flow in definitions.paused if flow is None),
        "deleted": dict(definitions.deleted),
    }
    return json.dumps(content, indent=1)


def definitions_from_json(text: str, rejected: list[str]) -> Definitions:
    """Raises ValueError for an invalid document; invalid entries are added to `rejected`."""
    content = kept_documents.read_document(text)
    queues = kept_documents.members(content, "queues")
    paused = kept_documents.elements(content, "paused")
    deleted = kept_documents.members(content, "deleted") if "deleted" in content else {}
    return Definitions(
        dict(kept_documents.readable(queues, _read_definition, rejected)),
        frozenset(kept_documents.readable(paused, _read_paused, rejected)),
        dict(kept_documents.readable(deleted, _read_deleted, rejected)),
    )


def _read_definition(name: str, entry: Any) -> tuple[str, Definition]:
    keys = entry["keys"]
    if not isinstance(keys, dict | None):
        raise ValueError("its keys are not an object")
    times = int(entry["created_ms"]), int(entry["updated_ms"])
    return check_queue(name), Definition(*times, keys, str(entry["fingerprint"]))


def _read_paused(queue: str, flow: str | None) -> tuple[str, str | None]:
    if not isinstance(flow, str | None):
        raise ValueError("a flow is a text")
    return check_queue(queue), flow


def _read_deleted(name: str, accepted: Any) -> tuple[str, int]:
    return check_queue(name), int(accepted)
