"""Which queues' keys are looked for before they are taken."""

from daemon.stores.cold.repeats import STEPS_AFTER_REPEAT, Repeats


def test_nobody_is_asked_where_keys_were_new() -> None:
    repeats = Repeats()
    assert not repeats.are_likely("orders")


def test_a_key_that_was_taken_makes_repeats_likely_in_its_queue_alone() -> None:
    repeats = Repeats()
    repeats.found("orders", 1)
    assert repeats.are_likely("orders")
    assert not repeats.are_likely("others")


def test_after_enough_steps_without_a_repeat_nobody_is_asked_again() -> None:
    repeats = Repeats()
    repeats.found("orders", 3)
    for _ in range(STEPS_AFTER_REPEAT - 1):
        repeats.found("orders", 0)
        assert repeats.are_likely("orders")
    repeats.found("orders", 0)
    assert not repeats.are_likely("orders")


def test_one_repeat_begins_the_count_anew() -> None:
    repeats = Repeats()
    repeats.found("orders", 1)
    for _ in range(STEPS_AFTER_REPEAT - 1):
        repeats.found("orders", 0)
    repeats.found("orders", 1)
    repeats.found("orders", 0)
    assert repeats.are_likely("orders")


def test_where_they_are_expected_all_keys_are_looked_for() -> None:
    repeats = Repeats(are_expected=True)
    repeats.found("orders", 0)
    assert repeats.are_likely("orders")
