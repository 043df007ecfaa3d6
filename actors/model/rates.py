"""Rates as people write them: `100`, `100/10s`, `5 requests/s`, `100000/d`, `20/s burst 100`.

A plain number is items per second. The period is a duration (`10s`, `15min`) or a unit alone (`s`,
`min`, `h`, `d`). A rate counts items unless it says `requests`. 0 means without a limit.

A rate is a token bucket: `at_once` tokens after a pause, then `refill` tokens per second. There are
two kinds, by the period:

    pace   up to 10 s. The rate holds on average. Without a burst, the items of one period may go at
           once after a pause, so the period that follows a pause may see up to twice as many.
    quota  longer than 10 s. No period, whenever it begins, sees more than the quota: the refill is
           smaller by the burst. Without a burst, one second's worth may go at once, so that a quota
           is spread over its period.

`str` gives the shortest form, which parses to the same rate.
"""

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Final, Literal

from pydantic import PlainSerializer, PlainValidator

from actors.model.units import TEXT_MAX, format_duration, parse_duration, shown, written

RateUnit = Literal["items", "requests"]

PACE_S_MAX: Final = 10.0
"""A longer period makes a rate a quota."""
PERIOD_S_MIN: Final = 0.001
PERIOD_S_MAX: Final = 365 * 86400.0
PER_S_MAX: Final = 1e9
BURST_MAX: Final = 10**9

_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_RATE = re.compile(
    r"(\d+(?:\.\d+)?)\s*(?:(item|request)s?)?\s*/\s*([\d.]*\s*[a-z]+)(?:\s+burst\s+(\d+))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit as it was written."""

    count: float = 0.0
    """0: no limit."""
    period_s: float = 1.0
    unit: RateUnit = "items"
    burst: int | None = None
    """None: it follows from the period."""

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def per_s(self) -> float:
        """The mean rate."""
        return self.count / self.period_s

    @property
    def is_quota(self) -> bool:
        return self.period_s > PACE_S_MAX

    @property
    def at_once(self) -> float:
        """How many tokens can be saved up."""
        if self.burst is not None:
            return float(self.burst)
        return max(1.0, math.floor(self.per_s) if self.is_quota else self.count)

    @property
    def refill(self) -> float:
        """How many tokens come per second."""
        if not self.is_quota:
            return self.per_s
        # Of whole tokens, fewer than at_once + refill * period_s go within one period.
        return (self.count - self.at_once + 1) / self.period_s

    def __str__(self) -> str:
        count = written(self.count)
        if self.period_s == 1 and self.unit == "items" and self.burst is None:
            return count
        unit = "" if self.unit == "items" else " request" if self.count == 1 else " requests"
        burst = "" if self.burst is None else f" burst {self.burst}"
        return f"{count}{unit}/{_format_period(self.period_s)}{burst}"


NO_LIMIT: Final = Rate()


def parse_rate(value: object) -> Rate:
    """Raises ValueError for anything that is not a rate."""
    if isinstance(value, Rate):
        return value
    text = written(value)
    if len(text) <= TEXT_MAX and _NUMBER.fullmatch(text):
        rate = Rate(float(Decimal(text)))
        return _checked(text, rate) if rate else NO_LIMIT
    found = _RATE.fullmatch(text) if len(text) <= TEXT_MAX else None
    if found is None:
        raise _not_a_rate(text)
    count, unit, period, burst = found.groups()
    rate = Rate(
        float(Decimal(count)),
        _parse_period(text, period),
        "requests" if unit == "request" else "items",
        None if burst is None else min(int(burst), BURST_MAX + 1),
    )
    if not rate:
        raise ValueError(f"{shown(text)} lets nothing through: write 0 for no limit")
    return _checked(text, rate)


def format_rate(rate: Rate) -> int | float | str:
    """Items per second as a number, anything else as a text."""
    text = str(rate)
    if not _NUMBER.fullmatch(text):
        return text
    return int(rate.count) if rate.count.is_integer() else rate.count


def _checked(text: str, rate: Rate) -> Rate:
    if not PERIOD_S_MIN <= rate.period_s <= PERIOD_S_MAX:
        raise ValueError(f"{shown(text)}: a period is 1ms..365d")
    if not 1 / PERIOD_S_MAX <= rate.per_s <= PER_S_MAX:
        raise ValueError(f"{shown(text)} is outside 1/365d..{PER_S_MAX:.0f}/s")
    if rate.burst is not None and not 1 <= rate.burst <= BURST_MAX:
        raise ValueError(f"{shown(text)}: a burst is 1..{BURST_MAX}")
    if rate.burst is not None and rate.is_quota and rate.burst > rate.count:
        raise ValueError(
            f"{shown(text)}: the burst of a quota (a period above 10s) is at most the quota"
        )
    return rate


def _parse_period(text: str, period: str) -> float:
    duration = re.sub("min$", "m", period)
    try:
        return parse_duration(duration if duration[0].isdigit() else f"1{duration}")
    except ValueError:
        raise _not_a_rate(text) from None


def _format_period(period_s: float) -> str:
    text = format_duration(period_s)
    alone = {"1s": "s", "1m": "min", "1h": "h", "1d": "d"}
    return alone.get(text, text)


def _not_a_rate(text: str) -> ValueError:
    return ValueError(
        f"{shown(text)} is not a rate: write 100 (items per second), 100/10s, 5 requests/s, "
        "100000/d or 20/s burst 100; 0: no limit"
    )


RateLimit = Annotated[Rate, PlainValidator(parse_rate), PlainSerializer(format_rate)]
"""A rate in the settings."""
