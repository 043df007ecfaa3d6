"""Grids: the moments at which a schedule ticks, as pure arithmetic. No clock, no I/O.

A period lies on the grid of 1970 (every 10 s: at :00, :10, :20), so that installing it again never
moves it. Cron expressions and daily times are wall-clock times of a zone. They are computed on the
calendar and then mapped to moments:

- A time that does not exist, because clocks are put forward over it, ticks once, at the first
  moment after the gap, however many times of the grid lie in the gap.
- A time that exists twice ticks once, at the first.
- A cron expression whose hour begins with `*` means elapsed time, not times of day: it ticks in
  both passes of a repeated hour, and makes up for nothing after a gap.

It supports neither seconds in cron expressions (`every` has them) nor random expressions (`R`,
`H`), because each daemon would have a different grid.
"""

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache, partial
from itertools import islice, takewhile
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from croniter import croniter

CRON_FIELDS: Final = 5
GRIDS_KEPT: Final = 4096
"""Twice as many as a daemon has schedules: parsing an expression takes 0.13 ms."""
CRON_LENGTH_MAX: Final = 200
DAY_MS: Final = 86_400_000
FIRST_SPAN_MS: Final = 3_600_000
SPAN_GROWTH: Final = 8

_EPOCH: Final = datetime(1970, 1, 1)
_ONE: Final = re.compile(r"(?<![\w#])(\w+)-\1(/\d+)?(?![\w#])")
_RANDOM: Final = re.compile(r"(?:^|,)[rh](?:$|[(/,])", re.IGNORECASE)


class Grid(Protocol):
    def after(self, ms: int) -> Iterator[int]:
        """The ticks later than `ms`, in order."""


@dataclass(frozen=True, slots=True)
class Period:
    period_ms: int

    def after(self, ms: int) -> Iterator[int]:
        tick = (ms // self.period_ms + 1) * self.period_ms
        while True:
            yield tick
            tick += self.period_ms


LocalTimes = Callable[[datetime], Iterator[datetime]]
"""Wall-clock times later than a given one, in order."""


@dataclass(frozen=True, slots=True)
class WallClock:
    """Times of a zone's wall clock."""

    zone: ZoneInfo
    times: LocalTimes
    is_passing: bool = False
    """Whether it means elapsed time instead of times of day."""

    def after(self, ms: int) -> Iterator[int]:
        found = self._next(ms)
        while found is not None:
            yield found
            found = self._next(found)

    def _next(self, ms: int) -> int | None:
        local = _EPOCH + timedelta(milliseconds=ms + self._offset_ms(ms))
        # Around a change of the clocks, local times and moments are not in the same order: the
        # neighbouring times must be examined as well.
        change_ms = self._change_ms(ms, DAY_MS)
        change_ms = change_ms and self._change_ms(ms, 2 * change_ms)
        change = timedelta(milliseconds=change_ms)
        found: int | None = None
        enough = datetime.max
        for naive in self.times(local - change):
            if naive > enough:
                break
            moments = [moment for moment in self._moments(naive) if moment > ms]
            if moments and (found is None or moments[0] < found):
                found = moments[0]
            if found is not None:
                enough = min(enough, naive + change)
        return found

    def _moments(self, naive: datetime) -> list[int]:
        """The moments at which the wall clock shows this time, or the substitute for a gap."""
        wall_ms = (naive - _EPOCH) // timedelta(milliseconds=1)
        first, second = (
            wall_ms - _ms(naive.replace(tzinfo=self.zone, fold=fold).utcoffset()) for fold in (0, 1)
        )
        if first == second:
            return [first]
        if first < second:
            return [first, second] if self.is_passing else [first]
        if self.is_passing:
            return []
        # Clocks are put forward between the two.
        before_ms = self._offset_ms(second)
        seconds = range(second // 1000, first // 1000 + 1)
        at = bisect_left(seconds, True, key=lambda s: self._offset_ms(s * 1000) != before_ms)
        return [seconds[at] * 1000]

    def _change_ms(self, ms: int, around_ms: int) -> int:
        """By how much the clocks change within `around_ms` before or after."""
        offsets = [self._offset_ms(ms + more) for more in (-around_ms, 0, around_ms)]
        return max(offsets) - min(offsets)

    def _offset_ms(self, ms: int) -> int:
        return _ms(datetime.fromtimestamp(ms // 1000, UTC).astimezone(self.zone).utcoffset())


@lru_cache(maxsize=GRIDS_KEPT)
def cron_grid(expression: str, zone: ZoneInfo) -> WallClock:
    """Raises ValueError unless it is an expression of five fields that matches some date."""
    if len(expression) > CRON_LENGTH_MAX:
        raise ValueError(f"a cron expression has at most {CRON_LENGTH_MAX} characters")
    fields = expression.split()
    if len(fields) != CRON_FIELDS:
        raise ValueError(
            f"{expression!r} has {len(fields)} fields, not {CRON_FIELDS}: minute, hour, day of "
            "the month, month, day of the week (seconds are for `every`)"
        )
    if any(_RANDOM.search(field) for field in fields):
        raise ValueError(f"{expression!r} is random: every daemon would have times of its own")
    # croniter takes 4-4 for a range that goes all the way round.
    expression = _ONE.sub(r"\1", " ".join(fields))
    grid = WallClock(zone, partial(_cron_times, expression), fields[1].startswith("*"))
    try:
        if next(iter(_cron_times(expression, datetime(2000, 1, 1))), None) is None:
            raise ValueError("it never matches a date")
    except (ValueError, KeyError, OverflowError) as problem:
        raise ValueError(f"{expression!r} is not a valid cron expression: {problem}") from problem
    return grid


def daily_grid(at: time, zone: ZoneInfo) -> WallClock:
    return WallClock(zone, partial(_daily_times, at))


def next_ticks(grid: Grid, after_ms: int, most: int) -> list[int]:
    return list(islice(grid.after(after_ms), most))


def latest_ticks(grid: Grid, after_ms: int, until_ms: int, most: int) -> list[int]:
    """The last `most` ticks later than `after_ms` and not later than `until_ms`.

    Looks back in growing steps: after a year of downtime, walking through all ticks is too slow."""
    if most <= 0 or until_ms <= after_ms:
        return []
    span = FIRST_SPAN_MS
    while True:
        start = max(after_ms, until_ms - span)
        ticks = takewhile(lambda tick: tick <= until_ms, grid.after(start))
        found = deque(ticks, maxlen=most)
        if len(found) == most or start == after_ms:
            return list(found)
        span *= SPAN_GROWTH


def _cron_times(expression: str, after: datetime) -> Iterator[datetime]:
    times = croniter(expression, after, ret_type=datetime)
    try:
        while True:
            yield times.get_next()
    except (ValueError, OverflowError):
        # None for so many years that there will be none.
        return


def _daily_times(at: time, after: datetime) -> Iterator[datetime]:
    naive = datetime.combine(after.date(), at)
    while True:
        if naive > after:
            yield naive
        naive += timedelta(days=1)


def _ms(offset: timedelta | None) -> int:
    return (offset or timedelta()) // timedelta(milliseconds=1)
