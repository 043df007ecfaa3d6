"""The desk: the part of the daemon that HTTP routes may use.

Routes get the desk and nothing else. It owns nothing. `perform` and `report` answer within a
deadline or raise trio.TooSlowError, which is answered with 503.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import trio

from actors.breaker.breaker import Breakers
from actors.config.catalogue import Catalogue
from actors.config.settings import Settings
from actors.ingest.large_bodies import LargeBodies
from actors.metrics.metrics import Metrics
from actors.observers.event_log import EventRing
from actors.ports.tiers import ColdQueue, WarmQueue
from actors.spooler.messages import OfferRun, SpoolerMessage
from actors.spooler.spooler import Spooler
from actors.workers.dispatch import Dispatch
from actors.workers.pull import Pull

ANSWER_S: Final = 30.0
"""How long an actor may take to answer."""

T = TypeVar("T")
Perform = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Desk:
    settings: Settings
    """The settings at the start; the catalogue has the current queues."""
    catalogue: Catalogue
    perform: Perform
    """A CONTROL operation of docs/protocol.md. Raises Refused or StoreUnavailable."""
    report: Callable[[], Awaitable[dict[str, Any]]]
    """The books and the state of the actors, like `forebay stats --json`."""
    pull: Pull
    to_spooler: trio.MemorySendChannel[SpoolerMessage]
    to_keyed: trio.MemorySendChannel[OfferRun]
    """Takes items of queues with unique keys."""
    spooler: Spooler
    """To read: `disk_is_low`, `free_bytes`."""
    warm: WarmQueue
    cold: ColdQueue
    wake_promoter: Callable[[str], None]
    dispatch: Dispatch
    breakers: Breakers
    events: EventRing
    is_away: Mapping[str, Callable[[], bool]]
    """Stores by name: `cold`, `warm`, and `disk`, which counts as unavailable when it is low."""
    stopping: trio.Event
    """Set when the daemon begins to drain: streams must end, and nothing new is accepted."""
    metrics: Metrics
    large_bodies: LargeBodies = field(default_factory=LargeBodies)

    @property
    def is_draining(self) -> bool:
        return self.stopping.is_set()


def within(seconds: float, call: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """The same call with a deadline; raises TooSlowError."""

    async def bounded(*args: Any) -> T:
        with trio.fail_after(seconds):
            return await call(*args)

    return bounded
