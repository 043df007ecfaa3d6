"""Moves: every place where the state of items changes, and the ways of the machine that it takes.

Nobody asks for these changes by name: they are what leasing, settling, promoting and dropping come
to. Each is written down here once, with who makes it, from which states and to which; what
actors/model/states.py does not allow cannot even be imported. What holds them to it costs nothing
for an item, and at most a comparison for a run:

    warm      a slice is in one place, waiting, scheduled or leased, and a lease ends once
              (actors/tiers/warm_queue.py; with Valkey, each move is one script)
    journal   an outcome of what is lent needs the lease's token, and one of what waits that nobody
              has it; which fates each may meet is said here, and what is done is done
              (actors/spooler/loans.py)
    cold      every statement that moves a row names the state that it takes the row from
              (`guard`); and the store itself refuses to change a row's state in another way
              (`row_changes`), whatever the statement says

Plain data; it owns nothing. What it can't do: say where in warm a row or run that is lent is, which
warm alone knows: a way from "waits in warm" and one from "runs" are the same to its owner.
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
    """Not confirmed yet: the former owner says in which state the items are."""
    QUEUED = "COLD_QUEUED"
    """With a lock it is lent, and warm says in which state the items are."""
    CLAIMED = "CLAIMED"
    """By the consumer of a stream, or for the job of a trigger."""
    FAILED = "FAILED"
    CORRUPT = "CORRUPT"
    """It cannot be read, and was set aside: it has left the machine."""
    GONE = "GONE"
    """There is no row, or one of history."""


NEAR: Final = frozenset({State.QUEUED, State.SCHEDULED})
"""In warm, and nobody has it."""
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
    """From any of these states to any of those. ValueError if the machine has no such way."""

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
"""In the journal, and lent to nobody."""


@unique
class WarmMove(Enum):
    ENTER = move(Who.DAEMON, frozenset({State.SPOOLED, _COLD}), NEAR)
    COME_DUE = move(Who.DAEMON, State.SCHEDULED, State.QUEUED)
    LEASE = move(Who.DAEMON, State.QUEUED, _RUNS)
    PUT_BACK = move(Who.CONSUMER, _RUNS, NEAR)
    """Untried, or to be tried again soon."""
    EXPIRE = move(Who.DAEMON, _RUNS, NEAR)
    WITHDRAW = move(Who.DAEMON, NEAR, frozenset({State.SPOOLED, _COLD}))


LENT_FATES: Final[Mapping[Fate, Move]] = {
    Fate.DELIVERED: move(Who.CONSUMER, _RUNS, State.DONE),
    Fate.RETRY: move(Who.CONSUMER, _RUNS, NEAR),
    Fate.HANDED_OVER: move(Who.DAEMON, NEAR | {_RUNS}, frozenset({_COLD, State.FAILED})),
    Fate.DELETED: move(Who.DAEMON, NEAR, State.DELETED),
}
"""What may become of items of a run that the journal has lent. Those that are deleted were taken
out of warm before, so that nobody has them."""
SETTLED_FATES: Final = LENT_FATES.keys() - {Fate.RETRY, Fate.HANDED_OVER}
"""Of these, what ends them as a plain outcome; the others have messages of their own."""
WAITING_FATES: Final[Mapping[Fate, Move]] = {
    Fate.DROPPED: move(Who.DAEMON, _SPOOLED, State.DELETED),
    Fate.HANDED_OVER: move(Who.DAEMON, _SPOOLED, frozenset({_COLD, State.FAILED})),
    Fate.DELETED: move(Who.DAEMON, _SPOOLED, State.DELETED),
    Fate.MOVED: move(Who.DAEMON, _SPOOLED, _SPOOLED),
    Fate.LOST: move(Who.DAEMON, _SPOOLED, State.DELETED),
}
"""The same of a run that waits in the journal. Those that have moved are another daemon's."""


@dataclass(frozen=True, slots=True)
class RowMove:
    row: Row
    """What it takes."""
    rows: frozenset[Row]
    """What its items are in then."""
    move: Move | None
    """None: it is none of the machine's."""

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
    """Of what was not handed over after all."""
    ACQUIRE = _row(Row.QUEUED, Row.QUEUED, move(Who.DAEMON, _COLD, NEAR))
    RELEASE = _row(Row.QUEUED, Row.QUEUED, move(Who.DAEMON, NEAR | {_RUNS}, _COLD))
    """Given back, or its lease has run out."""
    DELIVER = _row(Row.QUEUED, Row.GONE, move(Who.CONSUMER, _RUNS, State.DONE))
    RETRY = _row(Row.QUEUED, Row.QUEUED, move(Who.CONSUMER, _RUNS, _COLD))
    DIE = _row(Row.QUEUED, Row.FAILED, move(Who.CONSUMER, _RUNS, State.FAILED))
    DELETE = _row(Row.QUEUED, Row.GONE, move(Who.DAEMON, NEAR | {_COLD}, State.DELETED))
    """By an operator, a purge, or a key that another item gets: never what runs."""
    CHANGE = _row(Row.QUEUED, Row.QUEUED, move(Who.DAEMON, NEAR | {_COLD}, _COLD))
    GIVE_UP = _row(Row.QUEUED, Row.FAILED, move(Who.OPERATOR, NEAR | {_COLD}, State.FAILED))
    CLAIM = _row(Row.QUEUED, Row.CLAIMED, move(Who.DAEMON, _COLD, _RUNS))
    ACKNOWLEDGE = _row(Row.CLAIMED, Row.GONE, move(Who.CONSUMER, _RUNS, State.DONE))
    UNCLAIM = _row(Row.CLAIMED, Row.QUEUED, move(Who.DAEMON, _RUNS, _COLD))
    FAIL_JOB = _row(Row.CLAIMED, Row.FAILED, move(Who.DAEMON, _RUNS, State.FAILED))
    """It was in one job that died too many."""
    RETRY_DEAD = _row(Row.FAILED, Row.QUEUED, move(Who.DAEMON, State.FAILED, _COLD))
    REMOVE_DEAD = _row(Row.FAILED, Row.GONE, move(Who.OPERATOR, State.FAILED, State.DELETED))
    SET_ASIDE = _row(Row.QUEUED, Row.CORRUPT, None)
    SET_CLAIMED_ASIDE = _row(Row.CLAIMED, Row.CORRUPT, None)


def guard(*moves: ColdMove) -> str:
    """The condition in SQL under which a row can make these moves. ValueError if no row can make
    all of them."""
    (row,) = {each.value.row for each in moves}
    return f"state = '{row.value}'"


def set_state(*moves: ColdMove) -> str:
    """What a statement that makes these moves sets, in SQL."""
    ((row,),) = {each.value.rows for each in moves}
    return f"state = '{row.value}'"


def row_changes() -> frozenset[tuple[Row, Row]]:
    """All ways in which the state of a row that stays changes in place."""
    in_place = (ColdMove.CONFIRM, ColdMove.CLAIM, ColdMove.UNCLAIM, ColdMove.RETRY_DEAD)
    aside = (ColdMove.SET_ASIDE, ColdMove.SET_CLAIMED_ASIDE)
    return frozenset(
        (each.value.row, after) for each in (*in_place, *aside) for after in each.value.rows
    )
