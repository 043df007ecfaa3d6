"""What the benchmarks say of their figures, and what the demonstration says of its files."""

from pathlib import Path

import pytest

from bench.figures import Goal, Row, Samples, percentile
from bench.sync_trace import CHUNK_HEAD_BYTES, SyncTrace


def row(*, ours: list[float], limit: list[float] | None, goal: Goal | None) -> Row:
    limits = None if limit is None else Samples.of(limit)
    return Row("a", "", "items/s", Samples.of(ours), "", limits, goal)


def test_ratio_is_taken_round_by_round() -> None:
    """The second round had half the machine: the ratio does not care."""
    measured = row(ours=[100, 50, 100], limit=[200, 100, 200], goal=None).ratio

    assert measured is not None
    assert measured.values == (0.5, 0.5, 0.5)


def test_spread_is_a_share_of_the_median() -> None:
    assert Samples.of([90, 100, 120]).spread == pytest.approx(0.3)


@pytest.mark.parametrize(
    "goal,is_met",
    [
        (None, None),
        (Goal(value_min=100), True),
        (Goal(value_min=101), False),
        (Goal(value_max=99), False),
        (Goal(ratio_min=0.5), True),
        (Goal(ratio_max=0.4), False),
        (Goal(value_min=100, ratio_min=0.6), False),
    ],
)
def test_goal_is_met_when_all_of_it_holds(goal: Goal | None, is_met: bool | None) -> None:
    assert row(ours=[100], limit=[200], goal=goal).is_met is is_met


def test_goal_on_a_ratio_is_short_without_a_limit() -> None:
    assert row(ours=[100], limit=None, goal=Goal(ratio_min=0.1)).is_met is False


@pytest.mark.parametrize("share,value", [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.0, 1.0)])
def test_percentile_is_a_value_that_was_measured(share: float, value: float) -> None:
    assert percentile([float(n) for n in range(1, 101)], share) == value


def test_trace_is_seen_by_who_opened_it_elsewhere(tmp_path: Path) -> None:
    writer, reader = SyncTrace(tmp_path / "syncs"), SyncTrace(tmp_path / "syncs")
    writer.add(5000)
    mark = reader.mark()
    for size in (4096, 0, CHUNK_HEAD_BYTES, 8192):
        writer.add(size)

    syncs = reader.since(mark)

    assert syncs.count == 4
    assert syncs.group_bytes == [4096, 8192]
