"""The ring of samples, the rates between them, and where the spool is going."""

import pytest

from actors.metrics.forecast import HORIZON_S, forecast
from actors.metrics.samples import (
    EVERY_S,
    QUEUES_MAX,
    SAMPLES_MAX,
    WHOLE,
    Rates,
    Sample,
    Samples,
    rates,
    sample_of,
    thinned,
)

START_MS = 1_700_000_000_000


def sample(at_ms: int = START_MS, **given: int) -> Sample:
    empty = dict.fromkeys(Sample._fields[1:], 0)
    return Sample(at_ms=at_ms, **(empty | given))


def after(ticks: int) -> int:
    return START_MS + round(ticks * EVERY_S * 1000)


def filled(ticks: int, **given: int) -> Samples:
    """A queue `q` that accepts 10 items a tick."""
    samples = Samples()
    for tick in range(ticks):
        at_ms = after(tick)
        entry = sample(at_ms, accepted=10 * (tick + 1), warm=tick, **given)
        samples.add({WHOLE: entry, "q": entry}, at_ms)
    return samples


class TestSamples:
    def test_come_out_as_they_went_in_oldest_first(self) -> None:
        samples = filled(3, oldest_age_s=7)
        assert samples.of("q") == [
            sample(after(tick), accepted=10 * (tick + 1), warm=tick, oldest_age_s=7)
            for tick in range(3)
        ]
        assert samples.of(WHOLE) == samples.of("q")

    def test_the_ring_forgets_what_is_older_than_an_hour(self) -> None:
        samples = filled(SAMPLES_MAX + 5)
        found = samples.of("q")
        assert len(found) == SAMPLES_MAX
        assert [found[0].warm, found[-1].warm] == [5, SAMPLES_MAX + 4]
        assert [one.at_ms for one in found] == [after(t) for t in range(5, SAMPLES_MAX + 5)]

    def test_only_so_many_seconds_are_given(self) -> None:
        assert [one.warm for one in filled(100).of("q", seconds=10)] == [97, 98, 99]

    def test_a_queue_that_comes_later_has_no_samples_from_before(self) -> None:
        samples = filled(3)
        samples.add({WHOLE: sample(), "q": sample(), "late": sample(accepted=1)}, after(3))
        samples.add({WHOLE: sample(), "q": sample(), "late": sample(accepted=2)}, after(4))
        assert [(one.at_ms, one.accepted) for one in samples.of("late")] == [
            (after(3), 1),
            (after(4), 2),
        ]

    def test_a_queue_that_never_had_anything_takes_no_place(self) -> None:
        samples = Samples()
        samples.add({WHOLE: sample(), "idle": sample()}, START_MS)
        assert samples.queues() == []
        assert len(samples.of(WHOLE)) == 1

    def test_a_queue_that_is_gone_is_forgotten(self) -> None:
        samples = filled(3)
        samples.add({WHOLE: sample()}, after(3))
        assert samples.of("q") == []
        assert len(samples.of(WHOLE)) == 4

    def test_places_are_bounded_and_one_that_was_idle_for_an_hour_is_given_away(self) -> None:
        samples = Samples()
        queues = {f"q{number}": sample(accepted=1) for number in range(QUEUES_MAX)}
        late = {"late": sample(accepted=1, warm=1)}
        samples.add({WHOLE: sample()} | queues | late, START_MS)
        assert "late" not in samples.queues()
        assert len(samples.queues()) == QUEUES_MAX
        busy = {name: sample(accepted=1, warm=1) for name in queues if name != "q7"}
        for tick in range(1, SAMPLES_MAX + 1):
            assert samples.of("late") == []
            samples.add({WHOLE: sample(), "q7": sample(accepted=1)} | busy | late, after(tick))
        assert samples.of("q7") == []
        assert [one.warm for one in samples.of("late")] == [1]
        assert len(samples.queues()) == QUEUES_MAX

    def test_a_number_that_is_too_large_is_kept_as_large_as_can_be(self) -> None:
        samples = Samples()
        samples.add({WHOLE: sample(accepted=2**40, warm=2**40)}, START_MS)
        (found,) = samples.of(WHOLE)
        assert (found.accepted, found.warm) == (2**40, 2**32 - 1)


class TestRates:
    def test_are_differences_over_the_time_between(self) -> None:
        assert filled(13).rates("q", seconds=60) == Rates(2.0, 0.0, 0.0)

    def test_are_nothing_without_two_samples(self) -> None:
        assert rates([]) == rates([sample(accepted=5)]) == Rates(0.0, 0.0, 0.0)
        assert rates([sample(accepted=5), sample(accepted=9)]) == Rates(0.0, 0.0, 0.0)

    def test_are_never_below_zero(self) -> None:
        fallen = [sample(after(0), delivered=100), sample(after(1), delivered=90)]
        assert rates(fallen) == Rates(0.0, 0.0, 0.0)


def test_a_sample_is_made_of_an_entry_of_the_report() -> None:
    entry = dict.fromkeys(
        ("accepted", "delivered", "dead", "spooled", "scheduled", "warm", "cold", "running"), 2
    ) | {"held": 10, "dropped": 99}
    made = sample_of(entry, START_MS, START_MS - 12_345)
    assert (made.accepted, made.running, made.held, made.oldest_age_s) == (2, 2, 10, 12)
    assert sample_of(entry, START_MS, None).oldest_age_s == 0
    assert sample_of(entry, START_MS, START_MS + 9).oldest_age_s == 0


def test_thinning_keeps_the_newest() -> None:
    assert thinned([1, 2, 3, 4, 5], 3) == [1, 3, 5]
    assert thinned([1, 2, 3, 4], 3) == [2, 4]
    assert thinned([1, 2], 5) == [1, 2]
    assert thinned([], 5) == []


class TestForecast:
    def line(self, start: float, slope: float, seconds: int = 60) -> list[tuple[float, float]]:
        return [(float(at), start + slope * at) for at in range(0, seconds + 1, 5)]

    def test_it_fills_until_the_limit(self) -> None:
        found = forecast(self.line(1000, 10), 10_000)
        assert found.direction == "full"
        assert found.seconds == pytest.approx((10_000 - 1600) / 10)
        assert found.bytes_a_second == pytest.approx(10)

    def test_it_empties(self) -> None:
        found = forecast(self.line(1000, -10), 10_000)
        assert found.direction == "empty"
        assert found.seconds == pytest.approx(40)

    def test_it_is_full_or_empty_already(self) -> None:
        assert forecast(self.line(10_000, 0), 10_000)[:2] == ("full", 0.0)
        assert forecast(self.line(0, 0), 10_000)[:2] == ("empty", 0.0)

    def test_what_is_flat_or_leads_nowhere_in_a_week_is_steady(self) -> None:
        assert forecast(self.line(500, 0), 10_000)[:2] == ("steady", None)
        slow = 9000 / (2 * HORIZON_S)
        assert forecast(self.line(500, slow), 10_000)[:2] == ("steady", None)
        assert forecast(self.line(500, 10), 0).direction == "steady"

    def test_too_little_says_nothing(self) -> None:
        assert forecast([], 10).direction == "unknown"
        assert forecast(self.line(0, 10, seconds=10), 10_000).direction == "unknown"

    def test_only_the_last_minutes_count(self) -> None:
        rising = [(float(at), float(at * 100)) for at in range(-900, -300, 5)]
        falling = [(float(at), 100_000.0 - 10 * at) for at in range(0, 300, 5)]
        found = forecast(rising + falling, 10**6)
        assert found.direction == "empty"
        assert found.bytes_a_second == pytest.approx(-10)

    def test_one_burst_does_not_swing_it(self) -> None:
        points = self.line(1000, -2)
        points[6] = (30.0, 1300.0)
        assert forecast(points, 10_000).direction == "empty"
