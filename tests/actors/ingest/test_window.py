import pytest

from actors.ingest.window import Budget, Window


def make_window(budget: Budget, frames: int = 3, size: int = 100) -> Window:
    return Window(frames, size, budget)


def test_window_is_full_at_its_frames_or_its_bytes() -> None:
    window = make_window(Budget(1000))
    window.admit(1, 60)
    assert window.has_room(40)
    assert not window.has_room(41)
    window.admit(2, 0)
    assert window.has_room(0)
    window.admit(3, 0)
    assert not window.has_room(0)


def test_empty_window_takes_one_frame_of_any_size() -> None:
    budget = Budget(100)
    budget.taken = 100
    assert make_window(budget).has_room(10**9)


def test_budget_is_shared() -> None:
    budget = Budget(100)
    first, second = make_window(budget), make_window(budget)
    first.admit(1, 50)
    first.arrived()
    second.admit(1, 30)
    second.arrived()
    assert second.has_room(20)
    assert not second.has_room(21)
    first.release(1)
    assert second.has_room(70)


def test_everything_is_given_back() -> None:
    budget = Budget(100)
    window = make_window(budget)
    window.admit(1, 10)
    window.arrived()
    window.hand_over()
    window.admit(2, 20)
    window.drop_in_hand()
    assert 2 not in window
    assert budget.taken == 10
    window.drop_in_hand()
    assert 1 in window
    window.release(1)
    assert (len(window), budget.taken) == (0, 0)


def test_request_that_was_answered_before_it_was_handed_over_is_not_dropped_twice() -> None:
    budget = Budget(100)
    window = make_window(budget)
    window.admit(1, 10)
    window.arrived()
    window.release(1)
    window.drop_in_hand()
    assert budget.taken == 0


def test_answer_to_what_was_not_asked_is_a_bug_that_shows() -> None:
    with pytest.raises(KeyError):
        make_window(Budget(100)).release(1)


def test_budget_counts_what_has_arrived_and_not_what_is_announced() -> None:
    budget = Budget(100)
    window = make_window(budget)
    window.admit(1, 60)
    assert (len(window), budget.taken) == (1, 0)
    window.arrived()
    assert budget.taken == 60
    window.release(1)
    assert (len(window), budget.taken) == (0, 0)


def test_one_at_a_time_overdraws_the_budget() -> None:
    budget = Budget(100)
    budget.taken = 90
    assert budget.allows("small", 10)
    assert budget.allows("large", 11)
    assert not budget.allows("other", 11)
    assert budget.allows("large", 1000)
    budget.leave("small")
    assert not budget.allows("other", 11)
    budget.leave("large")
    assert budget.allows("other", 11)
