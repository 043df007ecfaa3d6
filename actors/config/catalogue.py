"""The catalogue: which queues exist, their settings, and which are paused.

Queues come from the configuration, from operators at run time, or from pushes to a new name
(`auto_create_queues`). The configuration has priority: its queues cannot be changed at run time.
Definitions made at run time (actors/config/book.py), pauses, deletions and the age of each
definition are kept durably before any other task sees a change.

A queue exists (`exists`) if it is defined or paused, holds items, or was created by a push and not
deleted since. Its books outlive it: a deletion remembers how many items had been accepted by then,
and one more accepted item brings the queue back.

One task of the daemon may change it at a time (`_changing`); all may read it between awaits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, NamedTuple

import trio

from actors.config.book import Book, Kept, Keys, Kind
from actors.config.presets import with_preset
from actors.config.queue import QueueName, QueueSettings, check_queue
from actors.config.secrets import secrets_in
from actors.config.section import bad_setting, merge
from actors.config.settings import Settings
from actors.model.clock import Clock
from actors.model.outcomes import HandlerUnusable
from actors.model.refusals import bad_request
from forebay.limits import FLOW_BYTES_MAX

QUEUES_MAX: Final = 10_000
"""Defined at run time. The journal takes items of as many queues (actors/spooler/intake.py)."""
PAUSES_MAX: Final = 10_000
RUN_TIME_HANDLERS: Final = frozenset({"pull", "null", "http"})
"""Clients that may push may define queues, and must not run programs as the daemon by that."""


@dataclass(frozen=True, slots=True)
class Definition:
    """Since when a queue is defined as it is."""

    created_ms: int
    updated_ms: int
    keys: Keys | None = None
    """The keys given at run time; None: the configuration defines it."""
    fingerprint: str = ""
    """Hash of the configuration's settings, to notice changes."""


Paused = frozenset[tuple[QueueName, str | None]]
"""Paused queues, and paused flows of queues."""


@dataclass(frozen=True, slots=True)
class Definitions:
    """What is kept across restarts (queues.json)."""

    queues: Mapping[QueueName, Definition] = field(default_factory=dict)
    paused: Paused = frozenset()
    deleted: Mapping[QueueName, int] = field(default_factory=dict)
    """Deleted queues, with the number of items each had accepted by then."""


class QueueCounts(NamedTuple):
    """The counts of a queue in the books."""

    accepted: int
    held: int
    """Including staged items."""
    dead: int


UNSEEN: Final = QueueCounts(0, 0, 0)


class Catalogue:
    def __init__(
        self,
        settings: Settings,
        kept: Kept[Definitions],
        now_ms: Clock,
        probe: Callable[[str, QueueSettings], object] = lambda _queue, _settings: None,
    ) -> None:
        """`probe` raises HandlerUnusable if a queue's handler cannot be opened."""
        self._probe = probe
        self._settings = settings
        self._kept = kept
        self._now_ms = now_ms
        self._book = Book(
            Kind("queue", QUEUES_MAX, "catalogue.definition_unusable", self._read),
            settings.queues,
            {name: one.keys for name, one in kept.value.queues.items() if one.keys is not None},
            self._keep_definitions,
            lambda _name, _settings: None,
        )
        self._flows = paused_flows(kept.value.paused)
        self._changing = trio.Lock()
        self._changed = trio.Event()
        self.changes = 0
        """The number of changes so far."""

    # Reading.

    def queue(self, name: str) -> QueueSettings | None:
        """The settings of a queue; None: it does not exist and pushing would not create it."""
        found = self._book.definitions.get(name)
        if found is None and self._settings.auto_create_queues:
            return self._settings.defaults
        return found

    @property
    def creates_queues(self) -> bool:
        """Whether a push to a new name creates a queue."""
        return self._settings.auto_create_queues

    def exists(self, name: str, seen: QueueCounts = UNSEEN) -> bool:
        """Whether the queue exists, given its counts in the books."""
        # A kept definition that is no longer usable counts too: it can still be removed.
        if (
            self._book.knows(name)
            or self.is_paused(name)
            or name in self._flows
            or seen.held
            or seen.dead
        ):
            return True
        was_pushed_to = seen.accepted > self._kept.value.deleted.get(name, 0)
        return was_pushed_to and self._settings.auto_create_queues

    def settings_of(self, name: str) -> QueueSettings:
        """The same for a queue that holds items, even if its definition is gone."""
        return self.queue(name) or self._settings.defaults

    def is_paused(self, queue: str) -> bool:
        return (queue, None) in self._kept.value.paused

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
        definition = self._kept.value.queues.get(name)
        is_defined = name in self._book.definitions
        return {
            "queue": name,
            "origin": self._book.origin(name) if is_defined else "push",
            "created_ms": definition.created_ms if definition else None,
            "updated_ms": definition.updated_ms if definition else None,
            "is_paused": self.is_paused(name),
            "paused_flows": sorted(self.paused_flows(name)),
            "settings": settings.shown(),
        }

    def names(self) -> list[str]:
        """Queues that are defined or paused."""
        paused = {queue for queue, _ in self._kept.value.paused}
        return sorted({*self._book.definitions, *paused})

    def defined(self) -> set[str]:
        """Queues that are defined, in the configuration or at run time."""
        return set(self._book.definitions)

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

    async def create(self, name: str, keys: Keys) -> None:
        check_name(name)
        async with self._changing:
            await self._book.add(name, keys)
            self._announce()

    async def change(self, name: str, keys: Keys) -> None:
        async with self._changing:
            await self._book.change(name, keys)
            self._announce()

    async def delete(self, name: str, accepted: int = 0) -> None:
        """Forgets the definition and the pauses. The caller checks that the queue exists and is
        empty. `accepted`: items so far, according to the books."""
        async with self._changing:
            self._book.check_not_configured(name)
            kept = self._kept.value
            deleted = {**kept.deleted, name: accepted}
            await self._keep(
                Definitions(
                    queues={key: one for key, one in kept.queues.items() if key != name},
                    paused=frozenset(pair for pair in kept.paused if pair[0] != name),
                    deleted={key: count for key, count in deleted.items() if count},
                )
            )
            self._book.forget(name)
            self._announce()

    async def reload(self, settings: Settings) -> None:
        """Applies another configuration."""
        async with self._changing:
            await self._keep_stamps(settings)
            self._settings = settings
            self._book.reload(settings.queues)
            self._announce()

    async def stamp(self) -> None:
        """Records since when the configuration defines its queues as it does."""
        async with self._changing:
            await self._keep_stamps(self._settings)

    async def _keep_stamps(self, settings: Settings) -> None:
        now_ms = self._now_ms()
        stamped = {
            name: definition
            for name, definition in self._kept.value.queues.items()
            if definition.keys is not None or name in settings.queues
        }
        for name, queue in settings.queues.items():
            print_ = sha256(queue.model_dump_json().encode()).hexdigest()[:16]
            known = stamped.get(name)
            if known is None:
                stamped[name] = Definition(now_ms, now_ms, None, print_)
            elif known.fingerprint != print_:
                stamped[name] = replace(known, updated_ms=now_ms, fingerprint=print_)
        await self._keep(replace(self._kept.value, queues=stamped))

    async def _set_paused(self, change: Callable[[Paused], Paused]) -> bool:
        async with self._changing:
            before = self._kept.value.paused
            paused = change(before)
            if len(before) < len(paused) > PAUSES_MAX:
                raise bad_request(f"{PAUSES_MAX} queues and flows are paused already")
            await self._keep(replace(self._kept.value, paused=paused))
            if paused == before:
                return False
            self._announce()
            return True

    async def _keep_definitions(self, given: Mapping[str, Keys]) -> None:
        """Keeps what was defined at run time."""
        kept, now_ms = self._kept.value, self._now_ms()
        new = Definition(now_ms, now_ms)
        changed = {
            name: replace(kept.queues.get(name, new), updated_ms=now_ms, keys=keys)
            for name, keys in given.items()
            if name not in kept.queues or kept.queues[name].keys != keys
        }
        await self._keep(replace(kept, queues={**kept.queues, **changed}))

    async def _keep(self, definitions: Definitions) -> None:
        await self._kept.save(definitions)
        self._flows = paused_flows(definitions.paused)

    def _announce(self) -> None:
        self.changes += 1
        self._changed.set()
        self._changed = trio.Event()

    def _read(self, name: str, keys: Keys) -> QueueSettings:
        defaults = self._settings.defaults
        try:
            given = with_preset(dict(keys), self._settings.presets_dir)
            settings = QueueSettings.model_validate(merge(defaults.model_dump(), given))
        except ValueError as problem:
            raise bad_setting(name, problem) from problem
        if "handler" not in keys:
            # With the secrets that were read with it.
            settings = settings.model_copy(update={"handler": defaults.handler})
        elif (kind := settings.handler.type) not in RUN_TIME_HANDLERS:
            text = f"{name}: a {kind} handler can only be given in the configuration file"
            raise bad_request(text)
        elif any(secrets_in(settings.handler)):
            # A client could have any file that the daemon may read sent to any address, or the
            # secrets of the default handler.
            text = f"{name}: a handler with secrets can only be given in the configuration file"
            raise bad_request(text)
        try:
            self._probe(name, settings)
        except HandlerUnusable as problem:
            raise bad_request(str(problem)) from problem
        return settings


def paused_flows(paused: Paused) -> dict[str, frozenset[str]]:
    """The paused flows of each queue."""
    flows: dict[str, set[str]] = {}
    for queue, flow in paused:
        if flow is not None:
            flows.setdefault(queue, set()).add(flow)
    return {queue: frozenset(names) for queue, names in flows.items()}


def check_name(name: str) -> None:
    try:
        check_queue(name)
    except ValueError as problem:
        raise bad_request(str(problem)) from None


def check_flow(flow: str | None) -> None:
    if flow is not None and len(flow.encode(errors="replace")) > FLOW_BYTES_MAX:
        raise bad_request(f"a flow's name has at most {FLOW_BYTES_MAX} bytes")
