"""Figures with their spread, and whether a goal was met. No clocks and no printing here."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Samples:
    """One figure, measured once a round."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Samples":
        return cls(tuple(values))

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """How far the rounds lie apart: the largest less the smallest, as a share of the median."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0

    def over(self, limit: "Samples") -> "Samples":
        """Round by round: neighbours in time had the same machine."""
        pairs = zip(self.values, limit.values, strict=True)
        return Samples.of([own / other for own, other in pairs])


@dataclass(frozen=True, slots=True)
class Goal:
    """What a row has to reach; everything that is given must hold."""

    value_min: float | None = None
    value_max: float | None = None
    ratio_min: float | None = None
    ratio_max: float | None = None

    def is_met(self, value: float, ratio: float | None) -> bool:
        return all(
            (
                self.value_min is None or value >= self.value_min,
                self.value_max is None or value <= self.value_max,
                self.ratio_min is None or (ratio is not None and ratio >= self.ratio_min),
                self.ratio_max is None or (ratio is not None and ratio <= self.ratio_max),
            )
        )


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    group: str
    """The letter of the benchmark."""
    what: str
    unit: str
    ours: Samples
    limit_name: str = ""
    limit: Samples | None = None
    goal: Goal | None = None
    syncs_per_1000: float | None = None
    """fdatasyncs of the daemon for 1,000 items: what is promised for the figure."""
    limit_syncs_per_1000: float | None = None

    @property
    def ratio(self) -> Samples | None:
        return None if self.limit is None else self.ours.over(self.limit)

    @property
    def is_met(self) -> bool | None:
        """None: the row is there for information."""
        if self.goal is None:
            return None
        ratio = self.ratio
        return self.goal.is_met(self.ours.median, None if ratio is None else ratio.median)

    def as_dict(self) -> dict[str, Any]:
        ratio = self.ratio
        return {
            "group": self.group,
            "what": self.what,
            "unit": self.unit,
            "forebay": self.ours.values,
            "limit_name": self.limit_name,
            "limit": None if self.limit is None else self.limit.values,
            "ratio": None if ratio is None else ratio.median,
            "goal": None if self.goal is None else asdict(self.goal),
            "met": self.is_met,
            "fdatasyncs_per_1000_items": self.syncs_per_1000,
            "limit_fdatasyncs_per_1000_items": self.limit_syncs_per_1000,
        }


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return sorted_values[max(0, math.ceil(len(sorted_values) * share) - 1)]
