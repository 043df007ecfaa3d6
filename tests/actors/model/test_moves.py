"""The moves of items: the machine has a way for each, and the journal makes no other."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from itertools import product

import pytest

from actors.model.failures import RetryNote
from actors.model.moves import (
    LENT_FATES,
    NEAR,
    SETTLED_FATES,
    SHOWN_AS,
    WAITING_FATES,
    ColdMove,
    Row,
    RowMove,
    guard,
    move,
    set_state,
)
from actors.model.runs import Fate, StoredRun
from actors.model.states import ENDS, State, Who, allowed_from, states_before
from actors.spooler.backlog import Backlog
from actors.spooler.ledger import Ledger
from actors.spooler.lending import Loans
from actors.spooler.messages import HandedOver, Retried, RunLoan, Settled, Voided
from forebay.run import encode_run, read_head


def test_states_before_is_the_same_table_seen_from_the_other_end() -> None:
    for before, after, who in product(State, State, Who):
        is_stay = before is after and before not in ENDS
        is_way = after in allowed_from(before, who)
        assert (before in states_before(after, who)) is (is_way or is_stay)


@pytest.mark.parametrize(
    "who,before,after",
    [
        (Who.CONSUMER, State.DONE, State.DONE),
        (Who.CONSUMER, State.QUEUED, State.DONE),
        (Who.DAEMON, State.DELETED, State.COLD_QUEUED),
        (Who.DAEMON, State.RUNNING, State.DELETED),
        (Who.OPERATOR, State.RUNNING, State.FAILED),
    ],
)
def test_a_move_that_the_machine_has_no_way_for_cannot_be_named(
    who: Who, before: State, after: State
) -> None:
    with pytest.raises(ValueError, match="cannot take items from"):
        move(who, before, after)
    # Nor among others.
    with pytest.raises(ValueError, match=before):
        move(who, NEAR | {State.RUNNING, before}, after)


def test_a_move_of_a_row_is_one_of_states_that_the_row_is_shown_in() -> None:
    legal = move(Who.CONSUMER, State.RUNNING, State.DONE)
    with pytest.raises(ValueError, match="in such a state"):
        RowMove(Row.FAILED, frozenset({Row.GONE}), legal)
    with pytest.raises(ValueError, match="in such a state"):
        RowMove(Row.CLAIMED, frozenset({Row.FAILED}), legal)
    assert set().union(*SHOWN_AS.values()) == set(State) - {State.SPOOLED}


def test_a_statement_takes_rows_of_one_state() -> None:
    assert guard(ColdMove.DELIVER, ColdMove.DIE) == "state = 'COLD_QUEUED'"
    assert set_state(ColdMove.CLAIM) == "state = 'CLAIMED'"
    with pytest.raises(ValueError, match="too many"):
        guard(ColdMove.DELIVER, ColdMove.ACKNOWLEDGE)
    with pytest.raises(ValueError, match="too many"):
        set_state(ColdMove.CONFIRM)


# The journal.

POSITION = 64


@dataclass(slots=True)
class Journal:
    """One run of one item."""

    run: StoredRun = field(init=False)
    ledger: Ledger = field(default_factory=Ledger)
    backlog: Backlog = field(default_factory=lambda: Backlog(10, 1 << 20))
    loans: Loans = field(init=False)
    lease: RunLoan | None = None

    def __post_init__(self) -> None:
        data = encode_run([b"x"], queue="q", run_id=b"r" * 16)
        self.run = StoredRun(POSITION, 100, read_head(data), data)
        self.loans = Loans(self.ledger)
        self.ledger.start(0)
        self.ledger.accept(POSITION, 100, "q", 1)
        self.backlog.add(self.run)

    def lend(self) -> None:
        (run,) = self.backlog.take("q", 1, 1 << 20)
        self.lease = self.loans.lend(run)

    def take_back(self) -> None:
        assert self.lease is not None
        run = self.loans.take_back(self.lease)
        assert run is not None
        self.backlog.add(run)

    def token(self) -> int:
        """Of the lease that there is, or was."""
        return 0 if self.lease is None else self.lease.token

    def told(self, say: "Say") -> bool:
        outcome = say(self)
        if isinstance(outcome, Voided):
            return self.loans.void(outcome, self.backlog)
        return self.loans.settle(outcome)

    def seen(self) -> object:
        self.loans.written(self.loans.take_marks())
        state = self.loans.state_of(POSITION), self.loans.is_lent(POSITION)
        books = copy(self.ledger.books["q"])
        return state, self.loans.lent.get("q"), books, self.ledger.live_runs


Outcome = Settled | Retried | HandedOver | Voided
Say = Callable[[Journal], Outcome]


def settled(fate: Fate) -> Say:
    return lambda at: Settled(at.token(), POSITION, at.run.head.run_id, 0, 1, fate)


def voided(fate: Fate) -> Say:
    return lambda at: Voided(POSITION, 100, 1, "q", at.run.head.priority, b"r" * 16, 1, fate)


def retried(at: Journal) -> Outcome:
    note = RetryNote(1, 5, 4, "refused")
    return Retried(at.token(), POSITION, at.run.head.run_id, 0, 1, note)


def handed_over(at: Journal) -> Outcome:
    return HandedOver(at.token(), POSITION, at.run.head.run_id, 1)


WAYS: dict[tuple[str, Fate], Say] = {
    **{("lent", fate): settled(fate) for fate in Fate},
    ("lent", Fate.RETRY): retried,
    ("lent", Fate.HANDED_OVER): handed_over,
    **{("waiting", fate): voided(fate) for fate in Fate},
}
LEGAL = {("lent", fate) for fate in LENT_FATES} | {("waiting", fate) for fate in WAITING_FATES}


def situation(name: str) -> Journal:
    journal = Journal()
    match name:
        case "lent":
            journal.lend()
        case "given back":
            journal.lend()
            journal.take_back()
        case "done" | "deleted" | "handed over":
            journal.lend()
            fate = Fate.DELIVERED if name == "done" else Fate.DELETED
            assert journal.told(handed_over if name == "handed over" else settled(fate))
    return journal


@pytest.mark.parametrize("way", sorted(WAYS), ids=str)
def test_the_journal_makes_a_move_where_the_machine_has_it(way: tuple[str, Fate]) -> None:
    journal = situation(way[0])
    before = journal.seen()
    assert journal.told(WAYS[way]) is (way in LEGAL)
    assert (journal.seen() != before) is (way in LEGAL)


@pytest.mark.parametrize(
    "name", ["waiting", "lent", "given back", "done", "deleted", "handed over"]
)
def test_the_journal_makes_no_move_from_another_state(name: str) -> None:
    is_waiting = name in ("waiting", "given back")
    for (of, fate), say in WAYS.items():
        if of == name or (of == "waiting" and is_waiting):
            continue
        journal = situation(name)
        before = journal.seen()
        assert not journal.told(say), (of, fate)
        assert journal.seen() == before


def test_what_ends_what_is_lent_has_a_message() -> None:
    assert {Fate.DELIVERED, Fate.DELETED} == SETTLED_FATES
