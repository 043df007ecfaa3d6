"""Histograms: one addition for many items, and percentiles that are right to within a bucket."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.model.latencies import BOUNDS_S, NOTHING, SHOWN_BOUNDS_S, Histogram

BUCKET = 2**0.25
"""A bucket's upper bound, as a multiple of its lower one."""


def test_bounds_grow_by_a_factor_and_those_shown_by_four() -> None:
    ratios = [upper / lower for lower, upper in itertools.pairwise(BOUNDS_S)]
    assert all(math.isclose(ratio, BUCKET) for ratio in ratios)
    assert [b / a for a, b in itertools.pairwise(SHOWN_BOUNDS_S)] == [4] * 11


def test_nothing_has_no_percentiles_and_no_average() -> None:
    empty = Histogram().frozen()
    assert empty == NOTHING
    assert empty.percentiles() == (empty.percentiles().__class__)(0, 0.0, 0.0, 0.0, 0.0)


def test_one_addition_stands_for_all_items_of_a_slice() -> None:
    once, each = Histogram(), Histogram()
    once.add(0.3, 1000)
    for _ in range(1000):
        each.add(0.3, 1)
    assert once.frozen().counts == each.frozen().counts
    assert once.frozen().sum_s == pytest.approx(each.frozen().sum_s)


@given(
    st.lists(
        st.tuples(st.floats(0.002, 4000), st.integers(1, 50)),
        min_size=1,
        max_size=50,
    ),
    st.sampled_from([0.5, 0.95, 0.99]),
)
def test_percentiles_are_right_to_within_a_bucket(
    took: list[tuple[float, int]], share: float
) -> None:
    histogram = Histogram()
    items: list[float] = []
    for seconds, count in took:
        histogram.add(seconds, count)
        items += [seconds] * count
    items.sort()
    exact = items[math.ceil(share * len(items)) - 1]
    told = histogram.frozen().quantile_s(share)
    assert exact / BUCKET * 0.999 <= told <= exact * BUCKET * 1.001
    assert told <= items[-1] * 1.000001
    assert histogram.frozen().percentiles().average_s == pytest.approx(sum(items) / len(items))


def test_what_is_longer_than_all_bounds_or_below_zero_still_counts() -> None:
    histogram = Histogram()
    histogram.add(10_000.0, 3)
    histogram.add(-5.0, 1)
    found = histogram.frozen()
    assert found.items == 4
    assert found.quantile_s(0.99) == pytest.approx(10_000)
    assert found.cumulated()[-2:] == [1, 4]
    assert found.sum_s == 30_000


def test_cumulated_counts_fit_the_shown_bounds() -> None:
    histogram = Histogram()
    chance = random.Random(1)
    times = [chance.expovariate(2.0) for _ in range(500)]
    for seconds in times:
        histogram.add(seconds, 1)
    below = [sum(seconds <= bound for seconds in times) for bound in SHOWN_BOUNDS_S]
    assert histogram.frozen().cumulated() == [*below, 500]


def test_two_add_up() -> None:
    one, other = Histogram(), Histogram()
    one.add(1.0, 2)
    other.add(3.0, 5)
    both = one.frozen() + other.frozen()
    assert (both.items, both.sum_s, both.max_s) == (7, 17.0, 3.0)
