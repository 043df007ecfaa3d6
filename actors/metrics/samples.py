"""Samples: the state of every queue, every 5 s for the last hour, and rates derived from them.

A ring of fixed length: one column of times, and per queue its packed numbers. A queue takes 35 KB
for a whole hour, so the number of queues is bounded; the daemon as a whole always has a column. A
queue gets a column with its first item. If all are taken, it gets the column of a queue that has
held and moved nothing for the whole hour, or none. Nothing is durable: the hour begins when the
daemon starts.

Plain data, written by the sampler alone. Rates are differences between two samples and never
negative, even if a store was away in between.
"""

from array import array
from collections.abc import Mapping, Sequence
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple, TypeVar

EVERY_S: Final = 5.0
SAMPLES_MAX: Final = 720
QUEUES_MAX: Final = 512
WHOLE: Final = ""
"""The daemon as a whole; not a valid queue name."""
RATE_S: Final = 60.0
_GAUGE_MAX: Final = 2**32 - 1


class Sample(NamedTuple):
    """One queue, or the daemon, at one moment."""

    at_ms: int
    accepted: int
    """The first three are totals, the others the present number of items."""
    delivered: int
    dead: int
    spooled: int
    scheduled: int
    warm: int
    cold: int
    running: int
    oldest_age_s: int
    """Age of the oldest item in warm or cold; 0: there is none."""

    @property
    def held(self) -> int:
        return self.spooled + self.scheduled + self.warm + self.cold + self.running


P = TypeVar("P")


class Rates(NamedTuple):
    """Items per second."""

    accepted: float
    delivered: float
    dead: float


_TOTALS: Final = ("accepted", "delivered", "dead")
_GAUGES: Final = ("spooled", "scheduled", "warm", "cold", "running", "oldest_age_s")
_PACKED_TOTALS: Final = Struct(f"={len(_TOTALS)}q")
_PACKED_GAUGES: Final = Struct(f"={len(_GAUGES)}I")
_numbers: Final = itemgetter(*_TOTALS, *_GAUGES[:-1])


class _Column:
    """One queue's numbers, by place in the ring."""

    __slots__ = ("first", "gauges", "last_busy", "totals")

    def __init__(self, tick: int) -> None:
        self.first = tick
        self.last_busy = tick
        self.totals = array("q", bytes(8 * SAMPLES_MAX * len(_TOTALS)))
        self.gauges = array("I", bytes(4 * SAMPLES_MAX * len(_GAUGES)))

    def put(self, tick: int, sample: Sample) -> None:
        """Packs in place: with one array per sample, 500 queues took 5 ms, not 1."""
        place = tick % SAMPLES_MAX
        totals, gauges = sample[1 : 1 + len(_TOTALS)], sample[1 + len(_TOTALS) :]
        before = (tick - 1) % SAMPLES_MAX * _PACKED_TOTALS.size
        if any(gauges) or totals != _PACKED_TOTALS.unpack_from(self.totals, before):
            self.last_busy = tick
        if max(gauges) > _GAUGE_MAX:
            gauges = tuple(min(value, _GAUGE_MAX) for value in gauges)
        _PACKED_TOTALS.pack_into(self.totals, place * _PACKED_TOTALS.size, *totals)
        _PACKED_GAUGES.pack_into(self.gauges, place * _PACKED_GAUGES.size, *gauges)

    def get(self, tick: int, at_ms: int) -> Sample:
        place = tick % SAMPLES_MAX
        at, then = place * len(_TOTALS), place * len(_GAUGES)
        totals = self.totals[at : at + len(_TOTALS)]
        return Sample._make((at_ms, *totals, *self.gauges[then : then + len(_GAUGES)]))


class Samples:
    def __init__(self) -> None:
        self._tick = -1
        self._times = array("q", bytes(8 * SAMPLES_MAX))
        self._columns: dict[str, _Column] = {}

    def add(self, samples: Mapping[str, Sample], at_ms: int) -> None:
        """Adds one sample per queue and one of the daemon; forgets queues that are left out."""
        self._tick += 1
        self._times[self._tick % SAMPLES_MAX] = at_ms
        for gone in self._columns.keys() - samples.keys():
            del self._columns[gone]
        for queue, sample in samples.items():
            column = self._columns.get(queue)
            if column is None and (queue == WHOLE or any(sample[1:])):
                column = self._place(queue)
            if column is not None:
                column.put(self._tick, sample)

    def queues(self) -> list[str]:
        return sorted(queue for queue in self._columns if queue != WHOLE)

    def of(self, queue: str, seconds: float = SAMPLES_MAX * EVERY_S) -> list[Sample]:
        """The samples of a queue, oldest first, at most this many seconds back."""
        column = self._columns.get(queue)
        if column is None:
            return []
        first = max(column.first, self._tick - SAMPLES_MAX + 1)
        after_ms = self._times[self._tick % SAMPLES_MAX] - seconds * 1000
        times = ((tick, self._times[tick % SAMPLES_MAX]) for tick in range(first, self._tick + 1))
        return [column.get(tick, at_ms) for tick, at_ms in times if at_ms >= after_ms]

    def rates(self, queue: str, seconds: float = RATE_S) -> Rates:
        return rates(self.of(queue, seconds))

    def _place(self, queue: str) -> _Column | None:
        if len(self._columns) > QUEUES_MAX and queue != WHOLE:
            idle = next(
                (
                    name
                    for name, column in self._columns.items()
                    if name != WHOLE and self._tick - column.last_busy >= SAMPLES_MAX
                ),
                None,
            )
            if idle is None:
                return None
            del self._columns[idle]
        column = self._columns[queue] = _Column(self._tick)
        return column


def rates(samples: Sequence[Sample]) -> Rates:
    """Rates between the first and the last sample; 0 with fewer than two."""
    if len(samples) < 2 or samples[-1].at_ms <= samples[0].at_ms:
        return Rates(0.0, 0.0, 0.0)
    first, last = samples[0], samples[-1]
    seconds = (last.at_ms - first.at_ms) / 1000
    return Rates(*(max(0, getattr(last, n) - getattr(first, n)) / seconds for n in _TOTALS))


def sample_of(entry: Mapping[str, int], at_ms: int, oldest_ms: int | None) -> Sample:
    """Makes a sample of an entry of the report (actors/spooler/report.py)."""
    age_s = 0 if oldest_ms is None else max(0, at_ms - oldest_ms) // 1000
    return Sample._make((at_ms, *_numbers(entry), age_s))


def thinned(samples: Sequence[P], points_max: int) -> list[P]:
    """Every second, third … sample, always including the newest: as many as a small chart shows."""
    step = max(1, -(-len(samples) // points_max))
    return list(samples[::-1][::step][::-1])
