"""How many workers: the decision as a table, and the same against simulated destinations."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.config.queue import WorkersSettings
from actors.workers.adaptive import AdaptiveCount, Ewma, Load, first_count, next_best_s, next_count

CORES = 4


def workers(**changes: Any) -> WorkersSettings:
    return WorkersSettings.model_validate({"adaptive": True} | changes)


def load(
    latency: float = 1.0, backlog: int = 100, busy: int = 1000, sends: int = 1000, best: float = 1.0
) -> Load:
    return Load(backlog, busy, sends, latency, best)


@pytest.mark.parametrize(
    "settings, count",
    [
        (workers(adaptive=False), 8),
        (workers(adaptive=False, count=3), 3),
        (workers(adaptive=False, count=500, max=10), 500),
        (workers(), 8),
        (workers(count=20), 20),
        (workers(count=100), 32),
        (workers(max=5), 5),
        (workers(min=10), 10),
        (workers(min=100), 100),
    ],
)
def test_a_group_starts_with_what_is_set_or_follows_from_the_cores(
    settings: WorkersSettings, count: int
) -> None:
    assert first_count(settings, CORES) == count


@pytest.mark.parametrize(
    "count, seen, expected, why",
    [
        (8, load(), 10, "work waits and the destination keeps up"),
        (1, load(), 2, "at least by one"),
        (8, load(latency=1.5), 10, "still calm"),
        (8, load(latency=1.51), 8, "not calm: hold"),
        (8, load(latency=2.5), 8, "not slow yet: hold"),
        (8, load(latency=2.51), 6, "slow: fall"),
        (8, load(latency=9, backlog=0, busy=8), 6, "slow without a backlog: fall"),
        (2, load(latency=1.4), 2, "one more of two could be too many: hold"),
        (2, load(latency=1.3), 3, "one more of two cannot be too many"),
        (8, load(backlog=0), 8, "nothing waits: hold"),
        (8, load(backlog=0, busy=5), 8, "more than half are busy: hold"),
        (8, load(backlog=0, busy=4), 6, "half are idle: fall"),
        (8, load(busy=7), 8, "a worker is idle, more would be, too: hold"),
        (8, load(sends=15), 8, "too few sends to tell: hold"),
        (8, load(latency=9, sends=15), 8, "too few sends to tell: hold"),
        (2, load(sends=7), 2, "too few sends to tell: hold"),
        (8, load(sends=0, latency=0, best=0), 8, "nothing was sent: hold"),
        (32, load(), 32, "the maximum"),
        (30, load(), 32, "up to the maximum"),
        (1, load(latency=9), 1, "the minimum"),
        (1, load(backlog=0, busy=0), 1, "the minimum"),
        (99, load(sends=0), 32, "a maximum that was lowered"),
    ],
)
def test_next_count(count: int, seen: Load, expected: int, why: str) -> None:
    assert next_count(count, seen, workers(), CORES) == expected, why


def test_a_fixed_group_keeps_its_count() -> None:
    assert next_count(8, load(), workers(adaptive=False, count=3), CORES) == 3
    assert next_count(3, load(latency=9), workers(adaptive=False, count=3), CORES) == 3


@pytest.mark.parametrize(
    "count, seen, best",
    [
        (8, load(latency=0.8), 0.8),
        (8, load(latency=3), 1.0),
        (8, load(latency=3, best=0), 3),
        (1, load(latency=3), 3),
        (8, load(latency=0.8, backlog=0), 1.0),
        (8, load(latency=0.8, sends=15), 1.0),
    ],
)
def test_the_best_latency_is_learnt_under_load_and_anew_at_the_minimum(
    count: int, seen: Load, best: float
) -> None:
    assert next_best_s(count, seen, workers()) == best


@given(st.integers(1, 400), st.floats(1.0, 2.0), st.floats(0.5, 200))
def test_no_step_is_undone_by_the_next_one(count: int, floor: float, knee: float) -> None:
    """A destination whose latency grows in proportion past a knee, at its worst."""

    def step(count: int) -> int:
        seen = load(latency=max(floor, count / knee), busy=count)
        return next_count(count, seen, workers(max=1000), CORES)

    after = step(count)
    if after > count:
        assert step(after) >= after
    elif after < count:
        assert step(after) <= after or after < step(after) < count


def test_ewma_follows() -> None:
    mean = Ewma(0.5)
    assert mean.value is None
    mean.add(4)
    assert mean.value == 4
    mean.add(8)
    assert mean.value == 6
    for _ in range(100):
        mean.add(1)
    assert mean.value == pytest.approx(1)


# Simulations: in each round every worker sends a few times.


def simulate(
    group: AdaptiveCount,
    latency: Callable[[int], float],
    rounds: int,
    backlog: int = 1000,
    wanted: int | None = None,
) -> list[int]:
    """The count after each round; `wanted`: so many workers have something to do."""
    counts = []
    for _ in range(rounds):
        busy = group.count if wanted is None else min(wanted, group.count)
        # A latency that trembles by 10 %, the same in every run of the test.
        for number in range(4 * busy):
            group.sent(latency(busy) * (0.9 + 0.2 * (number * 7 % 11) / 10))
        counts.append(group.decide(backlog, busy))
    return counts


def knee_at(knee: int, base_s: float = 0.1) -> Callable[[int], float]:
    return lambda busy: base_s * max(1.0, busy / knee)


@pytest.mark.parametrize("knee", [1, 2, 5, 16, 50])
@pytest.mark.parametrize("first", [1, 8, 100])
def test_it_settles_where_the_destination_has_its_knee(knee: int, first: int) -> None:
    group = AdaptiveCount(workers(count=first, max=200), CORES)
    counts = simulate(group, knee_at(knee), 150)
    assert len(set(counts[-30:])) == 1, "it flaps"
    # Begun past the knee it knows no better latency: that it stands still is all that is asked.
    if first <= knee:
        assert knee <= counts[-1] <= 2 * knee


def test_it_reaches_the_maximum_where_there_is_no_knee() -> None:
    group = AdaptiveCount(workers(count=1), CORES)
    assert simulate(group, lambda _: 0.1, 40)[-1] == 8 * CORES


def test_it_comes_down_when_idle_and_back_when_there_is_work() -> None:
    group = AdaptiveCount(workers(count=4, max=64), CORES)
    busy = simulate(group, knee_at(16), 60)[-1]
    assert simulate(group, knee_at(16), 30, backlog=0, wanted=0)[-1] == 1
    assert simulate(group, knee_at(16), 60)[-1] == pytest.approx(busy, abs=4)


def test_it_keeps_as_many_as_a_small_load_needs() -> None:
    group = AdaptiveCount(workers(count=32, max=64), CORES)
    counts = simulate(group, lambda _: 0.1, 40, backlog=0, wanted=5)
    assert len(set(counts[-10:])) == 1
    assert 5 <= counts[-1] < 10


def test_a_destination_that_slows_down_for_good_is_learnt_anew() -> None:
    group = AdaptiveCount(workers(count=4, max=64), CORES)
    before = simulate(group, knee_at(16), 60)[-1]
    counts = simulate(group, knee_at(8, base_s=1.0), 120)
    assert min(counts) == 1
    assert 8 <= counts[-1] <= 16 < before


def test_a_group_whose_breaker_is_open_keeps_its_count() -> None:
    group = AdaptiveCount(workers(count=4), CORES)
    simulate(group, knee_at(16), 5)
    before = group.count
    for _ in range(50):
        group.decide(backlog=1000, busy=0)
    assert group.count == before


def test_other_settings_count_from_the_next_decision() -> None:
    group = AdaptiveCount(workers(count=20), CORES)
    group.settings = workers(max=6)
    assert group.decide(backlog=1, busy=20) == 6
