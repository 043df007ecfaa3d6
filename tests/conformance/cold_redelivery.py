"""The suite of redelivery in the cold store: a row says when it was first due, and is due now."""

from typing import NamedTuple, Protocol

from actors.model.slices import ItemError
from actors.ports.tiers import DeadFilter, RowOutcome
from tests.conformance.cold_stores import (
    START_MS,
    ColdStores,
    acquire,
    dead_row,
    new_row,
    part_of,
    put,
)

LOCK = b"L" * 16
ERROR = ItemError(1, START_MS + 60_000, "the lease ran out")


class Times(NamedTuple):
    """The columns of a row, as SQL has them."""

    scheduled_at: int
    scheduled_at_initially: int
    attempt: int


COLUMNS = ", ".join(Times._fields)


class TimedStores(ColdStores, Protocol):
    async def times(self, row: bytes) -> Times: ...


class RedeliverySuite:
    async def test_a_row_that_is_taken_is_scheduled_for_the_end_of_its_lease(
        self, stores: TimedStores
    ) -> None:
        row = new_row(1, due_ms=START_MS - 5, row_due_ms=START_MS - 5)
        await put(stores, row)
        before = await stores.times(row.row)
        assert (before.scheduled_at_initially, before.attempt) == (START_MS - 5, 0)
        await acquire(stores, lease_s=60)
        leased = await stores.times(row.row)
        assert leased.scheduled_at > leased.scheduled_at_initially == START_MS - 5

    async def test_a_row_whose_lease_ran_out_with_a_consumer_shows_it(
        self, stores: TimedStores
    ) -> None:
        row = new_row(2, due_ms=START_MS - 5, row_due_ms=START_MS - 5)
        other = new_row(1, due_ms=START_MS - 1, row_due_ms=START_MS - 1)
        await put(stores, row, other)
        await acquire(stores, items_max=2)
        due_ms = stores.now_ms() - 1
        again = part_of(row, 0b10, attempt=1, due_ms=due_ms, errors=(ERROR,))
        outcome = RowOutcome(row.row, LOCK, delivered=0b01, moved=(again,), moved_bits=0b10)
        assert await stores.cold.settle([outcome]) == [True]
        times = await stores.times(again.row)
        assert times == (due_ms, START_MS - 5, 1)
        assert times.scheduled_at > times.scheduled_at_initially
        # It is due later, and keeps the place in the order that it was first due at.
        found, behind = await acquire(stores, b"M" * 16)
        assert (found.row, behind.row) == (again.row, other.row)
        assert (found.attempt, found.due_ms, found.errors) == (1, due_ms, (ERROR,))

    async def test_a_letter_that_is_retried_is_due_then_and_at_first_not_later(
        self, stores: TimedStores
    ) -> None:
        early = dead_row(due_ms=START_MS - 5)
        late = dead_row(due_ms=START_MS + 5000)
        await put(stores, early, late)
        stores.advance(1000)
        now_ms = stores.now_ms()
        await stores.dead.retry(DeadFilter(), 10)
        assert await stores.times(early.row) == (now_ms, START_MS - 5, 0)
        # It was given up before it was ever due.
        assert await stores.times(late.row) == (now_ms, now_ms, 0)
