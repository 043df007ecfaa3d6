"""Operations on schedules (docs/protocol.md, "Schedules"): `cron.list`, `cron.show`,
`cron.next`, `cron.add`, `cron.change`, `cron.remove` and `cron.run`.

It owns nothing: each operation is a step of actors/cron/schedules.py. The next ticks follow this
host's clock and are those of the grid, also for a disabled schedule.
"""

from collections.abc import Mapping
from typing import Any, Final

from actors.config.book import Book
from actors.config.grids import next_ticks
from actors.config.triggers import QueueTrigger
from actors.control.fields import Fields, Operation
from actors.cron.last_ticks import LastTick, LastTicks
from actors.cron.schedules import Schedules
from actors.model.clock import Clock
from forebay.errors import Refused
from forebay.ids import format_item_id

TICKS_DEFAULT: Final = 4
TICKS_MAX: Final = 100


class CronControl:
    def __init__(
        self,
        schedules: Schedules,
        triggers: Book[QueueTrigger],
        now_ms: Clock,
    ) -> None:
        self._cron = schedules
        self._triggers = triggers
        self._now_ms = now_ms
        self._last = LastTicks(schedules, now_ms)

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {
            "cron.list": self._list,
            "cron.show": self._show,
            "cron.next": self._next,
            "cron.add": self._add,
            "cron.change": self._change,
            "cron.remove": self._remove,
            "cron.run": self._run,
        }

    async def _list(self, fields: Fields) -> dict[str, Any]:
        fields.end()
        last = await self._last.of_all()
        # Some schedules may have been removed during the look.
        names = sorted(last.keys() & self._cron.book.definitions.keys())
        return {"schedules": [self._object(name, last[name]) for name in names]}

    async def _show(self, fields: Fields) -> dict[str, Any]:
        name = fields.text("name")
        fields.end()
        return await self._shown(name)

    async def _next(self, fields: Fields) -> dict[str, Any]:
        name, count = fields.text("name"), fields.number("count", TICKS_DEFAULT, 1, TICKS_MAX)
        fields.end()
        settings = self._cron.book.find(name)
        return {"name": name, "ticks_ms": next_ticks(settings.grid, self._now_ms(), count)}

    async def _add(self, fields: Fields) -> dict[str, Any]:
        name, settings = fields.text("name"), fields.settings()
        fields.end()
        # Names are shared: a schedule is a trigger of type TIME.
        if name in self._triggers.definitions:
            raise Refused("CONFLICT", f"there is a trigger {name} already, of type QUEUE")
        await self._cron.add(name, settings)
        return await self._shown(name)

    async def _change(self, fields: Fields) -> dict[str, Any]:
        name, settings = fields.text("name"), fields.settings()
        fields.end()
        await self._cron.change(name, settings)
        return await self._shown(name)

    async def _remove(self, fields: Fields) -> dict[str, Any]:
        name = fields.text("name")
        fields.end()
        await self._cron.remove(name)
        return {}

    async def _run(self, fields: Fields) -> dict[str, Any]:
        name = fields.text("name")
        fields.end()
        item = await self._cron.run_now(name)
        queue = self._cron.book.find(name).queue
        return {"name": name, "queue": queue, "id": format_item_id(*item)}

    async def _shown(self, name: str) -> dict[str, Any]:
        return self._object(name, await self._last.of(name))

    def _object(self, name: str, last: LastTick) -> dict[str, Any]:
        settings = self._cron.book.find(name)
        return {
            "name": name,
            "origin": self._cron.book.origin(name),
            "when": settings.when,
            "queue": settings.queue,
            "enabled": settings.enabled,
            "next_ms": last.next_ms,
            "last_ms": last.at_ms,
            "last_state": last.state,
            "missed_total": last.missed,
            "missed_ms": last.missed_ms,
            "problem": self._cron.problem(name),
            "settings": settings.shown(),
        }
