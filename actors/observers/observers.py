"""Who is told when leases have ended: history, failure log, tallies, notices and event log.

Settlement knows only this class. An observer keeps what it hears in memory and returns at once;
it never fails a settlement. `run` writes what was kept; `close` writes the rest.
"""

import socket
from collections.abc import Sequence
from typing import Any, Literal

import trio

from actors.config.catalogue import Catalogue
from actors.config.settings import Settings
from actors.model.clock import Clock, wall_ms
from actors.model.error_types import error_type
from actors.observers.attempts import AttemptBook
from actors.observers.batch import Batch, Observer
from actors.observers.event_log import EventLog, EventRing, EventSink
from actors.observers.events import DaemonChanged, TriggerFailed
from actors.observers.failure_log import FailureLog
from actors.observers.history import Disk, History
from actors.observers.notifier import Notifier, Ways
from actors.observers.tallies import Tallies
from actors.ports.tiers import ColdQueue


class Observers:
    """The door of this package: builds the observers, runs them, and tells them of every batch."""

    def __init__(
        self,
        settings: Settings,
        catalogue: Catalogue,
        cold: ColdQueue,
        disk: Disk,
        sink: EventSink | None,
        ways: Ways,
        now_ms: Clock = wall_ms,
    ) -> None:
        """`disk`: history pauses when it is low. `sink` writes events; None: the event log is off.
        `ways`: how notices are sent."""
        min_free_bytes = settings.spool.min_free_bytes
        self.ring = EventRing()
        self.events = EventLog(settings.events, sink, now_ms, self.ring.note)
        self.history = History(cold, catalogue, disk, min_free_bytes, now_ms)
        self.tallies = Tallies()
        self.attempts = AttemptBook(cold, self.tallies)
        self.notifier = Notifier(
            settings.notifications, ways, now_ms, socket.gethostname(), self.events.note
        )
        self._now_ms = now_ms
        self._all: Sequence[Observer] = (
            self.history,
            FailureLog(),
            self.tallies,
            self.notifier,
            self.events,
        )
        cold.keep_history(self.history.keep)

    def settled(self, batch: Batch) -> None:
        for observer in self._all:
            observer.settled(batch)

    def daemon_changed(self, state: Literal["started", "draining", "stopped"]) -> None:
        self.events.note(DaemonChanged(self._now_ms(), state))

    def trigger_failed(self, name: str, queue: str, error: str) -> None:
        """A trigger of type QUEUE has failed."""
        self.events.note(TriggerFailed(self._now_ms(), name, queue, error))
        self.notifier.trigger_failed(name, error, queue)

    def died(self, queue: str, error: str, items: int, ids: Sequence[str]) -> None:
        """Items became dead letters without a delivery: their job had failed."""
        self.tallies.of(queue).died[error_type(error)] += items
        self.notifier.dead(queue, error, items, ids)

    def figures(self) -> dict[str, Any]:
        """For STATS."""
        return {
            "events": self.events.figures(),
            "history_dropped_total": self.history.dropped_total,
            "notifications": self.notifier.figures(),
        }

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.events.run)
            nursery.start_soon(self.history.run)
            nursery.start_soon(self.attempts.run)
            nursery.start_soon(self.notifier.run)
            task_status.started()

    async def drain(self) -> None:
        """Writes the history and the attempts, and sends the notices that are left."""
        await self.notifier.close()
        await self.history.close()
        await self.attempts.close()

    async def close(self) -> None:
        """Writes the last events."""
        await self.events.close()
