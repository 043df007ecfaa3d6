"""The promoter's line: its order, who leaves it, and how much is acquired ahead, as a table."""

import pytest

from actors.model.slices import InCold, LentRun, Slice, item_bits
from actors.ports.tiers import Limits
from actors.tiers.line import AHEAD_BYTES_MAX, ENTER_SLICES, Promotion, to_acquire
from forebay import encode_run
from forebay.run import read_head

LIMITS = Limits(1000, 1 << 30)
NOTHING = Limits(0, 0)


def make(items: int, *, priority: int = 5, flow: str = "") -> Slice:
    data = encode_run([b"x"] * items, queue="q", priority=priority, flow=flow)
    head = read_head(data)
    return Slice(LentRun(head, data, InCold(b"row", b"lock")), item_bits(0, items))


@pytest.mark.parametrize(
    "room, in_hand, expected",
    [
        (Limits(1000, 1 << 30), NOTHING, 2000),
        (NOTHING, NOTHING, 1000),
        (NOTHING, Limits(500, 0), 500),
        (NOTHING, Limits(501, 0), 0),
        (Limits(2, 200), Limits(501, 0), 501),
        (NOTHING, Limits(5000, 0), 0),
        (NOTHING, Limits(1, AHEAD_BYTES_MAX), 0),
    ],
)
def test_as_much_ahead_as_warm_takes_and_not_before_half_of_it_is_gone(
    room: Limits, in_hand: Limits, expected: int
) -> None:
    assert to_acquire(room, in_hand, LIMITS, None).items == expected


def test_what_is_ahead_takes_a_quarter_of_the_free_memory() -> None:
    assert to_acquire(NOTHING, NOTHING, LIMITS, 4000).bytes == 1000
    assert to_acquire(NOTHING, Limits(1, 900), LIMITS, 4000) == NOTHING
    assert to_acquire(NOTHING, NOTHING, LIMITS, 0) == NOTHING


def test_a_limit_of_one_item_is_worked_with() -> None:
    assert to_acquire(Limits(1, 1), NOTHING, Limits(1, 1 << 20), None).items == 2
    assert to_acquire(NOTHING, Limits(1, 10), Limits(1, 1 << 20), None) == NOTHING


def test_a_more_urgent_run_overtakes_in_the_line() -> None:
    line = Promotion()
    low, high = make(3), make(2, priority=0)
    line.join([low])
    line.join([high])
    assert line.slices == [high, low]
    assert line.items == 5


def test_what_is_entering_is_counted_until_it_has_entered() -> None:
    line = Promotion()
    first, second, later = make(3), make(2), make(4)
    line.join([first, second])
    assert line.enter() == [first, second]
    line.join([later])
    assert (line.items, line.slices) == (9, [later])
    line.entered([second])
    assert (line.items, line.slices) == (6, [second, later])


def test_a_flow_leaves_the_line_alone_and_whoever_waits_is_told() -> None:
    line = Promotion()
    kept, gone = make(3, flow="a"), make(2, flow="b")
    line.join([kept, gone])
    left = line.acquirer_told
    assert line.withdraw("c") == []
    assert not left.is_set()
    assert line.withdraw("b") == [gone]
    assert left.is_set()
    assert line.slices == [kept]
    assert line.withdraw() == [kept]
    assert line.items == 0


def test_only_what_is_more_urgent_than_the_end_of_the_line_overtakes() -> None:
    line = Promotion()
    line.overtake(0)
    assert not line.is_overtaken
    line.join([make(1, priority=5)])
    line.overtake(5)
    assert not line.is_overtaken
    line.overtake(4)
    assert line.is_overtaken
    line.seen_urgent([make(1, priority=4)])
    assert line.is_overtaken
    line.seen_urgent([make(1, priority=5)])
    assert not line.is_overtaken


@pytest.mark.parametrize("waiting", [0, 1])
def test_what_comes_while_rows_are_acquired_overtakes_what_they_are(waiting: int) -> None:
    line = Promotion()
    line.join([make(1, priority=5)] * waiting)
    line.look()
    line.overtake(5)
    line.seen_urgent([make(1, priority=5)])
    assert not line.is_overtaken
    line.look()
    line.overtake(4)
    line.overtake(7)
    line.seen_urgent([make(1, priority=5)])
    assert line.is_overtaken
    line.look()
    line.seen_urgent([make(1, priority=5)])
    assert not line.is_overtaken


def test_nobody_is_told_of_nothing() -> None:
    line = Promotion()
    line.join([make(3)])
    joined, left = line.enterer_told, line.acquirer_told
    line.join([])
    line.entered(line.enter())
    assert not joined.is_set()
    assert not left.is_set()


def test_a_long_line_is_offered_in_portions_and_its_order_stays() -> None:
    line = Promotion()
    parts = [make(1) for _ in range(ENTER_SLICES + 5)]
    line.join(parts)
    ordered = list(line.slices)
    assert line.enter() == ordered[:ENTER_SLICES]
    line.entered(ordered[2:ENTER_SLICES])
    assert line.slices == ordered[2:]
    assert (line.items, line.bytes) == (len(parts) - 2, sum(part.bytes for part in ordered[2:]))


def test_what_is_urgent_is_noticed_while_the_line_is_entering() -> None:
    line = Promotion()
    line.join([make(1, priority=5)])
    line.enter()
    line.overtake(4)
    line.seen_urgent([make(1, priority=4)])
    assert line.is_overtaken


def test_what_is_under_a_lock_that_is_over_leaves_the_line() -> None:
    line = Promotion()
    line.join([make(3)])
    line.forget({b"other"})
    assert line.items == 3
    left = line.acquirer_told
    line.forget({b"lock"})
    assert (line.items, line.bytes, line.slices) == (0, 0, [])
    assert left.is_set()
