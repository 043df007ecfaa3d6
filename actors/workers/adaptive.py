"""How many workers a queue has: as many as help, no more.

The count grows by a quarter while items wait, all workers are busy and the destination answers
about as fast as it ever did. It falls by a quarter when the destination has become much slower or
when most workers are idle. Between the two lies a band in which nothing changes.

The count does not oscillate, by arithmetic. Past its knee a destination slows down at worst in
proportion to the workers; the count grows only if that latency would stay well below the line at
which the count falls. So a step up is not undone by the next step down, nor a step down by one up,
even if latencies vary.

When a destination has become slower for good, the best latency must be learnt again, or the count
would stay at its minimum forever. It is learnt at the minimum, where the workers cannot be the
cause. Letting the best drift towards the present was rejected: past the knee every slow latency
would become normal in time, and the count would creep up to its maximum.

It cannot tell a slow destination from bigger batches (both are learnt on the way down), and it
cannot see that it began past the knee: it knows no better latency until it was idle once.
"""

from dataclasses import dataclass, replace
from typing import Final

from actors.config.queue import WorkersSettings

COUNT_PER_CORE: Final = 2
MAX_PER_CORE: Final = 8
LATENCY_WEIGHT: Final = 0.2
SENDS_MIN: Final = 8
"""After this many sends, earlier latencies make up a sixth of the smoothed latency."""
CALM: Final = 1.5
"""Up to this multiple of the best latency, more workers are tried."""
WORST: Final = 2.0
"""More workers are not tried if the latency could reach this multiple of the best."""
SLOW: Final = 2.5
"""Above this multiple of the best latency, there are too many workers."""


class Ewma:
    """An exponentially weighted mean: each new value has `weight`, all earlier ones the rest."""

    __slots__ = ("_weight", "value")

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self.value: float | None = None
        """None before the first sample."""

    def add(self, sample: float) -> None:
        if self.value is None:
            self.value = sample
        else:
            self.value += self._weight * (sample - self.value)


@dataclass(frozen=True, slots=True)
class Load:
    """What was seen since the last decision."""

    backlog: int
    """Items waiting for a worker now."""
    busy: int
    """The highest number of workers sending at once."""
    sends: int
    """Sends that have ended."""
    latency_s: float
    """Smoothed latency of a send; 0 before the first send."""
    best_s: float
    """The best smoothed latency; 0 if unknown."""

    def tells_of(self, count: int) -> bool:
        """Whether the latency is that of `count` workers: sends begun before the last change of the
        count have ended."""
        return self.sends >= max(SENDS_MIN, 2 * count)


class AdaptiveCount:
    """One group's count and the data for the next decision. Its owner sets the pace."""

    def __init__(self, settings: WorkersSettings, cores: int) -> None:
        self._cores = cores
        self.settings = settings
        """May be replaced; the next decision uses it."""
        self.count = first_count(settings, cores)
        self._latency = Ewma(LATENCY_WEIGHT)
        self._best_s = 0.0
        self._sends = 0

    @property
    def latency_s(self) -> float | None:
        """Smoothed latency of a send; None before the first send."""
        return self._latency.value

    def sent(self, latency_s: float) -> None:
        """A send has ended, with an answer or a timeout."""
        self._latency.add(latency_s)
        self._sends += 1

    def decide(self, backlog: int, busy: int) -> int:
        """Decides the count from now on."""
        seen = Load(backlog, busy, self._sends, self._latency.value or 0.0, self._best_s)
        self._best_s = next_best_s(self.count, seen, self.settings)
        count = next_count(
            self.count, replace(seen, best_s=self._best_s), self.settings, self._cores
        )
        if count != self.count or seen.tells_of(self.count):
            self._sends = 0
        self.count = count
        return count


def first_count(settings: WorkersSettings, cores: int) -> int:
    """The count a group starts with, and keeps unless it is adaptive."""
    count = settings.count or COUNT_PER_CORE * cores
    return _within(count, settings, cores) if settings.adaptive else count


def next_count(count: int, seen: Load, settings: WorkersSettings, cores: int) -> int:
    if not settings.adaptive:
        return first_count(settings, cores)
    step = max(1, count // 4)
    if seen.backlog == 0 and seen.busy * 2 <= count:
        return _within(count - step, settings, cores)
    if not seen.best_s or not seen.tells_of(count):
        return _within(count, settings, cores)
    if seen.latency_s > SLOW * seen.best_s:
        return _within(count - step, settings, cores)
    at_worst_s = seen.latency_s * (count + step) / count
    is_calm = seen.latency_s <= CALM * seen.best_s and at_worst_s <= WORST * seen.best_s
    if seen.backlog and seen.busy >= count and is_calm:
        return _within(count + step, settings, cores)
    return _within(count, settings, cores)


def next_best_s(count: int, seen: Load, settings: WorkersSettings) -> float:
    """The best latency from now on; learnt only under load, because idle batches are small."""
    if not seen.backlog or not seen.tells_of(count):
        return seen.best_s
    if not seen.best_s or count <= settings.min:
        return seen.latency_s
    return min(seen.best_s, seen.latency_s)


def _within(count: int, settings: WorkersSettings, cores: int) -> int:
    most = max(settings.max or MAX_PER_CORE * cores, settings.min)
    return max(settings.min, min(count, most))
