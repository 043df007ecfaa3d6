"""The look-ahead of a schedule: which ticks to install now, and which to give up. Pure.

The next `AHEAD` ticks are always in the store. Any daemon refreshes them: every quarter of the time
between two ticks, at least every `REFRESH_S_MAX` and at most every `REFRESH_S_MIN`.

A schedule was *down* if no daemon refreshed it for three refreshes, and for at least 10 s. Ticks
whose time came meanwhile are missed: `run_all` runs the last `MISSED_MAX` of them, `run_once` the
last one, `skip` none. Missed ticks that were installed before and still wait are deleted
accordingly. A shorter pause (a restart, a slow store) does not count: its ticks run late.

A mark left by another configuration is taken over once, when this configuration is new to the
daemon, or when the other's ticks have run out. So two daemons with different configurations do not
keep undoing each other's work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from actors.config.grids import Grid, latest_ticks, next_ticks
from actors.config.schedules import Missed
from actors.ports.ticks import Span, TickMark

AHEAD: Final = 4
BACK_MAX: Final = 16
"""A mark more than this many ticks ahead was left by a clock that has been set back since."""
MISSED_MAX: Final = 1000
REFRESH_S_MIN: Final = 1.0
REFRESH_S_MAX: Final = 60.0
DOWN_REFRESHES: Final = 3
DOWN_S_MIN: Final = 10.0
FOREVER_MS: Final = 2**53


@dataclass(frozen=True, slots=True)
class Wanted:
    """A schedule as this daemon has it."""

    queue: str
    fingerprint: str
    grid: Grid
    missed: Missed
    is_new: bool
    """This daemon has not installed this version of it yet."""


@dataclass(frozen=True, slots=True)
class TickStep:
    """What to do; nothing if all fields are empty."""

    mark: TickMark | None
    ticks: tuple[int, ...] = ()
    drop: Span | None = None
    given_up: int = 0
    """Missed ticks that were never installed and never will be."""
    missed_ms: int | None = None
    """The dropped ticks were missed, the latest at this time."""
    is_due: bool = True
    """Whether the store must be changed."""
    refresh_s: float = REFRESH_S_MAX
    """When to look again."""


def refresh_s(ticks: Sequence[int]) -> float:
    """How long until the next look."""
    if len(ticks) < 2:
        return REFRESH_S_MAX
    apart_s = min(b - a for a, b in pairwise(ticks)) / 1000
    return min(max(apart_s / AHEAD, REFRESH_S_MIN), REFRESH_S_MAX)


def down_after_ms(refresh: float) -> int:
    return round(max(DOWN_REFRESHES * refresh, DOWN_S_MIN) * 1000)


def next_step(mark: TickMark | None, wanted: Wanted, now_ms: int) -> TickStep:
    ahead = next_ticks(wanted.grid, now_ms, AHEAD)
    if mark is None:
        return _install(mark, wanted, ahead, now_ms)
    if mark.fingerprint != wanted.fingerprint:
        if wanted.is_new or mark.until_ms <= now_ms:
            return _install(mark, wanted, ahead, now_ms)
        return TickStep(mark, is_due=False, refresh_s=refresh_s(ahead))
    if ahead and mark.until_ms > ahead[-1]:
        further = next_ticks(wanted.grid, now_ms, BACK_MAX)
        if mark.until_ms > further[-1]:
            return _install(mark, wanted, ahead, now_ms)
    return _refresh(mark, wanted, ahead, now_ms)


def _install(before: TickMark | None, wanted: Wanted, ahead: list[int], now_ms: int) -> TickStep:
    """The count of ticks missed under another configuration continues."""
    until_ms = ahead[-1] if ahead else now_ms
    missed = (0, 0) if before is None else (before.missed, before.missed_ms)
    mark = TickMark(wanted.queue, wanted.fingerprint, until_ms, now_ms, now_ms, *missed)
    drop = None if before is None else Span(now_ms, FOREVER_MS)
    return TickStep(mark, tuple(ahead), drop, refresh_s=refresh_s(ahead))


def _refresh(mark: TickMark, wanted: Wanted, ahead: list[int], now_ms: int) -> TickStep:
    refresh = refresh_s(ahead)
    late = latest_ticks(wanted.grid, mark.until_ms, now_ms, MISSED_MAX)
    coming = [tick for tick in ahead if tick > mark.until_ms]
    until_ms = max(mark.until_ms, ahead[-1] if ahead else now_ms)
    moved = mark._replace(until_ms=until_ms, seen_ms=max(mark.seen_ms, now_ms))
    is_down = now_ms - mark.seen_ms > down_after_ms(refresh)
    if not is_down or wanted.missed == "run_all":
        ticks = (*late, *coming)
        is_due = bool(ticks) or now_ms - mark.seen_ms >= refresh * 1000
        return TickStep(moved, ticks, is_due=is_due, refresh_s=refresh)
    given_up, last_ms = len(late), now_ms
    missed_until_ms = now_ms
    if wanted.missed == "run_once":
        # The last tick runs: an installed one is left to run, unless it already has.
        last = late[-1:] or latest_ticks(wanted.grid, mark.seen_ms, now_ms, 1)
        missed_until_ms = max(last, default=0) - 1
        if late:
            given_up, coming = len(late) - 1, [late[-1], *coming]
        else:
            last_ms = missed_until_ms
    drop = Span(mark.seen_ms, last_ms)
    latest = max(latest_ticks(wanted.grid, mark.seen_ms, missed_until_ms, 1), default=0)
    if given_up:
        moved = moved._replace(missed=moved.missed + given_up, missed_ms=latest)
    return TickStep(moved, tuple(coming), drop, given_up, latest, refresh_s=refresh)
