"""The suite of the `ColdQueue` port: outcomes are recorded once, and the books balance."""

import pytest

from actors.model.slices import ItemError, item_bits
from actors.ports.tiers import ColdTotals, FlowCount, NewRow, Outlook, RowOutcome
from tests.conformance.cold_stores import (
    LEASE_S,
    START_MS,
    ColdStores,
    acquire,
    acquired_ids,
    check_books,
    dead_row,
    new_row,
    number,
    part_of,
    put,
)

LOCK, OTHER = b"L" * 16, b"O" * 16
LEASE_MS = round(LEASE_S * 1000)


class SettleSuite:
    async def test_delivered_rows_are_gone(self, stores: ColdStores) -> None:
        row = new_row()
        await put(stores, row)
        await acquire(stores)
        assert await stores.cold.settle([RowOutcome(row.row, LOCK, delivered=0b111)]) == [True]
        assert await stores.bodies() == set()
        assert await stores.cold.totals() == {"q": ColdTotals(taken=3, delivered=3)}
        assert await stores.cold.flows() == []
        stores.advance(LEASE_MS)
        assert await acquire(stores) == []

    async def test_items_that_are_not_named_stay_leased(self, stores: ColdStores) -> None:
        row = new_row()
        await put(stores, row)
        await acquire(stores)
        outcome = RowOutcome(row.row, LOCK, delivered=0b011)
        assert await stores.cold.settle([outcome]) == [True]
        assert await acquire(stores, OTHER) == []
        # Told twice, counted once.
        assert await stores.cold.settle([outcome, outcome]) == [True, True]
        assert (await stores.cold.totals())["q"] == ColdTotals(taken=3, delivered=2, held=1, runs=1)
        stores.advance(LEASE_MS)
        (rest,) = await acquire(stores, OTHER)
        assert rest.bits == 0b100

    async def test_an_item_is_counted_once_however_often_it_is_named(
        self, stores: ColdStores
    ) -> None:
        row = new_row(4)
        await put(stores, row)
        (got,) = await acquire(stores)
        again = part_of(got, 0b0100)
        for outcome in (
            RowOutcome(row.row, LOCK, delivered=0b0001),
            RowOutcome(row.row, LOCK, delivered=0b0011),
            # Both delivered and to be tried again: it is tried again.
            RowOutcome(row.row, LOCK, delivered=0b0111, moved=(again,), moved_bits=0b0100),
            RowOutcome(row.row, LOCK, delivered=0b11_0000_1111),
        ):
            assert await stores.cold.settle([outcome]) == [True]
            await check_books(stores)
        assert await stores.cold.totals() == {"q": ColdTotals(taken=4, delivered=3, held=1, runs=1)}
        assert await acquired_ids(stores, OTHER) == [again.row]

    async def test_a_lock_that_has_moved_on_changes_nothing(self, stores: ColdStores) -> None:
        row = new_row()
        await put(stores, row)
        unlocked = RowOutcome(row.row, LOCK, delivered=0b1)
        assert await stores.cold.settle([unlocked]) == [False]
        await acquire(stores, LOCK)
        stores.advance(LEASE_MS)
        await acquire(stores, OTHER)
        late = RowOutcome(
            row.row, LOCK, delivered=0b1, moved=(part_of(row, 0b10),), moved_bits=0b10
        )
        current = RowOutcome(row.row, OTHER, delivered=0b1)
        unknown = RowOutcome(number(), OTHER, delivered=0b1)
        assert await stores.cold.settle([late, current, unknown]) == [False, True, False]
        assert (await stores.cold.totals())["q"] == ColdTotals(taken=3, delivered=1, held=2, runs=1)

    async def test_a_lease_that_nobody_took_over_can_be_settled(self, stores: ColdStores) -> None:
        rows = [new_row(2), new_row(2)]
        await put(stores, *rows)
        await acquire(stores)
        stores.advance(LEASE_MS)
        assert await acquired_ids(stores, OTHER, items_max=1) == [rows[0].row]
        outcomes = [RowOutcome(row.row, LOCK, delivered=0b01) for row in rows]
        assert await stores.cold.settle(outcomes) == [False, True]
        (rest,) = await acquire(stores, OTHER)
        assert (rest.row, rest.bits) == (rows[1].row, 0b10)

    async def test_retries_and_dead_letters_become_rows(self, stores: ColdStores) -> None:
        row = new_row(4)
        await put(stores, row)
        (got,) = await acquire(stores)
        errors = (ItemError(1, START_MS, "no"),)
        again = part_of(got, 0b0110, attempt=1, errors=errors, due_ms=START_MS + 500)
        letter = part_of(got, 0b1000, attempt=1, errors=errors, is_dead=True)
        outcome = RowOutcome(row.row, LOCK, 0b0001, (again, letter), 0b1110)
        assert await stores.cold.settle([outcome]) == [True]
        assert await stores.cold.settle([outcome]) == [False]
        assert await stores.cold.totals() == {
            "q": ColdTotals(taken=4, delivered=1, dead=1, held=2, runs=1)
        }
        assert await stores.cold.flows() == [FlowCount("q", "f", "a", items=2, dead=1)]
        assert await stores.cold.outlook("q") == Outlook(False, START_MS + 500)
        assert await stores.bodies() == {row.head.run_id}
        stores.advance(500)
        (retried,) = await acquire(stores)
        assert (retried.row, retried.bits, retried.attempt) == (again.row, 0b0110, 1)
        assert retried.errors == errors

    async def test_a_move_told_twice_does_not_bring_back_what_was_settled_since(
        self, stores: ColdStores
    ) -> None:
        row = new_row()
        await put(stores, row)
        (got,) = await acquire(stores)
        again = part_of(got, 0b001, attempt=1)
        outcome = RowOutcome(row.row, LOCK, moved=(again,), moved_bits=0b001)
        await stores.cold.settle([outcome])
        assert await acquired_ids(stores, OTHER) == [again.row]
        await stores.cold.settle([RowOutcome(again.row, OTHER, delivered=0b001)])
        assert await stores.cold.settle([outcome]) == [True]
        more = RowOutcome(row.row, LOCK, 0b010, moved=(again,), moved_bits=0b001)
        assert await stores.cold.settle([more]) == [True]
        assert await acquire(stores, OTHER) == []
        assert await stores.cold.totals() == {"q": ColdTotals(taken=3, delivered=2, held=1, runs=1)}
        await check_books(stores)

    async def test_a_move_of_items_that_have_left_in_part_is_refused(
        self, stores: ColdStores
    ) -> None:
        row = new_row()
        await put(stores, row)
        (got,) = await acquire(stores)
        await stores.cold.settle([RowOutcome(row.row, LOCK, delivered=0b001)])
        outcome = RowOutcome(row.row, LOCK, moved=(part_of(got, 0b011),), moved_bits=0b011)
        assert await stores.cold.settle([outcome]) == [False]
        await check_books(stores)

    async def test_a_moved_row_may_bring_its_own_body(self, stores: ColdStores) -> None:
        row = new_row(2)
        await put(stores, row)
        await acquire(stores)
        other = new_row(1, flow="elsewhere")
        outcome = RowOutcome(row.row, LOCK, delivered=0b01, moved=(other,), moved_bits=0b10)
        assert await stores.cold.settle([outcome]) == [True]
        assert await stores.bodies() == {other.head.run_id}
        assert await stores.cold.flows() == [FlowCount("q", "elsewhere", "a", items=1, dead=0)]
        (got,) = await acquire(stores, OTHER)
        assert got.data == other.data

    async def test_a_row_may_be_followed_by_one_of_the_same_id(self, stores: ColdStores) -> None:
        row = new_row()
        await put(stores, row)
        (got,) = await acquire(stores)
        again = NewRow(row.row, got.head, got.data, got.bits, attempt=1)
        outcome = RowOutcome(row.row, LOCK, moved=(again,), moved_bits=got.bits)
        assert await stores.cold.settle([outcome]) == [True]
        (got,) = await acquire(stores, OTHER)
        assert (got.row, got.attempt) == (row.row, 1)

    async def test_an_outcome_that_does_not_add_up_changes_nothing(
        self, stores: ColdStores
    ) -> None:
        row, other = new_row(), new_row()
        await put(stores, row, other)
        rows = await acquire(stores)
        good = RowOutcome(other.row, LOCK, delivered=0b111)
        for bad in (
            RowOutcome(row.row, LOCK, moved_bits=0b1),
            RowOutcome(row.row, LOCK, moved=(part_of(rows[0], 0b11),), moved_bits=0b1),
            RowOutcome(row.row, LOCK, moved=(new_row(1, queue="x"),), moved_bits=0b1),
            RowOutcome(row.row, LOCK, moved=(new_row(1, row=other.row),), moved_bits=0b1),
        ):
            with pytest.raises(ValueError, match=r"item|row"):
                await stores.cold.settle([bad, good])
        assert await stores.cold.totals() == {"q": ColdTotals(taken=6, held=6, runs=2)}

    async def test_a_dead_letter_is_one_item(self, stores: ColdStores) -> None:
        with pytest.raises(ValueError, match="2 items"):
            await stores.cold.store([dead_row(items=2, bits=0b11)])
        with pytest.raises(ValueError, match="run of 2"):
            await stores.cold.store([new_row(2, bits=item_bits(0, 3))])

    async def test_books_outlive_the_rows(self, stores: ColdStores) -> None:
        rows = [new_row(flow=f"flow {number}") for number in range(5)]
        await put(stores, *rows)
        await acquire(stores)
        await stores.cold.settle([RowOutcome(row.row, LOCK, delivered=0b111) for row in rows])
        await stores.reopen()
        assert await stores.cold.totals() == {"q": ColdTotals(taken=15, delivered=15)}
        assert await stores.cold.flows() == []
