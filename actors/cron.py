"""Cron: looks after schedules, so that the next ticks of each are always in the cold store.

Owns the book of schedules (actors/schedule_book.py). The ticks are the cold store's, where they
are delayed items like any other: whoever delivers them need not know of schedules, and they come
due though this daemon is away. What is to be installed is decided by actors/look_ahead.py; the
store's marks (actors/ticks.py) see to it that each tick is installed once in a fleet.

The first look comes before anything is delivered, so that what was missed is decided on first.
While the store is away nothing happens; the look after it is back makes up for it. On cancel a
step that has begun is carried through, and the next life goes on from the mark. On drain it
simply ends: ticks that are installed are due whether or not anybody is here.

What it can't do: tick more often than each second, or tell how late a tick was delivered.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
import trio

from actors.look_ahead import FOREVER_MS, REFRESH_S_MAX, Step, Wanted, next_step
from actors.schedule_book import Installed, ScheduleBook
from actors.schedules import SCHEDULE_HEADER, TICK_HEADER, ScheduleSettings
from actors.ticks import Marks, Span, TickChange, TickMark, TickOutcome, TickStore, tick_key
from actors.tiers import StoreCorrupt, StoreUnavailable
from forebay.errors import BadRun, Refused
from forebay.keyed import KeyOutcome
from forebay.priorities import resolve
from forebay.run import Run, encode_run, read_head

from actors.keys import ItemRef, Offer  # isort: skip

log = structlog.get_logger()

TRIES_MAX: Final = 10
"""How often a step is decided on again because another daemon was quicker."""
AWAY_PAUSE_S: Final = 5.0
RUN: Final = "run"
"""In the keys of what is run by hand, in place of a fingerprint."""


@dataclass(frozen=True, slots=True, eq=False)
class _Planned:
    """A change and what it was made of."""

    change: TickChange
    step: Step | None
    """None: the schedule is removed."""


class Cron:
    def __init__(
        self,
        book: ScheduleBook,
        ticks: TickStore,
        labels: Callable[[], Mapping[str, int]],
        has_queue: Callable[[str], bool],
        has_come: Callable[[str], None],
    ) -> None:
        """`labels`: of priorities. `has_come` is told of each queue that has new ticks."""
        self._book = book
        self._ticks = ticks
        self._labels = labels
        self._has_queue = has_queue
        self._has_come = has_come
        self._changing = trio.Lock()
        self._woken = trio.Event()
        self._look_at: dict[str, float] = {}
        """When each schedule is looked at next."""
        self._problems: dict[str, str] = {}
        self._disputed: set[str] = set()
        self._is_away = False
        self.installed_total = 0
        self.missed_total = 0

    @property
    def book(self) -> ScheduleBook:
        return self._book

    def problem(self, name: str) -> str:
        """Why a schedule cannot be installed; empty: it can."""
        return self._problems.get(name, "")

    def figures(self) -> dict[str, int]:
        return {
            "schedules": len(self._book.schedules),
            "installed_total": self.installed_total,
            "missed_total": self.missed_total,
        }

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self.look()
        task_status.started()
        while True:
            with trio.move_on_after(self._pause_s()):
                await self._woken.wait()
            self._woken = trio.Event()
            await self.look()

    def _pause_s(self) -> float:
        if self._is_away:
            return AWAY_PAUSE_S
        first = min(self._look_at.values(), default=trio.current_time() + REFRESH_S_MAX)
        return min(max(0.0, first - trio.current_time()), REFRESH_S_MAX)

    # What operators ask for.

    async def add(self, name: str, keys: Mapping[str, Any]) -> None:
        async with self._changing:
            self._check(await self._checked(name, keys, self._book.add))
        await self.look(name)

    async def change(self, name: str, keys: Mapping[str, Any]) -> None:
        async with self._changing:
            self._check(await self._checked(name, keys, self._book.change))
        await self.look(name)

    async def remove(self, name: str) -> None:
        async with self._changing:
            await self._book.remove(name)
        await self.look(name)

    async def reload(self, configured: Mapping[str, ScheduleSettings]) -> None:
        async with self._changing:
            self._book.reload(configured)
        self._look_at.clear()
        self._woken.set()
