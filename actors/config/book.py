"""Books of definitions: those of the configuration file, and those made at run time.

Queues, schedules and triggers have one book each. The configuration has priority: what it defines
cannot be changed at run time, and a definition made at run time is not in force while the
configuration has one of the same name.

Of a definition made at run time the book keeps the keys as they were given. A change is checked
first, then kept, and is in force when it is durable; if it is refused or cannot be kept, nothing
changes. A kept definition that no longer fits is logged and not in force, but never keeps the
daemon from starting: it stays in its file, and can be changed, replaced or removed.

A book belongs to one daemon: what all daemons of a fleet need must be in the configuration of each.
One task may change a book at a time, which its owner ensures. All may read it between awaits.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import structlog

from actors.config.section import merge
from actors.model.refusals import bad_request, conflict, not_found

log = structlog.get_logger()

S = TypeVar("S")
T = TypeVar("T")

Origin = Literal["file", "control"]
Keys = Mapping[str, Any]
"""The keys of a definition, as they were given."""


class Kept(Generic[T]):
    """A document that is kept across restarts."""

    def __init__(self, value: T, write: Callable[[T], Awaitable[None]]) -> None:
        """`value` was read at the start; what `write` gets is durable when it returns."""
        self.value = value
        self._write = write

    async def save(self, value: T) -> None:
        if value != self.value:
            await self._write(value)
            self.value = value


class Kind(NamedTuple, Generic[S]):
    """What a book has definitions of."""

    noun: str
    most: int
    """How many may be kept."""
    unusable: str
    """The log event of a kept definition that no longer fits."""
    read: Callable[[str, Keys], S]
    """The settings of a name and its keys. Raises Refused if they are not valid."""


class Book(Generic[S]):
    def __init__(
        self,
        kind: Kind[S],
        configured: Mapping[str, S],
        kept: Mapping[str, Keys],
        save: Callable[[Mapping[str, Keys]], Awaitable[None]],
        check: Callable[[str, S], object],
    ) -> None:
        """`kept`: the definitions made at run time; `save` keeps them durably. `check` raises
        Refused for settings that are valid but refer to something that does not exist; it is called
        before a definition is added or changed."""
        self._kind = kind
        self._kept = kept
        self._save = save
        self._check = check
        self._configured = configured
        self._definitions: Mapping[str, S] = {}
        self.reload(configured)

    # Reading.

    @property
    def definitions(self) -> Mapping[str, S]:
        """All definitions in force."""
        return self._definitions

    def find(self, name: str) -> S:
        if name not in self._definitions:
            raise not_found(f"{self._kind.noun} {name}")
        return self._definitions[name]

    def knows(self, name: str) -> bool:
        """Whether there is a definition, even one that is not usable."""
        return name in self._definitions or name in self._kept

    def origin(self, name: str) -> Origin:
        return "file" if name in self._configured else "control"

    # Changing.

    async def add(self, name: str, keys: Keys) -> S:
        noun, most = self._kind.noun, self._kind.most
        if name in self._definitions:
            raise conflict(f"there is a {noun} {name} already")
        if name not in self._kept and len(self._kept) >= most:
            raise bad_request(f"there are {most} {noun}s already")
        return await self._define(name, keys)

    async def change(self, name: str, keys: Keys) -> S:
        """Lays keys over those of a definition made at run time."""
        return await self._define(name, merge(self._changeable(name), dict(keys)))

    async def remove(self, name: str) -> None:
        self._changeable(name)
        await self._save({key: keys for key, keys in self._kept.items() if key != name})
        self.forget(name)

    def forget(self, name: str) -> None:
        """Drops a definition made at run time that is not kept any more."""
        self._kept = {key: keys for key, keys in self._kept.items() if key != name}
        self._definitions = {key: one for key, one in self._definitions.items() if key != name}

    def reload(self, configured: Mapping[str, S]) -> None:
        """Applies another configuration."""
        noun, definitions = self._kind.noun, dict(configured)
        for name in self._kept.keys() - configured.keys():
            try:
                definitions[name] = self._kind.read(name, self._kept[name])
            except Exception as problem:
                hint = f"it stays in {noun}s.json: change or remove it"
                log.error(self._kind.unusable, **{noun: name}, error=str(problem), hint=hint)
        self._configured, self._definitions = configured, definitions

    def check_not_configured(self, name: str) -> None:
        if name in self._configured:
            raise conflict(f"{name} is defined in the configuration: change it there")

    def _changeable(self, name: str) -> dict[str, Any]:
        """The keys of a definition made at run time, usable or not."""
        self.check_not_configured(name)
        if name not in self._kept:
            raise not_found(f"{self._kind.noun} {name} that was defined at run time")
        return dict(self._kept[name])

    async def _define(self, name: str, keys: Keys) -> S:
        settings = self._kind.read(name, keys)
        self._check(name, settings)
        kept = {**self._kept, name: dict(keys)}
        await self._save(kept)
        self._kept = kept
        self._definitions = {**self._definitions, name: settings}
        return settings
