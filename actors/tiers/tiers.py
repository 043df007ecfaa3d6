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
from typing import Any, Final, TypeVar

import structlog
import trio

from actors.config.catalogue import Catalogue
from actors.config.settings import Settings
from actors.model.clock import Clock, wall_ms
from actors.model.runs import unpack_origin
from actors.model.slices import InJournal, Slice
from actors.ports.presence import COLD_STEPS, Presence, watched
from actors.ports.tiers import ColdQueue, Unconfirmed, WarmTier
from actors.spooler.spooler import Spooler
from actors.tiers.failover import Failover
from actors.tiers.handover import ColdEntry, Entry, HandOver, LastHandOver
from actors.tiers.promoter import Promoter
from actors.tiers.queue_tiers import QueueMemory, TierStates
from actors.tiers.router import Router
from actors.tiers.shared_promoter import Reconciliation, SharedEntry, SharedPromoter
from actors.tiers.shared_warm import SharedWarm
from actors.tiers.streams import Streams

log = structlog.get_logger()

S = TypeVar("S")

SHARE_S: Final = 1.0
"""How often runs in memory are handed over once the cold store is back."""


class Tiers:
    def __init__(
        self,
        settings: Settings,
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
        shares_rows = settings.fleet or isinstance(warm, SharedWarm)
        self.states = TierStates(warm, cold, catalogue, now_ms, shares_rows=shares_rows)
        self.warm = self.states.warm
        self.failover = Failover()
        self.last_hand_over = LastHandOver(now_ms)
        entry: Entry = ColdEntry(cold)
        self.promoter: Promoter | SharedPromoter = Promoter(
            self.states, spooler.arrivals, settings.cold.acquire_timeout, memory.bytes_max
        )
        self._reconciliation: Reconciliation | None = None
        if isinstance(warm, SharedWarm):
            entry = SharedEntry(warm, self.states)
            self.promoter = SharedPromoter(self.states, warm, spooler.arrivals)
            self._reconciliation = Reconciliation(self.states, warm)
        self.hand_over = HandOver(
            cold, entry, spooler.client, self.failover, self.wake, self.last_hand_over
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
            "warm_repaired_total": 0
            if self._reconciliation is None
            else self._reconciliation.repaired_total,
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
            if self._reconciliation is not None:
                nursery.start_soon(self._reconciliation.run)
            if self.states.shares_rows:
                nursery.start_soon(self._share_memory)
            task_status.started()

    async def _share_memory(self) -> None:
        """Hands runs over that wait in this daemon's memory since the cold store was away."""
        own = self.states.memory
        while True:
            await trio.sleep(SHARE_S)
            if self.presence.is_away:
                continue
            for queue, fill in (await own.fills()).items():
                if fill.waiting or fill.scheduled:
                    slices = await own.withdraw(queue)
                    of_journal = [s for s in slices if isinstance(s.run.owner, InJournal)]
                    await self.place(queue, of_journal)

    async def serve(self, queue: str) -> None:
        """Routes and promotes one queue; never returns."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.router.route, queue)
            nursery.start_soon(self.promoter.promote, queue)
