"""Durations, counted in buckets with exponentially growing bounds, so that sums over batches give
the percentiles of items without storing any.

One addition covers all items of a slice: a search among the bounds and three sums, however many
items there are. A percentile is exact to within a bucket, at most a fifth of its value. Plain data;
the owner of a histogram adds to it, others read a frozen copy.

The cold store keeps counts by the number of their bucket: the bounds never change.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

STEPS_A_DOUBLING: Final = 4
FIRST_S: Final = 2.0**-10
"""About a millisecond."""
DOUBLINGS: Final = 22
"""The last bound is 4,096 s; longer durations are in the bucket behind it."""

BOUNDS_S: Final = tuple(
    FIRST_S * 2 ** (step / STEPS_A_DOUBLING) for step in range(DOUBLINGS * STEPS_A_DOUBLING + 1)
)
BUCKETS: Final = len(BOUNDS_S) + 1
SHOWN_EVERY: Final = 2 * STEPS_A_DOUBLING
SHOWN_BOUNDS_S: Final = BOUNDS_S[::SHOWN_EVERY]
"""The exposed bounds: each four times the one before, 12 bounds from 1 ms to 4,096 s."""

assert SHOWN_BOUNDS_S[-1] == BOUNDS_S[-1] == 4096.0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Durations of items, in seconds."""

    items: int
    average_s: float
    p50_s: float
    p95_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram at one moment."""

    counts: tuple[int, ...]
    """By bucket; the last one counts durations above all bounds."""
    sum_s: float
    max_s: float

    @property
    def items(self) -> int:
        return sum(self.counts)

    def cumulated(self) -> list[int]:
        """How many items took at most each shown bound, and the total."""
        below = list(accumulate(self.counts))
        return [*below[:-1:SHOWN_EVERY], below[-1]]

    def quantile_s(self, share: float) -> float:
        """The duration that this share of the items did not exceed; 0 if there are no items."""
        wanted = math.ceil(share * self.items)
        if wanted <= 0:
            return 0.0
        below = 0
        for at, count in enumerate(self.counts):
            if below + count >= wanted:
                return self._within(at, (wanted - below) / count)
            below += count
        return self.max_s

    def _within(self, at: int, share: float) -> float:
        """Assumes that items are spread evenly in their bucket, and none above the maximum."""
        lower = BOUNDS_S[at - 1] if at else 0.0
        upper = min(BOUNDS_S[at], self.max_s) if at < len(BOUNDS_S) else self.max_s
        return lower + max(0.0, upper - lower) * share

    def percentiles(self) -> Percentiles:
        items = self.items
        return Percentiles(
            items=items,
            average_s=self.sum_s / items if items else 0.0,
            p50_s=self.quantile_s(0.5),
            p95_s=self.quantile_s(0.95),
            p99_s=self.quantile_s(0.99),
        )

    def __add__(self, other: "Distribution") -> "Distribution":
        counts = tuple(map(sum, zip(self.counts, other.counts, strict=True)))
        return Distribution(counts, self.sum_s + other.sum_s, max(self.max_s, other.max_s))


class Histogram:
    __slots__ = ("_counts", "_max_s", "_sum_s", "items")

    def __init__(self) -> None:
        self.items = 0
        self._counts = [0] * BUCKETS
        self._sum_s = 0.0
        self._max_s = 0.0

    def add(self, seconds: float, items: int) -> None:
        """Adds items that took this long each. Clocks are set: a negative time counts as 0."""
        seconds = max(seconds, 0.0)
        self.items += items
        self._counts[bisect_left(BOUNDS_S, seconds)] += items
        self._sum_s += seconds * items
        self._max_s = max(self._max_s, seconds)

    def frozen(self) -> Distribution:
        return Distribution(tuple(self._counts), self._sum_s, self._max_s)


NOTHING: Final = Histogram().frozen()
