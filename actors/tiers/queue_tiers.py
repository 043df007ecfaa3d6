"""The state of each queue on its way through the tiers, which the actors of this package share.

Only the router, the promoter, the streams and the settlement change it, each its own fields and
between two awaits. Nothing is durable: after a restart it is made again from the stores.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from actors.config.catalogue import Catalogue
from actors.model.clock import Clock
from actors.ports.tiers import ColdQueue, Limits, WarmQueue, WarmTier, limits_of
from actors.tiers.fetch import Fetch
from actors.tiers.hysteresis import Tier
from actors.tiers.leasing import Leasing
from actors.tiers.line import Promotion
from actors.tiers.shared_warm import SharedWarm

IN_HAND_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes that all lanes of the router together may borrow. Above it each may borrow one run."""


class QueueMemory(NamedTuple):
    """How much memory the runs on their way through the daemon may use."""

    bytes_max: int | None = None
    """For the runs in warm of all queues together; None: only each queue's own limit applies."""
    inmemory_bytes: int = 0
    """For the runs that the spooler keeps in memory, instead of spool.inmemory_bytes."""
    in_hand_bytes: int = IN_HAND_BYTES_MAX
    """For the runs that the router holds."""


@dataclass(slots=True, eq=False)
class QueueTiers:
    tier: Tier | None = None
    """Where new runs go; None: the router has no lane for the queue yet."""
    routed: int = 0
    """Items that the router has borrowed for warm and not entered yet."""
    line: Promotion | None = None
    """Slices that the promoter has acquired for warm and not entered yet; None: the promoter has
    no tasks for the queue yet."""
    unrecorded: int = 0
    """Items that have left warm but are not recorded at their owner yet. They count as warm: a
    crash delivers them again, so their number must stay bounded."""
    acquired: trio.Event | None = None
    """Set once the promoter has its rows; None while it acquires none."""
    is_stream: bool = False
    """Consumers claim from cold: all runs go there and stay there."""

    @property
    def promoted(self) -> int:
        """Items that the promoter has acquired and not entered yet."""
        return 0 if self.line is None else self.line.items


class TierStates:
    """All queues, the two tiers they move between, and the settings that govern it."""

    def __init__(
        self,
        warm: WarmTier,
        cold: ColdQueue,
        catalogue: Catalogue,
        now_ms: Clock,
        *,
        shares_rows: bool = False,
    ) -> None:
        """`shares_rows`: daemons share the rows of cold, so all runs go there."""
        self.shares_rows = shares_rows
        self.shares_warm = isinstance(warm, SharedWarm)
        self.stored_warm = warm
        """Warm without the items that are leased from cold on demand."""
        self.memory: WarmQueue = warm.own if isinstance(warm, SharedWarm) else warm
        """This process's part of it."""
        self.warm = Leasing(warm, Fetch(cold, now_ms), self)
        self.cold = cold
        self.catalogue = catalogue
        self.now_ms = now_ms
        self._queues: dict[str, QueueTiers] = {}

    def of(self, queue: str) -> QueueTiers:
        found = self._queues.get(queue)
        if found is None:
            found = self._queues[queue] = QueueTiers()
        return found

    def limits(self, queue: str) -> Limits:
        return limits_of(self.catalogue.settings_of(queue))

    def paused_flows(self, queue: str) -> frozenset[str]:
        return self.catalogue.paused_flows(queue)

    def line(self, queue: str) -> Promotion | None:
        found = self._queues.get(queue)
        return None if found is None else found.line

    def lines(self) -> Iterator[Promotion]:
        return (state.line for state in self._queues.values() if state.line is not None)

    def is_stream(self, queue: str) -> bool:
        found = self._queues.get(queue)
        return found is not None and found.is_stream

    def is_fetched(self, queue: str) -> bool:
        """Whether items of the queue are leased from cold on demand. Such a queue has no line."""
        if self.is_stream(queue):
            return False
        is_keyed = self.catalogue.settings_of(queue).unique != "off"
        return is_keyed or (self.shares_rows and not self._has_shared_warm)

    @property
    def _has_shared_warm(self) -> bool:
        return isinstance(self.stored_warm, SharedWarm) and self.stored_warm.takes_rows

    def is_leased_in_place(self, queue: str) -> bool:
        """Whether a row of cold that is leased is lent again by itself when its lease ends."""
        return self.shares_rows or self.is_fetched(queue)

    def tiers(self) -> dict[str, str]:
        """The tier of every queue that has a lane, by name."""
        states = sorted(self._queues.items())
        return {queue: state.tier.name.lower() for queue, state in states if state.tier is not None}
