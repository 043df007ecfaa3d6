"""Samples: what every queue looked like, every 5 s for the last hour, and what follows from them.

A ring of fixed length: one column of times, and for each queue its numbers, packed. A queue takes
35 KB for a whole hour, so that the number of queues is bounded; the daemon as a whole always has a
place. A queue has one from its first item on. When all are taken, it gets the place of one that
has held nothing and moved nothing for the whole hour, or none. Nothing is durable: the hour begins
when the daemon does.

Plain data, written by the sampler alone. Rates are differences between two samples, and never
below zero, whatever a store that was away has said meanwhile.
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
"""The daemon as a whole: no queue has that name."""
RATE_S: Final = 60.0
_GAUGE_MAX: Final = 2**32 - 1


class Sample(NamedTuple):
    """One queue, or the daemon, at one moment."""

    at_ms: int
    accepted: int
    """The first three are totals, the others what there is at that moment, in items."""
    delivered: int
    dead: int
    spooled: int
    scheduled: int
    warm: int
    cold: int
    running: int
    oldest_age_s: int
    """Of what waits in warm or cold; 0: nothing does."""

    @property
    def held(self) -> int:
        return self.spooled + self.scheduled + self.warm + self.cold + self.running


P = TypeVar("P")


class Rates(NamedTuple):
    """Items a second."""

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
        """Packed in place: with an array made for each, 500 queues took 5 ms, not 1."""
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
        """One of each queue, and of the whole; a queue that is left out is forgotten."""
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
        """The samples of a queue, oldest first, of at most so many seconds back."""
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
    """Between the first and the last; 0 where there are not two."""
    if len(samples) < 2 or samples[-1].at_ms <= samples[0].at_ms:
        return Rates(0.0, 0.0, 0.0)
    first, last = samples[0], samples[-1]
    seconds = (last.at_ms - first.at_ms) / 1000
    return Rates(*(max(0, getattr(last, n) - getattr(first, n)) / seconds for n in _TOTALS))


def sample_of(entry: Mapping[str, int], at_ms: int, oldest_ms: int | None) -> Sample:
    """Of an entry of the report (actors/spooler/report.py)."""
    age_s = 0 if oldest_ms is None else max(0, at_ms - oldest_ms) // 1000
    return Sample._make((at_ms, *_numbers(entry), age_s))


def thinned(samples: Sequence[P], points_max: int) -> list[P]:
    """Every second, third … of them, the newest always among them: what a small chart can show."""
    step = max(1, -(-len(samples) // points_max))
    return list(samples[::-1][::step][::-1])
