"""What people ask of schedules (docs/protocol.md, "Schedules"): `cron.list`, `cron.show`,
`cron.next`, `cron.add`, `cron.change`, `cron.remove` and `cron.run`.

Owns nothing: each operation is a step of actors/cron.py. Next ticks are worked out on this host's
clock, and are those of the grid: of a schedule that is disabled too.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from actors.control import Fields, Operation
from actors.cron import Cron
from actors.grids import next_ticks
from actors.schedules import ScheduleSettings
from forebay.ids import format_item_id

TICKS_DEFAULT: Final = 4
TICKS_MAX: Final = 100


class _Look(NamedTuple):
    """The next tick of a schedule, as it was worked out: it stays that until it comes."""

    settings: ScheduleSettings
    at_ms: int
    next_ms: int | None


class CronControl:
    def __init__(self, cron: Cron, now_ms: Callable[[], int]) -> None:
        self._cron = cron
        self._now_ms = now_ms
        self._looked: dict[str, _Look] = {}

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
        names = sorted(self._cron.book.schedules)
        self._looked = {name: self._looked[name] for name in names if name in self._looked}
        return {"schedules": [self._object(name) for name in names]}

    async def _show(self, fields: Fields) -> dict[str, Any]:
        name = fields.text("name")
        fields.end()
        return self._object(name)

    async def _next(self, fields: Fields) -> dict[str, Any]:
        name, count = fields.text("name"), fields.number("count", TICKS_DEFAULT, 1, TICKS_MAX)
        fields.end()
        settings = self._cron.book.find(name)
        return {"name": name, "ticks_ms": next_ticks(settings.grid, self._now_ms(), count)}

    async def _add(self, fields: Fields) -> dict[str, Any]:
        name, settings = fields.text("name"), fields.object("settings")
        fields.end()
        await self._cron.add(name, settings)
        return self._object(name)

    async def _change(self, fields: Fields) -> dict[str, Any]:
        name, settings = fields.text("name"), fields.object("settings")
        fields.end()
        await self._cron.change(name, settings)
        return self._object(name)

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

    def _next_ms(self, name: str, settings: ScheduleSettings) -> int | None:
        """Kept, since the page asks for all schedules every few seconds, and 1,000 cron expressions
        take 0.2 s."""
        now_ms, look = self._now_ms(), self._looked.get(name)
        is_true = look is not None and look.settings is settings and look.at_ms <= now_ms
        if look is None or not is_true or (look.next_ms is not None and look.next_ms <= now_ms):
            ticks = next_ticks(settings.grid, now_ms, 1)
            look = self._looked[name] = _Look(settings, now_ms, ticks[0] if ticks else None)
        return look.next_ms

    def _object(self, name: str) -> dict[str, Any]:
        settings = self._cron.book.find(name)
        return {
            "name": name,
            "origin": self._cron.book.origin(name),
            "when": settings.when,
            "queue": settings.queue,
            "enabled": settings.enabled,
            "next_ms": self._next_ms(name, settings) if settings.enabled else None,
            "problem": self._cron.problem(name),
            "settings": settings.model_dump(mode="json"),
        }
