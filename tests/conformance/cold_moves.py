"""The suite of moves in the cold tier: each goes from and to what the machine of states allows, and
in any other state of its row it is refused and changes nothing.

Every place in the store that moves rows is one of `ColdMove`; each is tried here in each situation
that a row can be in. What is to be seen is read past the store's own code.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple, Protocol

from actors.model.moves import SHOWN_AS, ColdMove, Row, row_changes
from actors.model.states import State
from actors.ports.tiers import ColdItems, DeadFilter, NewRow, RowOutcome, WrongClaim
from actors.ports.trigger_jobs import Claim, NoWatch, Poll, TriggerStore
from tests.conformance.cold_stores import (
    LEASE_S,
    PLENTY,
    ColdStores,
    acquire,
    check_books,
    dead_row,
    new_row,
    number,
    part_of,
)

LOCK, OTHER = b"L" * 16, b"O" * 16
CONSUMER = "c"


class Raw(NamedTuple):
    """A row, as it stands in the table."""

    state: str
    is_due: bool
    lock: bytes | None
    attempt: int
    items: int


class MoveStores(ColdStores, Protocol):
    @property
    def triggers(self) -> TriggerStore: ...

    @property
    def items(self) -> ColdItems: ...

    async def raw(self, queue: str) -> tuple[list[Raw], list[str]]:
        """The rows of a queue, and the outcomes in its history."""

    async def allows(self, row: bytes, state: str) -> bool:
        """Whether the store takes it if a statement gives the row this state; it is undone."""


@dataclass(slots=True)
class Case:
    """A row of one item, alone in its queue."""

    stores: MoveStores
    queue: str = field(default_factory=lambda: f"q{number().hex()[-8:]}")
    row: NewRow = field(init=False)
    job: bytes = field(default_factory=number)

    def __post_init__(self) -> None:
        self.row = new_row(1, self.queue)

    async def look(self) -> tuple[Row, State | None]:
        """What there is of it, and of which end history tells."""
        rows, past = await self.stores.raw(self.queue)
        if rows:
            (row,) = rows
            return Row(row.state), None
        ends = {"delivered": State.DONE, "deleted": State.DELETED}
        return Row.GONE, ends[past[-1]] if past else None


Step = Callable[[Case], Awaitable[object]]

# What makes each move; where there is nothing to be moved these do nothing.


async def settle(case: Case, **outcome: object) -> None:
    await case.stores.cold.settle([RowOutcome(case.row.row, LOCK, **outcome)])  # type: ignore[arg-type]


async def retry(case: Case) -> None:
    await settle(case, moved=(part_of(case.row, 1, attempt=1),), moved_bits=1)


async def die(case: Case) -> None:
    await settle(case, moved=(part_of(case.row, 1, attempt=1, is_dead=True),), moved_bits=1)


async def acknowledge(case: Case) -> None:
    with suppress(WrongClaim):
        await case.stores.cold.claim(case.queue, CONSUMER, 1, 0)


async def set_aside(case: Case) -> None:
    await case.stores.damage_body(case.row.head.run_id)
    await acquire(case.stores, OTHER, queue=case.queue)


async def set_claimed_aside(case: Case) -> None:
    await case.stores.damage_body(case.row.head.run_id)
    await case.stores.cold.fetch(case.queue, CONSUMER, 1, 0, 10, PLENTY)


async def fail_job(case: Case) -> None:
    """The job that has claimed the row dies, and was the row's last one."""
    case.stores.triggers.watch(Strict())
    for row in await acquire(case.stores, OTHER, queue=f"jobs-{case.queue}"):
        letter = part_of(row, 1, is_dead=True, attempt=1)
        outcome = RowOutcome(row.row, OTHER, moved=(letter,), moved_bits=1)
        await case.stores.cold.settle([outcome])


class Strict(NoWatch):
    def retries_max(self, _: str) -> int:
        return 0


STEPS: dict[ColdMove, Step] = {
    ColdMove.CONFIRM: lambda case: case.stores.cold.confirm([case.row.row]),
    ColdMove.FORGET: lambda case: case.stores.cold.forget([case.row.row]),
    ColdMove.ACQUIRE: lambda case: acquire(case.stores, OTHER, queue=case.queue),
    ColdMove.RELEASE: lambda case: case.stores.cold.release(LOCK, [case.row.row]),
    ColdMove.DELIVER: lambda case: settle(case, delivered=1),
    ColdMove.RETRY: retry,
    ColdMove.DIE: die,
    ColdMove.DELETE: lambda case: case.stores.items.delete(case.row.row, 1, None),
    ColdMove.CHANGE: lambda case: case.stores.items.change(
        case.row.row, 1, None, part_of(case.row, 1, attempt=7)
    ),
    ColdMove.GIVE_UP: lambda case: case.stores.items.change(
        case.row.row, 1, None, part_of(case.row, 1, is_dead=True)
    ),
    ColdMove.CLAIM: lambda case: case.stores.cold.claim(case.queue, CONSUMER, 0, 10),
    ColdMove.ACKNOWLEDGE: acknowledge,
    ColdMove.UNCLAIM: lambda case: case.stores.cold.drop_stream(case.queue, CONSUMER),
    ColdMove.FAIL_JOB: fail_job,
    ColdMove.RETRY_DEAD: lambda case: case.stores.dead.retry(DeadFilter(queue=case.queue), 10),
    ColdMove.REMOVE_DEAD: lambda case: case.stores.dead.remove(DeadFilter(queue=case.queue), 10),
    ColdMove.SET_ASIDE: set_aside,
    ColdMove.SET_CLAIMED_ASIDE: set_claimed_aside,
}

# What brings a row into each situation.


async def stored(case: Case) -> None:
    await case.stores.cold.store([case.row])


async def free(case: Case) -> None:
    await stored(case)
    await STEPS[ColdMove.CONFIRM](case)


async def leased(case: Case) -> None:
    await free(case)
    await acquire(case.stores, LOCK, queue=case.queue)


async def claimed(case: Case) -> None:
    await free(case)
    await STEPS[ColdMove.CLAIM](case)


async def in_job(case: Case) -> None:
    await free(case)
    claim = Claim(case.queue, f"jobs-{case.queue}", 10, 10, 5, case.job)
    await case.stores.triggers.poll(Poll(case.queue, b"me", 30.0, 1000, claim))


async def dead(case: Case) -> None:
    case.row = dead_row(queue=case.queue)
    await free(case)


async def delivered(case: Case) -> None:
    await leased(case)
    await STEPS[ColdMove.DELIVER](case)


async def deleted(case: Case) -> None:
    await free(case)
    await STEPS[ColdMove.DELETE](case)


async def unreadable(case: Case) -> None:
    await free(case)
    await set_aside(case)


SITUATIONS: dict[Step, tuple[Row, set[ColdMove]]] = {
    stored: (Row.STORED, {ColdMove.CONFIRM, ColdMove.FORGET}),
    free: (
        Row.QUEUED,
        {
            ColdMove.ACQUIRE,
            ColdMove.DELETE,
            ColdMove.CHANGE,
            ColdMove.GIVE_UP,
            ColdMove.CLAIM,
            ColdMove.SET_ASIDE,
        },
    ),
    leased: (Row.QUEUED, {ColdMove.RELEASE, ColdMove.DELIVER, ColdMove.RETRY, ColdMove.DIE}),
    claimed: (
        Row.CLAIMED,
        {ColdMove.ACKNOWLEDGE, ColdMove.UNCLAIM, ColdMove.SET_CLAIMED_ASIDE},
    ),
    in_job: (Row.CLAIMED, {ColdMove.FAIL_JOB}),
    dead: (Row.FAILED, {ColdMove.RETRY_DEAD, ColdMove.REMOVE_DEAD}),
    delivered: (Row.GONE, set()),
    deleted: (Row.GONE, set()),
    unreadable: (Row.CORRUPT, set()),
}
"""The state of the row in each, and the moves that can be made there."""
DAMAGING = {ColdMove.SET_ASIDE, ColdMove.SET_CLAIMED_ASIDE}
"""These begin with damage, which changes something whatever the state is."""


class MoveSuite:
    async def test_every_move_goes_where_the_machine_says(self, stores: MoveStores) -> None:
        stores.cold.keep_history(lambda _: "all")
        assert STEPS.keys() == set(ColdMove)
        assert set().union(*(moves for _, moves in SITUATIONS.values())) == set(ColdMove)
        for situation, (row, moves) in SITUATIONS.items():
            for move in moves:
                case = Case(stores)
                await situation(case)
                assert await case.look() == (row, None), (situation, move)
                assert move.value.row is row
                await STEPS[move](case)
                after, end = await case.look()
                assert after in move.value.rows, (situation, move, after)
                way = move.value.move
                if way is not None:
                    assert (SHOWN_AS[after] if end is None else {end}) & way.after, move
        await check_books(stores)

    async def test_no_other_move_changes_anything(self, stores: MoveStores) -> None:
        stores.cold.keep_history(lambda _: "all")
        tried = 0
        for situation, (_, legal) in SITUATIONS.items():
            case = Case(stores)
            await situation(case)
            before = await stores.raw(case.queue), (await stores.cold.totals()).get(case.queue)
            for move in set(ColdMove) - legal - DAMAGING:
                await STEPS[move](case)
                after = await stores.raw(case.queue), (await stores.cold.totals()).get(case.queue)
                assert after == before, (situation, move)
                tried += 1
        assert tried > 100
        await check_books(stores)

    async def test_an_outcome_is_nobodys_once_its_row_was_given_back(
        self, stores: MoveStores
    ) -> None:
        for move in (ColdMove.DELIVER, ColdMove.RETRY, ColdMove.DIE):
            case = Case(stores)
            await leased(case)
            await STEPS[ColdMove.RELEASE](case)
            before = await stores.raw(case.queue)
            await STEPS[move](case)
            assert await stores.raw(case.queue) == before
            # Nor when somebody else has it, or a stream.
            for again in (ColdMove.ACQUIRE, ColdMove.CLAIM):
                case = Case(stores)
                await leased(case)
                stores.advance(round(LEASE_S * 1000))
                await STEPS[again](case)
                before = await stores.raw(case.queue)
                await STEPS[move](case)
                assert await stores.raw(case.queue) == before

    async def test_the_store_itself_refuses_other_changes_of_a_row(
        self, stores: MoveStores
    ) -> None:
        rows = {row: situation for situation, (row, _) in SITUATIONS.items() if row != Row.GONE}
        for before, after in product(rows, rows):
            case = Case(stores)
            await rows[before](case)
            is_allowed = before is after or (before, after) in row_changes()
            assert await stores.allows(case.row.row, after) is is_allowed, (before, after)
