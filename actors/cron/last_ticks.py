"""The last tick of each schedule: its time, its outcome, and what was missed before.

It owns what it has computed: the last and the next tick of a grid stay valid until the next one
comes, and a tick that is done stays done. So a page that asks for all schedules every few seconds
only queries the store about ticks under way: 1,000 of them in one step. (Computing 1,000 cron
expressions anew takes a second, in steps of one.)

Nothing is durable here. The store knows how far ticks are installed and how many were missed;
actors/cron/schedules.py has its latest view. While the store is away the state of ticks is reported
as unknown; nothing waits for it longer than `PATIENCE_S`.

It cannot tell a tick that was delivered from one that was deleted. Both are done.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Literal, NamedTuple

import trio

from actors.config.grids import latest_ticks, next_ticks
from actors.config.schedules import ScheduleSettings
from actors.cron.schedules import Schedules
from actors.model.clock import Clock
from actors.model.keys import Phase
from actors.ports.ticks import Tick, TickMark, tick_key
from actors.ports.tiers import StoreCorrupt, StoreUnavailable

PATIENCE_S: Final = 2.0

TickState = Literal["waiting", "started", "done", "dead", "missed"]
_STATES: Final[Mapping[Phase | None, TickState]] = {
    "waiting": "waiting",
    "started": "started",
    "dead": "dead",
    "unreadable": "dead",
    "done": "done",
    None: "done",
}


class LastTick(NamedTuple):
    next_ms: int | None = None
    at_ms: int | None = None
    """None: there was none yet, or it is unknown."""
    state: TickState | None = None
    """None: unknown."""
    missed: int = 0
    missed_ms: int | None = None
    """The time of the latest missed tick."""


class _Look(NamedTuple):
    """The ticks of a schedule, as computed at some time."""

    settings: ScheduleSettings
    fingerprint: str
    since_ms: int
    """Where the search for the last tick began."""
    at_ms: int
    last_ms: int | None
    next_ms: int | None

    def is_true(self, settings: ScheduleSettings, since_ms: int, now_ms: int) -> bool:
        is_same = self.settings is settings and self.since_ms == since_ms
        is_past = self.next_ms is not None and self.next_ms <= now_ms
        return is_same and self.at_ms <= now_ms and not is_past


class _Asked(NamedTuple):
    tick: Tick
    at_ms: int


class LastTicks:
    def __init__(self, cron: Schedules, now_ms: Clock) -> None:
        self._cron = cron
        self._now_ms = now_ms
        self._looked: dict[str, _Look] = {}
        self._done: dict[str, int] = {}
        """The last tick of each schedule that is known to be done."""

    async def of_all(self) -> dict[str, LastTick]:
        schedules = self._cron.book.definitions
        self._looked = {name: look for name, look in self._looked.items() if name in schedules}
        self._done = {name: at_ms for name, at_ms in self._done.items() if name in schedules}
        return await self._of(schedules)

    async def of(self, name: str) -> LastTick:
        """Raises Refused if there is no such schedule."""
        return (await self._of({name: self._cron.book.find(name)}))[name]

    async def _of(self, schedules: Mapping[str, ScheduleSettings]) -> dict[str, LastTick]:
        found: dict[str, LastTick] = {}
        asked: dict[str, _Asked] = {}
        for name, settings in schedules.items():
            found[name], about = self._known(name, settings)
            if about is not None:
                asked[name] = about
            # There may be a thousand schedules.
            await trio.lowlevel.checkpoint()
        for name, state in (await self._ask(asked)).items():
            found[name] = found[name]._replace(state=state)
            if state == "done":
                self._done[name] = asked[name].at_ms
        return found

    def _known(self, name: str, settings: ScheduleSettings) -> tuple[LastTick, _Asked | None]:
        """What is known without the store, and what the store must be asked."""
        mark = self._cron.mark(name)
        look = self._look(name, settings, 0 if mark is None else mark.since_ms)
        next_ms, last_ms = look.next_ms if settings.enabled else None, look.last_ms
        if mark is None or mark.fingerprint != look.fingerprint or not settings.enabled:
            return LastTick(next_ms), None
        state = known_state(mark, last_ms, self._done.get(name))
        last = LastTick(next_ms, last_ms, state, mark.missed, mark.missed_ms or None)
        if last_ms is None or state is not None:
            return last, None
        tick = Tick(mark.queue, tick_key(name, mark.fingerprint, last_ms))
        return last, _Asked(tick, last_ms)

    def _look(self, name: str, settings: ScheduleSettings, since_ms: int) -> _Look:
        now_ms, look = self._now_ms(), self._looked.get(name)
        if look is None or not look.is_true(settings, since_ms, now_ms):
            grid = settings.grid
            last = latest_ticks(grid, since_ms, now_ms, 1) if since_ms else []
            coming, print_ = next_ticks(grid, now_ms, 1), settings.fingerprint
            look = _Look(settings, print_, since_ms, now_ms, first(last), first(coming))
            self._looked[name] = look
        return look

    async def _ask(self, asked: Mapping[str, _Asked]) -> dict[str, TickState]:
        """Empty if there is no answer in time."""
        if asked:
            with trio.move_on_after(PATIENCE_S), suppress(StoreUnavailable, StoreCorrupt):
                phases = await self._cron.phases([about.tick for about in asked.values()])
                return {name: _STATES[phase] for name, phase in zip(asked, phases, strict=True)}
        return {}


def known_state(mark: TickMark, last_ms: int | None, done_ms: int | None) -> TickState | None:
    """The state of a tick, as far as the mark tells."""
    if last_ms is None:
        return None
    if last_ms <= mark.missed_ms:
        return "missed"
    if last_ms > mark.until_ms:
        # It will be installed late, or be missed.
        return "waiting"
    return "done" if last_ms == done_ms else None


def first(ticks: list[int]) -> int | None:
    return ticks[0] if ticks else None
