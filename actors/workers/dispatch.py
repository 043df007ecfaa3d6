"""Dispatch: starts everything that delivers a queue when the queue is first seen.

For each queue it starts the router's lane, the promoter's tasks and a group of workers, unless
consumers pull its items. A queue whose settings change gets a new group: the old one finishes its
batches while the new one starts, and no other queue notices. If a handler cannot be opened, its
queue waits, one line is logged, and the next change tries again.

It also puts expired leases back into warm once per second.

On drain no group leases more; `run` returns when all are done. On cancel nothing is settled.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from actors.config.catalogue import Catalogue
from actors.config.queue import QueueSettings
from actors.model.outcomes import HandlerUnusable
from actors.ports.handler import Handler
from actors.ports.tiers import StoreUnavailable
from actors.spooler.arrivals import Pinned
from actors.tiers.tiers import Tiers
from actors.workers.group import Gate, WorkerGroup
from actors.workers.rate import Destinations, FleetRate
from actors.workers.sending import WorkerShared
from actors.workers.split_workers import SplitWorkerGroup

log = structlog.get_logger()

EXPIRE_S: Final = 1.0
CLEAR_S: Final = 5.0

OpenHandler = Callable[[str, QueueSettings], Handler | None]


@dataclass(slots=True)
class Crew:
    """The workers of one queue."""

    gate: Gate
    settings: QueueSettings | None = None
    group: WorkerGroup | None = None


class Dispatch:
    def __init__(
        self,
        tiers: Tiers,
        catalogue: Catalogue,
        shared: WorkerShared,
        open_handler: OpenHandler,
        fleet_rate: FleetRate | None,
    ) -> None:
        """`fleet_rate`: the token buckets shared with other daemons."""
        self._inbox = tiers.spooler.arrivals.inbox
        self._tiers = tiers
        self._catalogue = catalogue
        self._shared = shared
        self._open_handler = open_handler
        self._destinations = Destinations(fleet_rate)
        self._crews: dict[str, Crew] = {}
        self._setting_aside: set[str] = set()
        self._nursery: trio.Nursery | None = None
        self._moving = trio.CancelScope()
        self._is_draining = False

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._move)
            task_status.started()

    async def _move(self) -> None:
        """Runs everything that ends at once when draining begins."""
        with self._moving:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._expire)
                nursery.start_soon(self._follow_changes, nursery)
                nursery.start_soon(self._clear_the_way, nursery)
                async for seen in self._inbox:
                    if isinstance(seen, Pinned):
                        nursery.start_soon(self._set_aside, seen.queue, None, seen.positions)
                    elif seen.queue not in self._crews:
                        self._crews[seen.queue] = Crew(Gate())
                        self._staff(seen.queue)
                        nursery.start_soon(self._tiers.serve, seen.queue)

    def drain(self) -> None:
        """Stops leasing in all groups. `run` returns when all are done."""
        self._is_draining = True
        self._moving.cancel()
        for group in self.groups():
            group.drain()

    def groups(self) -> Iterable[WorkerGroup]:
        for crew in self._crews.values():
            if crew.group is not None:
                yield crew.group

    async def _follow_changes(self, nursery: trio.Nursery) -> None:
        """Applies pauses, new definitions and reloads."""
        seen = self._catalogue.changes
        while True:
            seen = await self._catalogue.wait_changed(seen)
            # Queues first seen meanwhile already have the newest settings.
            for queue, crew in list(self._crews.items()):
                newly_paused = self._catalogue.paused_flows(queue) - crew.gate.except_flows
                self._staff(queue)
                for flow in newly_paused:
                    nursery.start_soon(self._set_aside, queue, flow)

    async def _clear_the_way(self, nursery: trio.Nursery) -> None:
        """Sets aside slices that came back to warm after their flow was paused, or could not leave
        warm at that time."""
        while True:
            await trio.sleep(CLEAR_S)
            for queue in list(self._crews):
                for flow in self._catalogue.paused_flows(queue):
                    nursery.start_soon(self._set_aside, queue, flow)

    async def _set_aside(
        self, queue: str, flow: str | None = None, positions: range | None = None
    ) -> None:
        """Moves slices out of warm: a paused flow would keep others out, an old item its chunk.

        One call at a time per queue: it may take as long as there is no room."""
        if queue in self._setting_aside:
            return
        self._setting_aside.add(queue)
        try:
            await self._tiers.set_aside(queue, flow, positions)
        except StoreUnavailable as problem:
            log.warning("dispatch.stays_warm", queue=queue, error=str(problem))
        finally:
            self._setting_aside.remove(queue)

    def _staff(self, queue: str) -> None:
        """Starts the workers that the queue's settings ask for."""
        crew = self._crews[queue]
        settings = self._catalogue.settings_of(queue)
        crew.gate.set(
            is_open=settings.is_active and not self._catalogue.is_paused(queue),
            except_flows=self._catalogue.paused_flows(queue),
        )
        if self._is_draining or self._nursery is None:
            return
        if crew.settings is not None and concerns(settings) == concerns(crew.settings):
            return
        if crew.group is not None:
            crew.group.drain()
            crew.group = None
        before, crew.settings = crew.settings, settings
        try:
            handler = self._open_handler(queue, settings)
        except HandlerUnusable as problem:
            log.error("dispatch.handler_unusable", queue=queue, error=str(problem))
            self._destinations.leave(queue)
            return
        if handler is None:
            self._destinations.leave(queue)
            return
        rate = self._destinations.join(queue, handler.destination, settings.rate_limit)
        breakers = self._shared.breakers
        breakers.name(handler.destination, settings.breaker)
        if before is not None and before.breaker != settings.breaker:
            breakers.change(handler.destination, settings.breaker)
        group = SplitWorkerGroup if settings.pipeline_split.enabled else WorkerGroup
        crew.group = group(queue, settings, handler, rate, crew.gate, self._shared)
        self._nursery.start_soon(crew.group.run)

    async def _expire(self) -> None:
        while True:
            await trio.sleep(EXPIRE_S)
            for queue, items in (await self._shared.warm.expire()).items():
                log.warning("dispatch.leases_ran_out", queue=queue, items=items)


def concerns(settings: QueueSettings) -> QueueSettings:
    """The part of a queue's settings that its workers are built from."""
    return QueueSettings(
        handler=settings.handler,
        lease_time=settings.lease_time,
        max_retries=settings.max_retries,
        backoff=settings.backoff,
        retry_rules=settings.retry_rules,
        breaker=settings.breaker,
        workers=settings.workers,
        pipeline_split=settings.pipeline_split,
        rate_limit=settings.rate_limit,
    )
