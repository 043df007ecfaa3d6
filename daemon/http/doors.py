"""The doors of the daemon that HTTP routes may use.

Routes get these and nothing else. `perform` and `report` answer within a deadline or raise
trio.TooSlowError, which is answered with 503.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import trio

from actors.config.catalogue import Catalogue
from actors.config.settings import Settings
from actors.control.control import Control
from actors.ingest.large_bodies import LargeBodies
from actors.keys.keys import Keys
from actors.metrics.metrics import Metrics
from actors.observers.event_log import EventRing
from actors.tiers.tiers import Tiers
from actors.workers.workers import Workers

ANSWER_S: Final = 30.0
"""How long an actor may take to answer."""


class Performs(Protocol):
    async def perform(self, op: str, fields: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Doors:
    settings: Settings
    """The settings at the start; the catalogue has the current queues."""
    catalogue: Catalogue
    control: Control
    metrics: Metrics
    tiers: Tiers
    workers: Workers
    keys: Keys
    events: EventRing
    stopping: trio.Event
    """Set when the daemon begins to drain: streams must end, and nothing new is accepted."""
    large_bodies: LargeBodies = field(default_factory=LargeBodies)

    @property
    def is_draining(self) -> bool:
        return self.stopping.is_set()

    async def perform(self, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A CONTROL operation of docs/protocol.md. Raises Refused or StoreUnavailable."""
        with trio.fail_after(ANSWER_S):
            return await self.control.perform(op, fields)

    async def report(self) -> dict[str, Any]:
        """The books and the state of the actors, like `forebay stats --json`."""
        with trio.fail_after(ANSWER_S):
            return await self.metrics.report()
