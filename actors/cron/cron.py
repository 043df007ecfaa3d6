"""Cron: makes items at given times (schedules) or from other items (triggers).

This is the door of the package. It builds the two actors. Both keep what they make in the cold
store, so that it comes due even while this daemon is down.

`run` returns from its start when missed ticks are decided, before anything is delivered. On `drain`
triggers claim nothing more. On cancel the store completes a step that has begun.
"""

from typing import Any, Final, NamedTuple

import trio

from actors.config.book import Kept
from actors.config.catalogue import Catalogue
from actors.config.schedules import KeptSchedules, ScheduleSettings
from actors.config.settings import Settings
from actors.config.triggers import KeptTriggers, QueueTrigger, all_schedules, queue_triggers
from actors.cron.schedules import Schedules
from actors.cron.trigger_ports import TriggerPorts, Withdrawing
from actors.cron.triggers import Triggers
from actors.model.refusals import bad_request, not_found
from actors.observers.observers import Observers
from actors.tiers.tiers import Tiers
from forebay.errors import BadRun
from forebay.priorities import resolve

TICK_STEPS: Final = ("marks", "change")
TRIGGER_STEPS: Final = ("poll", "jobs", "died", "end")


class KeptCron(NamedTuple):
    """What was defined at run time."""

    schedules: Kept[KeptSchedules]
    triggers: Kept[KeptTriggers]
    daemon: bytes = b""
    """This daemon's id: the owner of leases on triggers, the same after a restart."""


class Cron:
    def __init__(
        self,
        settings: Settings,
        kept: KeptCron,
        tiers: Tiers,
        catalogue: Catalogue,
        observers: Observers,
        items: Withdrawing,
    ) -> None:
        self._catalogue = catalogue
        self.schedules = Schedules(
            all_schedules(settings.schedules, settings.triggers),
            kept.schedules,
            tiers.watch(tiers.cold.ticks, TICK_STEPS),
            self.check_schedule,
            tiers.announce,
            observers.notifier.trigger_failed,
        )
        self.triggers = Triggers(
            queue_triggers(settings.triggers),
            kept.triggers,
            self.check_trigger,
            tiers.watch(tiers.cold.triggers, TRIGGER_STEPS),
            kept.daemon,
            TriggerPorts(tiers, catalogue, observers, items),
        )

    def check_schedule(self, schedule: ScheduleSettings) -> int:
        """The priority of a schedule's ticks. Refused if its queue or priority does not exist."""
        return self._checked_priority(schedule.priority, schedule.queue)

    def check_trigger(self, trigger: QueueTrigger) -> int:
        """The priority of its jobs. Refused if one of its queues or its priority does not exist."""
        return self._checked_priority(trigger.priority, trigger.queue, trigger.target)

    def _checked_priority(self, priority: int | str, *queues: str) -> int:
        for queue in queues:
            if self._catalogue.queue(queue) is None:
                raise not_found(f"queue {queue}")
        try:
            return resolve(priority, lambda: self._catalogue.priorities)
        except BadRun as problem:
            raise bad_request(str(problem)) from problem

    async def reload(self, settings: Settings) -> None:
        await self.schedules.reload(all_schedules(settings.schedules, settings.triggers))
        await self.triggers.reload(queue_triggers(settings.triggers))

    def figures(self) -> dict[str, Any]:
        """For STATS."""
        return {"cron": self.schedules.figures(), "triggers": self.triggers.figures()}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.schedules.run)
            await nursery.start(self.triggers.run)
            task_status.started()

    def drain(self) -> None:
        self.triggers.drain()
