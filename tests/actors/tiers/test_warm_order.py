"""What the order of due slices costs; what it must do is said by the suite of the warm queue."""

from actors.model.slices import Slice
from actors.tiers.warm_queue import HEADS_SPARE, DueSlices
from tests.conformance.warm_rig import make_run, places, whole

NO_FLOWS: frozenset[str] = frozenset()


def take(due: DueSlices, items: int, without: frozenset[str] = NO_FLOWS) -> list[Slice]:
    return due.take(items, 10**9, without)


def test_heads_are_as_many_as_flows_however_much_passes_one_that_waits() -> None:
    due = DueSlices()
    due.push(whole(make_run(1, 1, priority=9)))
    for number in range(2, 500):
        due.push(whole(make_run(number, 1, priority=1)))
        assert places(take(due, 1)) == [(number, 0, 1)]
        assert len(due._heads) <= 2 + HEADS_SPARE
    assert places(take(due, 1)) == [(1, 0, 1)]
    assert not due._flows


def test_flow_that_is_left_out_is_listed_once_after_each_take() -> None:
    due = DueSlices()
    for number in range(1, 101):
        due.push(whole(make_run(number, 1, flow="paused")))
    for number in range(101, 201):
        due.push(whole(make_run(number, 1, flow="f")))
        assert places(take(due, 9, frozenset(["paused"]))) == [(number, 0, 1)]
        assert len(due._heads) == 1
    assert len(take(due, 200)) == 100


def test_slices_of_the_same_place_come_out_as_they_came() -> None:
    due = DueSlices()
    run = make_run(1, 3)
    twins = [whole(run), Slice(run, 0b1), whole(run)]
    for twin in twins:
        due.push(twin)
    assert take(due, 100) == twins


def test_what_matches_goes_and_the_rest_keeps_its_order() -> None:
    due = DueSlices()
    runs = [make_run(number, 1, flow="ab"[number % 2]) for number in (5, 3, 4, 1, 2, 6)]
    for run in runs:
        due.push(whole(run))
    gone = due.take_matching(lambda slice_: slice_.run is runs[3] or slice_.run is runs[0])
    assert sorted(places(gone)) == [(1, 0, 1), (5, 0, 1)]
    assert places(take(due, 100)) == [(2, 0, 1), (3, 0, 1), (4, 0, 1), (6, 0, 1)]
    assert due.take_matching(lambda _: True) == []
