"""What a daemon knows of its runs in the shared warm queue."""

import pytest

from actors.fleet.entered import LentOut, shrunk
from actors.model.slices import InCold, InJournal, ItemError, LentRun, Slice, item_bits
from forebay import encode_run
from forebay.run import read_head


def make(position: int, items: int = 10, token: int = 1) -> Slice:
    data = encode_run([b"x"] * items, queue="q")
    run = LentRun(read_head(data), data, InJournal(token, position))
    return Slice(run, item_bits(0, items))


@pytest.fixture
def out() -> LentOut:
    return LentOut()


def test_what_has_ended_is_gone_and_what_stays_has_its_new_attempt(out: LentOut) -> None:
    whole = make(4096)
    out.add("q", [whole])
    failed = Slice(whole.run, 0b11, 1, 500, (ItemError(1, 2, "no"),))
    out.gone("q", Slice(whole.run, 0b1111), [failed])
    assert out.positions("q") == {4096: item_bits(4, 10) | 0b11}
    assert [(s.bits, s.attempt) for s in out.slices("q")] == [(0b11, 1), (item_bits(4, 10), 0)]
    assert out.items_out("q") == 8
    out.gone("q", Slice(whole.run, item_bits(0, 10)))
    assert out.queues == []


def test_what_is_entered_twice_is_out_once(out: LentOut) -> None:
    whole = make(4096)
    out.add("q", [whole])
    out.add("q", [Slice(whole.run, 0b1, 2)])
    assert out.items_out("q") == 10
    assert sorted((s.bits, s.attempt) for s in out.slices("q"))[0] == (0b1, 2)


def test_a_slice_of_an_earlier_life_is_this_lifes(out: LentOut) -> None:
    mine = make(4096, token=2)
    out.add("q", [shrunk(mine, 0b111)])  # type: ignore[list-item]
    former = Slice(LentRun(mine.run.head, mine.run.data, InJournal(1, 4096)), 0b110, 3)
    found = out.own("q", former)
    assert found is not None
    assert (found.run, found.bits, found.attempt) == (mine.run, 0b110, 3)


def test_items_that_are_not_out_are_not_its_own(out: LentOut) -> None:
    mine, other = make(4096), make(8192)
    out.add("q", [shrunk(mine, 0b111)])  # type: ignore[list-item]
    assert out.own("q", Slice(mine.run, 0b11000)) is None
    assert out.own("q", other) is None
    assert out.own("p", mine) is None
    half = out.own("q", Slice(mine.run, 0b1100))
    assert half is not None
    assert half.bits == 0b100


def test_another_run_at_the_same_position_is_not_taken_for_it(out: LentOut) -> None:
    mine, stranger = make(4096), make(4096)
    out.add("q", [mine])
    assert out.own("q", stranger) is None
    assert out.run_at("q", 4096, stranger.run.head.run_id) is None
    assert out.run_at("q", 4096, mine.run.head.run_id) is mine.run


def test_rows_are_known_by_their_locks_until_these_are_over(out: LentOut) -> None:
    one = make(1)
    rows = [
        Slice(LentRun(one.run.head, one.run.data, InCold(row, b"l")), 1) for row in (b"a", b"b")
    ]
    out.add("q", rows)
    assert [(queue, lock, sorted(ids)) for queue, lock, ids in out.rows()] == [
        ("q", b"l", [b"a", b"b"])
    ]
    out.gone("q", rows[0])
    assert out.locks("q") == [b"l"]
    out.forget_locks([b"l"])
    assert out.rows() == []
    assert out.row_queues == []


def test_what_was_leased_again_has_moved_on_from_what_is_heard_late(out: LentOut) -> None:
    whole = make(4096)
    out.add("q", [whole])
    # One is done, one has failed twice: of its first failure, on another host, one hears later.
    out.gone("q", Slice(whole.run, 0b001, 1))
    twice = Slice(whole.run, 0b010, 2, 900, (ItemError(2, 3, "again"),))
    out.gone("q", Slice(whole.run, 0b010, 1), [twice])
    assert out.current("q", 4096, 0) == item_bits(2, 10)
    assert out.current("q", 4096, 2) == item_bits(1, 10)
    assert out.current("q", 1, 0) == 0
