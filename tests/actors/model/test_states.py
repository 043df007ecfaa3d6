"""The states of an item: one table, and nothing that it does not say."""

from itertools import product

import pytest

from actors.model.states import (
    ENDS,
    TRANSITIONS,
    WAITING,
    IllegalChange,
    State,
    Who,
    allowed_from,
    next_state,
)

OPERATOR: dict[State, set[State]] = {
    State.SPOOLED: {State.SCHEDULED, State.QUEUED, State.FAILED, State.DELETED},
    State.SCHEDULED: {State.QUEUED, State.FAILED, State.DELETED},
    State.QUEUED: {State.SCHEDULED, State.FAILED, State.DELETED},
    State.COLD_QUEUED: {State.SCHEDULED, State.QUEUED, State.FAILED, State.DELETED},
    State.RUNNING: set(),
    State.DONE: set(),
    State.FAILED: {State.QUEUED, State.DELETED},
    State.DELETED: set(),
}
"""Written out, so that a change of the table is a change of this."""


@pytest.mark.parametrize("before,after", list(product(State, State)))
def test_what_an_operator_may_ask_for(before: State, after: State) -> None:
    if after in OPERATOR[before] or (before is after and before not in ENDS):
        assert next_state(before, after, Who.OPERATOR) is after
        return
    with pytest.raises(IllegalChange) as illegal:
        next_state(before, after, Who.OPERATOR)
    assert set(illegal.value.allowed) == OPERATOR[before]
    assert all(name in str(illegal.value) for name in OPERATOR[before])


def test_the_ends_are_ends() -> None:
    for end, who in product(ENDS, Who):
        assert allowed_from(end, who) == ()
        with pytest.raises(IllegalChange):
            next_state(end, end, who)


def test_only_what_runs_is_done() -> None:
    assert [before for before in State if State.DONE in TRANSITIONS[before]] == [State.RUNNING]


def test_a_consumer_acts_on_what_runs_alone() -> None:
    acts = [before for before in State if allowed_from(before, Who.CONSUMER)]
    assert acts == [State.RUNNING]


def test_what_waits_moves_between_all_tiers() -> None:
    for before, after in product(WAITING, WAITING):
        assert next_state(before, after, Who.DAEMON) is after


def test_every_state_but_the_first_can_be_reached_and_left() -> None:
    reached = {after for ways in TRANSITIONS.values() for after in ways}
    assert reached == set(State)
    assert {state for state in State if not TRANSITIONS[state]} == ENDS
