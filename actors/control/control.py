"""Control: the requests of operators and their tools (docs/protocol.md "CONTROL").

This is the door of the package: it puts the operations of all subjects into one table. Each
operation checks its fields, does one step and returns the resulting state. Control owns nothing.
"""

from collections.abc import Mapping
from typing import Any

import trio

from actors.control.actors import Actors
from actors.control.dead_groups import DeadGroups
from actors.control.dead_jobs import Jobs
from actors.control.fields import Fields, Operation
from actors.control.items import Items
from actors.control.letters import Letters
from actors.control.operation import View
from actors.control.schedules import CronControl
from actors.control.table import OPERATIONS
from actors.control.triggers import TriggerControl
from actors.control.writes import Receipts
from actors.cron.cron import Cron
from actors.fleet.fleet import Fleet
from actors.metrics.metrics import Metrics
from actors.model.refusals import bad_request
from actors.ports.tiers import StoreUnavailable
from actors.tiers.tiers import Tiers
from actors.workers.workers import Workers
from actors.writes.writes import Writes
from forebay.errors import BadRun


class Control:
    def __init__(
        self,
        tiers: Tiers,
        workers: Workers,
        items: Items,
        cron: Cron,
        writes: Writes,
        fleet: Fleet,
        metrics: Metrics,
    ) -> None:
        cold, catalogue = tiers.cold, tiers.states.catalogue
        self._metrics = metrics
        self._actors = Actors(catalogue, tiers, workers, cron, fleet, metrics)
        self._receipts = Receipts(tiers, writes)
        self._jobs = Jobs(tiers)
        self._operations: dict[str, Operation] = {
            **Letters(tiers).operations,
            **self._receipts.operations,
            **items.operations,
            **self._jobs.operations,
            **CronControl(cron.schedules, cron.triggers.book, tiers.now_ms).operations,
            **TriggerControl(cron, tiers.now_ms).operations,
            **DeadGroups(cold.dead_letters).operations,
        }

    async def perform(self, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Carries out one operation. Raises Refused or StoreUnavailable."""
        known = OPERATIONS.get(op)
        operation = self._operations.get(op)
        if known is None and operation is None:
            names = ", ".join(sorted((*OPERATIONS, *self._operations)))
            raise bad_request(f"unknown operation {op}; the operations are {names}")
        try:
            if known is not None:
                return shown(await known.read(fields).perform(self._actors))
            assert operation is not None
            return await operation(Fields(fields))
        except BadRun as problem:
            raise bad_request(str(problem)) from problem
        except OSError as problem:
            raise StoreUnavailable(f"the change cannot be kept: {problem.strerror}") from problem

    async def report(self) -> dict[str, Any]:
        """What STATS answers. Raises StoreUnavailable."""
        return await self._metrics.report()

    async def run(self) -> None:
        """Forgets old receipts and works off jobs; never returns."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receipts.run)
            nursery.start_soon(self._jobs.run)


def shown(view: View | None) -> dict[str, Any]:
    return {} if view is None else view.model_dump(mode="json")
