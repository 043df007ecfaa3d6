"""Moves: every place where the state of items changes, and the transitions it makes.

No client requests these changes by name: they result from leasing, settling, promoting and
dropping. Each is listed here once, with who makes it, from which states and to which; importing
this file fails if actors/model/states.py does not allow one. Enforcing them costs nothing per item
and at most a comparison per run:

    warm      a slice is in one place, waiting, scheduled or leased, and a lease ends once
              (actors/tiers/warm_queue.py; with Valkey, each move is one script)
    journal   an outcome of a lent run needs the lease's token, and an outcome of a waiting run
              requires that it is not lent; the tables below say which fates each may have, and
              a settled item stays settled (actors/spooler/lending.py)
    cold      every statement that moves a row names the state that it takes the row from
              (`guard`); and the store itself refuses any other change of a row's state
              (`row_changes`), whatever the statement says

Plain data; it owns nothing. It cannot say where in warm a lent row or run is, which only warm
knows: to the owner a move from "waits in warm" and one from "runs" are the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, unique
from typing import Final

from actors.model.runs import Fate
from actors.model.states import State, Who, states_before


class Row(StrEnum):
    """What the cold store has for items: the `state` of their row."""

    STORED = "STORED"
    """Not confirmed yet: the former owner knows the state of the items."""
    QUEUED = "COLD_QUEUED"
    """With a lock the row is lent, and warm knows the state of the items."""
    CLAIMED = "CLAIMED"
    """Claimed by the consumer of a stream, or for the job of a trigger."""
    FAILED = "FAILED"
    CORRUPT = "CORRUPT"
    """Unreadable and set aside: it has left the state machine."""
    GONE = "GONE"
    """There is no row, or only one in the history."""


NEAR: Final = frozenset({State.QUEUED, State.SCHEDULED})
"""In warm and not leased."""
SHOWN_AS: Final[Mapping[Row, frozenset[State]]] = {
    Row.STORED: frozenset(),
    Row.QUEUED: NEAR | {State.COLD_QUEUED, State.RUNNING},
    Row.CLAIMED: frozenset({State.RUNNING}),
    Row.FAILED: frozenset({State.FAILED}),
    Row.CORRUPT: frozenset(),
    Row.GONE: frozenset({State.DONE, State.DELETED}),
}


@dataclass(frozen=True, slots=True)
class Move:
    """From any state in `before` to any in `after`. Raises ValueError for an illegal move."""

    who: Who
    before: frozenset[State]
    after: frozenset[State]

    def __post_init__(self) -> None:
        for after in self.after:
            if illegal := self.before - states_before(after, self.who):
                names = ", ".join(sorted(illegal))
                raise ValueError(f"{self.who.value} cannot take items from {names} to {after}")


def move(who: Who, before: State | frozenset[State], after: State | frozenset[State]) -> Move:
    return Move(who, _all(before), _all(after))


def _all(states: State | frozenset[State]) -> frozenset[State]:
    return frozenset({states}) if isinstance(states, State) else states


_COLD: Final = State.COLD_QUEUED
_RUNS: Final = State.RUNNING
_SPOOLED: Final = frozenset({State.SPOOLED, State.SCHEDULED})
"""In the journal and not lent."""


@unique
class WarmMove(Enum):
    ENTER = move(Who.DAEMON, frozenset({State.SPOOLED, _COLD}), NEAR)
    COME_DUE = move(Who.DAEMON, State.SCHEDULED, State.QUEUED)
    LEASE = move(Who.DAEMON, State.QUEUED, _RUNS)
    PUT_BACK = move(Who.CONSUMER, _RUNS, NEAR)
    """Untried, or due for a retry soon."""
    EXPIRE = move(Who.DAEMON, _RUNS, NEAR)
    WITHDRAW = move(Who.DAEMON, NEAR, frozenset({State.SPOOLED, _COLD}))


LENT_FATES: Final[Mapping[Fate, Move]] = {
    Fate.DELIVERED: move(Who.CONSUMER, _RUNS, State.DONE),
    Fate.RETRY: move(Who.CONSUMER, _RUNS, NEAR),
    Fate.HANDED_OVER: move(Who.DAEMON, NEAR | {_RUNS}, frozenset({_COLD, State.FAILED})),
    Fate.DELETED: move(Who.DAEMON, NEAR, State.DELETED),
}
"""Possible fates of items of a run that the journal has lent. Items are withdrawn from warm before
they are deleted, so that no worker has them."""
SETTLED_FATES: Final = LENT_FATES.keys() - {Fate.RETRY, Fate.HANDED_OVER}
"""The fates that a plain outcome may have; the others have messages of their own."""
WAITING_FATES: Final[Mapping[Fate, Move]] = {
    Fate.DROPPED: move(Who.DAEMON, _SPOOLED, State.DELETED),
    Fate.HANDED_OVER: move(Who.DAEMON, _SPOOLED, frozenset({_COLD, State.FAILED})),
    Fate.DELETED: move(Who.DAEMON, _SPOOLED, State.DELETED),
    Fate.LOST: move(Who.DAEMON, _SPOOLED, State.DELETED),
}
"""The same for a run that waits in the journal."""


@dataclass(frozen=True, slots=True)
class RowMove:
    row: Row
    """The state that the row is taken from."""
    rows: frozenset[Row]
    """The states that its items' rows have afterwards."""
    move: Move | None
    """None: it is not a transition of the state machine."""

    def __post_init__(self) -> None:
        if self.move is None:
            return
        shown = frozenset[State]().union(*(SHOWN_AS[row] for row in self.rows))
        is_of_row = self.row is Row.STORED or self.move.before <= SHOWN_AS[self.row]
        if not (is_of_row and self.move.after <= shown):
            raise ValueError(f"no row of {self.row} or {sorted(self.rows)} is in such a state")


def _row(row: Row, rows: Row | frozenset[Row], move: Move | None) -> RowMove:
    return RowMove(row, frozenset({rows}) if isinstance(rows, Row) else rows, move)


@unique
class ColdMove(Enum):
    CONFIRM = _row(
        Row.STORED,
        frozenset({Row.QUEUED, Row.FAILED}),
        move(Who.DAEMON, _SPOOLED | NEAR | {_RUNS}, frozenset({_COLD, State.FAILED})),
    )
    FORGET = _row(Row.STORED, Row.GONE, None)
    """For rows that were not handed over after all."""
    ACQUIRE = _row(Row.QUEUED, Row.QUEUED, move(Who.DAEMON, _COLD, NEAR))
    RELEASE = _row(Row.QUEUED, Row.QUEUED, move(Who.DAEMON, NEAR | {_RUNS}, _COLD))
    """Given back, or its lease has expired."""
    DELIVER = _row(Row.QUEUED, Row.GONE, move(Who.CONSUMER, _RUNS, State.DONE))
    RETRY = _row(Row.QUEUED, Row.QUEUED, move(Who.CONSUMER, _RUNS, _COLD))
    DIE = _row(Row.QUEUED, Row.FAILED, move(Who.CONSUMER, _RUNS, State.FAILED))
    DELETE = _row(Row.QUEUED, Row.GONE, move(Who.DAEMON, NEAR | {_COLD}, State.DELETED))
    """By an operator, a purge, or a key that another item takes; never while it runs."""
    CHANGE = _row(Row.QUEUED, Row.QUEUED, move(Who.DAEMON, NEAR | {_COLD}, _COLD))
    GIVE_UP = _row(Row.QUEUED, Row.FAILED, move(Who.OPERATOR, NEAR | {_COLD}, State.FAILED))
    CLAIM = _row(Row.QUEUED, Row.CLAIMED, move(Who.DAEMON, _COLD, _RUNS))
    ACKNOWLEDGE = _row(Row.CLAIMED, Row.GONE, move(Who.CONSUMER, _RUNS, State.DONE))
    UNCLAIM = _row(Row.CLAIMED, Row.QUEUED, move(Who.DAEMON, _RUNS, _COLD))
    FAIL_JOB = _row(Row.CLAIMED, Row.FAILED, move(Who.DAEMON, _RUNS, State.FAILED))
    """The item was in one dead job too many."""
    RETRY_DEAD = _row(Row.FAILED, Row.QUEUED, move(Who.DAEMON, State.FAILED, _COLD))
    REMOVE_DEAD = _row(Row.FAILED, Row.GONE, move(Who.OPERATOR, State.FAILED, State.DELETED))
    SET_ASIDE = _row(Row.QUEUED, Row.CORRUPT, None)
    SET_CLAIMED_ASIDE = _row(Row.CLAIMED, Row.CORRUPT, None)


def guard(*moves: ColdMove) -> str:
    """The SQL condition under which a row can make these moves. Raises ValueError if no row can
    make all of them."""
    (row,) = {each.value.row for each in moves}
    return f"state = '{row.value}'"


def set_state(*moves: ColdMove) -> str:
    """The SQL assignment of a statement that makes these moves."""
    ((row,),) = {each.value.rows for each in moves}
    return f"state = '{row.value}'"


def row_changes() -> frozenset[tuple[Row, Row]]:
    """All changes of state that happen in place, to a row that stays."""
    in_place = (ColdMove.CONFIRM, ColdMove.CLAIM, ColdMove.UNCLAIM, ColdMove.RETRY_DEAD)
    aside = (ColdMove.SET_ASIDE, ColdMove.SET_CLAIMED_ASIDE)
    return frozenset(
        (each.value.row, after) for each in (*in_place, *aside) for after in each.value.rows
    )
