"""Tiers: the way of a queue's runs from the journal to warm, and through cold if warm is full.

    journal ──► router ──► warm ──► workers, consumers
                  │ hand-over ▲
                  ▼           │
                 cold ──► promoter

This is the door of the package: it builds the actors, starts them, and is what other packages talk
to. It owns the state of every queue in the tiers (actors/tiers/queue_tiers.py); the journal and the
cold store own the runs.

`recover` and `finish_hand_overs` complete what an earlier process began, before and after the
spooler has started. On cancel nothing is lost: the owners deliver again after the restart.
"""

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import structlog
import trio

from actors.config.catalogue import Catalogue
from actors.config.settings import ColdSettings
from actors.model.clock import Clock, wall_ms
from actors.model.runs import unpack_origin
from actors.model.slices import Slice
from actors.ports.presence import Presence
from actors.ports.tiers import ColdQueue, Unconfirmed, WarmTier
from actors.ports.watched import COLD_STEPS, watched
from actors.spooler.spooler import Spooler
from actors.tiers.failover import Failover
from actors.tiers.handover import HandOver, LastHandOver
from actors.tiers.promoter import Promoter
from actors.tiers.queue_tiers import QueueMemory, TierStates
from actors.tiers.router import Router
from actors.tiers.streams import Streams

log = structlog.get_logger()

S = TypeVar("S")


class Tiers:
    def __init__(
        self,
        settings: ColdSettings,
        spooler: Spooler,
        warm: WarmTier,
        cold: ColdQueue,
        catalogue: Catalogue,
        memory: QueueMemory,
        now_ms: Clock = wall_ms,
    ) -> None:
        self.presence = Presence()
        self.cold = cold = self.watch(cold, COLD_STEPS)
        self.now_ms = now_ms
        self.spooler = spooler
        self._unconfirmed: list[Unconfirmed] = []
        self.states = TierStates(warm, cold, catalogue, now_ms)
        self.warm = self.states.warm
        self.failover = Failover()
        self.last_hand_over = LastHandOver(now_ms)
        self.hand_over = HandOver(
            cold, spooler.client, self.failover, self.wake, self.last_hand_over
        )
        self.promoter = Promoter(
            self.states, spooler.arrivals, settings.acquire_timeout, memory.bytes_max
        )
        self.router = Router(self.states, spooler, self.hand_over, memory.in_hand_bytes)
        self.streams = Streams(self.states, spooler.client, self.router, self.promoter)

    # What other actors say and ask.

    def watch(self, store: S, steps: Collection[str]) -> S:
        """A part of the cold store; outages that these steps meet count as outages of cold."""
        return watched(store, self.presence, steps)

    def is_away(self) -> dict[str, bool]:
        """Whether each store is unavailable. The disk counts as unavailable when it is low."""
        return {
            "cold": self.presence.is_away,
            "disk": self.spooler.disk_is_low,
            "warm": self.warm.is_away,
        }

    def figures(self) -> dict[str, Any]:
        """For STATS."""
        failover = self.failover
        return {
            "tiers": self.states.tiers(),
            "failover": {
                "entries": len(failover),
                "bytes": failover.bytes,
                "let_go_total": failover.let_go_total,
            },
            "away_total": {"cold": self.presence.away_total, "warm": self.warm.away_total},
        }

    def wake(self, queue: str, priority: int | None = None) -> None:
        """Cold may have something due; `priority` is given for a run that has just come to cold."""
        self.promoter.wake(queue, priority)
        self.streams.wake(queue)

    def announce(self, queue: str) -> None:
        """Cold has new items, perhaps of a queue that dispatch does not know yet."""
        self.spooler.arrivals.see_shared(queue)
        self.wake(queue)

    async def place(self, queue: str, slices: Sequence[Slice]) -> None:
        """Sends slices that the caller has borrowed from the journal to their tier."""
        await self.router.place(queue, slices)

    async def set_aside(
        self, queue: str, flow: str | None = None, positions: range | None = None
    ) -> None:
        """Moves waiting slices from warm to cold: those of a paused flow or of an old chunk."""
        await self.router.set_aside(queue, flow, positions)

    # Life.

    async def recover(self) -> None:
        """Reads what an earlier process left in cold; call it before the spooler starts."""
        self._unconfirmed = await self.cold.unconfirmed()
        if self._unconfirmed:
            # The journal lets go of them: they must be durable first. A process that was killed may
            # have written them and not synced.
            await self.cold.sync()
        self.spooler.disown([unpack_origin(entry.origin) for entry in self._unconfirmed])
        await self.streams.load()

    async def finish_hand_overs(self) -> None:
        """Completes hand-overs that an earlier process began: rows it stored belong to cold."""
        if self._unconfirmed and self.spooler.has_disowned:
            rows: dict[bool, list[bytes]] = {True: [], False: []}
            for entry in self._unconfirmed:
                has_let_go = self.spooler.has_let_go(unpack_origin(entry.origin))
                rows[has_let_go].append(entry.row)
            await self.cold.confirm(rows[True])
            await self.cold.forget(rows[False])
            log.info(
                "daemon.hand_overs_finished", rows=len(rows[True]), settled_before=len(rows[False])
            )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs what serves all queues. Dispatch starts `serve` for each queue."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.promoter.run)
            nursery.start_soon(self.streams.run)
            task_status.started()

    async def serve(self, queue: str) -> None:
        """Routes and promotes one queue; never returns."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.router.route, queue)
            nursery.start_soon(self.promoter.promote, queue)
