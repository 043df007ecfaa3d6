"""The states of an item, and the only ways from one to another (docs/protocol.md "Items").

         ┌─────────────► SCHEDULED ◄──────────┐
    SPOOLED ──► QUEUED ──────┬──► RUNNING ──► DONE
         └────► COLD_QUEUED ─┘       └──────► FAILED ──► COLD_QUEUED (retried), DELETED

The daemon moves waiting items (the first four states) between the tiers; an operator may also
delete them, postpone them or give them up. A running item belongs to its consumer until it is done,
has failed or is released. DONE and DELETED are final. Plain data and pure functions; it owns
nothing.

Every change follows this table: a change that is requested goes through `next_state`, and the
changes that the daemon and consumers make are the moves that actors/model/moves.py lists.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Final


class State(StrEnum):
    SPOOLED = "SPOOLED"
    """In the journal, or on its way from there."""
    SCHEDULED = "SCHEDULED"
    """Close to the workers, and not due yet."""
    QUEUED = "QUEUED"
    """Warm."""
    COLD_QUEUED = "COLD_QUEUED"
    RUNNING = "RUNNING"
    """A worker or a consumer has it, or it is in the job of a trigger."""
    DONE = "DONE"
    FAILED = "FAILED"
    """A dead letter."""
    DELETED = "DELETED"


class Who(Enum):
    """Who makes a change."""

    DAEMON = "the daemon"
    CONSUMER = "the holder of the lease"
    OPERATOR = "an operator"


WAITING: Final = frozenset({State.SPOOLED, State.SCHEDULED, State.QUEUED, State.COLD_QUEUED})
ENDS: Final = frozenset({State.DONE, State.DELETED})

_DAEMON: Final = frozenset({Who.DAEMON})
_OPERATOR: Final = frozenset({Who.OPERATOR})
_BOTH: Final = _DAEMON | _OPERATOR
_HOLDER: Final = frozenset({Who.DAEMON, Who.CONSUMER})

# Items dropped for lack of room are deleted by the daemon.
_FROM_WAITING: Final = {
    State.SPOOLED: _DAEMON,
    State.SCHEDULED: _BOTH,
    State.QUEUED: _BOTH,
    State.COLD_QUEUED: _DAEMON,
    State.RUNNING: _DAEMON,
    State.FAILED: _BOTH,
    State.DELETED: _BOTH,
}
TRANSITIONS: Final[Mapping[State, Mapping[State, frozenset[Who]]]] = {
    **{
        before: {after: who for after, who in _FROM_WAITING.items() if after is not before}
        for before in WAITING
    },
    State.RUNNING: {
        State.DONE: _HOLDER,
        State.FAILED: _HOLDER,
        State.QUEUED: _HOLDER,
        State.SCHEDULED: _HOLDER,
        State.COLD_QUEUED: _HOLDER,
        State.SPOOLED: _DAEMON,
    },
    State.FAILED: {
        State.QUEUED: _OPERATOR,
        State.COLD_QUEUED: _DAEMON,
        State.DELETED: _OPERATOR,
    },
    State.DONE: {},
    State.DELETED: {},
}


class IllegalChange(Exception):
    """There is no transition between the two states for the party that asked."""

    def __init__(self, before: State, after: State, who: Who, allowed: tuple[State, ...]) -> None:
        ways = ", ".join(allowed) if allowed else "nothing"
        super().__init__(f"from {before} {who.value} can go to {ways}, not to {after}")
        self.before = before
        self.after = after
        self.allowed = allowed


def allowed_from(before: State, who: Who) -> tuple[State, ...]:
    """The states to which `who` may move an item from `before`, in the order of the states."""
    ways = TRANSITIONS[before]
    return tuple(after for after in State if who in ways.get(after, ()))


def next_state(before: State, after: State, who: Who) -> State:
    """`after`, if the transition exists; otherwise raises IllegalChange, which names those that do.

    Staying in a state is always allowed, except in final states, which are not touched again.
    """
    if before is after and before not in ENDS:
        return after
    allowed = allowed_from(before, who)
    if after not in allowed:
        raise IllegalChange(before, after, who, allowed)
    return after


def states_before(after: State, who: Who) -> frozenset[State]:
    """The states from which `who` may move an item to `after`, including `after` itself."""
    ways = {before for before in State if who in TRANSITIONS[before].get(after, ())}
    return frozenset(ways if after in ENDS else ways | {after})


assert TRANSITIONS.keys() == set(State)
assert not any(TRANSITIONS[end] for end in ENDS)
