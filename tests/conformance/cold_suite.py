"""The suite of the `ColdQueue` port: what every cold store must do, whatever it is made of."""

import pytest
import trio

from actors.slices import ItemError, item_bits
from actors.tiers import ColdTotals, FlowCount, NewRow, Outlook, RowOutcome, StoreUnavailable
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


class HandOverSuite:
    async def test_what_is_stored_is_invisible_until_confirmed(self, stores: ColdStores) -> None:
        row = new_row(origin=b"chunk 7")
        await stores.cold.store([row])
        assert await acquire(stores) == []
        assert await stores.cold.outlook("q") == Outlook(has_due=False, next_due_ms=None)
        assert await stores.cold.totals() == {}
        assert await stores.cold.flows() == []
        assert await stores.cold.unconfirmed() == [(row.row, b"chunk 7", "q", 3)]

    async def test_what_is_confirmed_is_counted_and_acquired(self, stores: ColdStores) -> None:
        row = new_row(
            attempt=2,
            row_due_ms=START_MS - 5,
            bits=0b101,
            errors=(ItemError(1, START_MS - 9, "é ☃ \ud800 \0"), ItemError(2, START_MS - 8, "")),
        )
        await put(stores, row)
        assert await stores.cold.unconfirmed() == []
        assert await stores.cold.totals() == {"q": ColdTotals(taken=2, held=2, runs=1)}
        assert await stores.cold.flows() == [FlowCount("q", "f", "a", items=2, dead=0)]
        (got,) = await acquire(stores)
        assert (got.row, got.head, got.data, got.bits) == (row.row, row.head, row.data, 0b101)
        assert (got.attempt, got.due_ms, got.errors) == (2, START_MS - 5, row.errors)

    async def test_storing_and_confirming_twice_is_once(self, stores: ColdStores) -> None:
        row = new_row()
        await stores.cold.store([row, row])
        await stores.cold.store([row])
        await stores.cold.confirm([row.row, row.row])
        await stores.cold.confirm([row.row])
        assert await acquired_ids(stores) == [row.row]
        assert await stores.cold.totals() == {"q": ColdTotals(taken=3, held=3, runs=1)}

    async def test_storing_again_what_is_acquired_changes_nothing(self, stores: ColdStores) -> None:
        row = new_row()
        await put(stores, row)
        await acquire(stores)
        await put(stores, row)
        assert await acquire(stores, OTHER) == []
        assert (await stores.cold.totals())["q"].taken == 3

    async def test_forgotten_rows_leave_nothing_behind(self, stores: ColdStores) -> None:
        gone, kept = new_row(), new_row()
        await stores.cold.store([gone, kept, part_of(kept, 0b1)])
        await stores.cold.forget([gone.row, kept.row, number()])
        assert [left.items for left in await stores.cold.unconfirmed()] == [1]
        assert await stores.bodies() == {kept.head.run_id}

    async def test_confirmed_rows_are_not_forgotten(self, stores: ColdStores) -> None:
        row = new_row()
        await put(stores, row)
        await stores.cold.forget([row.row])
        assert await acquired_ids(stores) == [row.row]

    async def test_rows_that_share_a_body_store_it_once(self, stores: ColdStores) -> None:
        first = new_row(5, bits=0b00011)
        second = part_of(first, 0b11100, attempt=3)
        await put(stores, first, second)
        assert await stores.bodies() == {first.head.run_id}
        rows = await acquire(stores)
        assert [(row.bits, row.attempt) for row in rows] == [(0b00011, 0), (0b11100, 3)]
        await stores.cold.settle([RowOutcome(first.row, LOCK, delivered=first.bits)])
        assert await stores.bodies() == {first.head.run_id}
        await stores.cold.settle([RowOutcome(second.row, LOCK, delivered=second.bits)])
        assert await stores.bodies() == set()

    async def test_a_killed_process_loses_nothing(self, stores: ColdStores) -> None:
        stored, kept, done = new_row(origin=b"o"), new_row(), new_row()
        await stores.cold.store([stored])
        await put(stores, kept, done)
        await acquire(stores)
        await stores.cold.settle([RowOutcome(done.row, LOCK, delivered=done.bits)])
        await stores.crash()
        assert [left.row for left in await stores.cold.unconfirmed()] == [stored.row]
        assert await stores.cold.totals() == {"q": ColdTotals(taken=6, delivered=3, held=3, runs=1)}
        assert await acquire(stores, OTHER) == []
        stores.advance(LEASE_MS)
        assert await acquired_ids(stores, OTHER) == [kept.row]

    async def test_a_closed_store_is_unavailable_and_opens_again(self, stores: ColdStores) -> None:
        row = new_row()
        await put(stores, row)
        await stores.cold.close()
        with pytest.raises(StoreUnavailable):
            await stores.cold.totals()
        await stores.cold.close()
        await stores.reopen()
        assert await acquired_ids(stores) == [row.row]

    async def test_a_cancelled_caller_waits_for_what_has_begun(self, stores: ColdStores) -> None:
        """Either it has happened, or the call was cancelled before it began."""
        row = new_row()
        with trio.CancelScope() as scope:
            scope.cancel()
            await stores.cold.store([row])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stores.cold.store, [row])
            nursery.cancel_scope.cancel()
        stored = bool(await stores.cold.unconfirmed())
        await stores.cold.confirm([row.row])
        assert bool(await acquire(stores)) is stored

    async def test_many_tasks_may_call_at_once(self, stores: ColdStores) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(put, stores, new_row())
                nursery.start_soon(stores.cold.outlook, "q")
        assert len(await acquire(stores)) == 20
        await check_books(stores)


class LeaseSuite:
    async def test_rows_come_in_order(self, stores: ColdStores) -> None:
        """Priority, the time it was first due (or made), run id, first item."""
        early, late = b"\0" * 15 + b"\1", b"\0" * 15 + b"\2"
        expected = [
            new_row(priority=0, enqueued_ms=START_MS),
            new_row(priority=5, due_ms=START_MS - 100, enqueued_ms=START_MS),
            new_row(priority=5, enqueued_ms=START_MS - 50),
            new_row(4, run_id=early, bits=0b0010),
            new_row(4, run_id=early, bits=0b1100),
            new_row(4, run_id=late, bits=0b0001),
            new_row(priority=200, enqueued_ms=START_MS - 1000),
        ]
        await put(stores, *expected[::-1])
        assert await acquired_ids(stores) == [row.row for row in expected]

    async def test_limits_are_kept_and_one_row_always_comes(self, stores: ColdStores) -> None:
        rows = [new_row(3) for _ in range(4)]
        await put(stores, *rows)
        assert await acquired_ids(stores, items_max=1) == [rows[0].row]
        assert await acquired_ids(stores, items_max=8) == [rows[1].row, rows[2].row]
        assert await acquired_ids(stores, bytes_max=1) == [rows[3].row]

    async def test_bytes_are_those_of_bodies_each_once(self, stores: ColdStores) -> None:
        one = new_row(3, bits=0b001)
        rows = [one, part_of(one, 0b010), part_of(one, 0b100), new_row(3)]
        await put(stores, *rows)
        enough_for_one_body = 3 + len(one.data)
        got = await acquired_ids(stores, bytes_max=enough_for_one_body)
        assert got == [row.row for row in rows[:3]]

    async def test_a_row_that_does_not_fit_is_not_overtaken(self, stores: ColdStores) -> None:
        rows = [new_row(2), new_row(5), new_row(1)]
        await put(stores, *rows)
        assert await acquired_ids(stores, items_max=4) == [rows[0].row]

    async def test_queues_are_apart(self, stores: ColdStores) -> None:
        mine, other = new_row(), new_row(queue="other")
        await put(stores, mine, other)
        assert await acquired_ids(stores, queue="nothing") == []
        assert await acquired_ids(stores) == [mine.row]
        assert (await stores.cold.outlook("other")).has_due

    async def test_paused_flows_are_left_alone(self, stores: ColdStores) -> None:
        paused, free = new_row(flow="paused", priority=0), new_row(flow="free")
        later = new_row(flow="paused", row_due_ms=START_MS + 10)
        await put(stores, paused, free, later)
        without = frozenset({"paused", "unheard of"})
        assert await acquired_ids(stores, except_flows=without) == [free.row]
        assert await stores.cold.outlook("q", without) == Outlook(False, START_MS + LEASE_MS)
        assert await stores.cold.outlook("q") == Outlook(True, START_MS + 10)
        stores.advance(10)
        assert await stores.cold.outlook("q", without) == Outlook(False, START_MS + LEASE_MS)
        assert await acquired_ids(stores, OTHER) == [paused.row, later.row]

    async def test_nothing_comes_before_its_time(self, stores: ColdStores) -> None:
        later, now = new_row(priority=0, row_due_ms=START_MS + 1000), new_row()
        await put(stores, later, now)
        assert await acquired_ids(stores) == [now.row]
        assert await stores.cold.outlook("q") == Outlook(False, START_MS + 1000)
        stores.advance(999)
        assert await acquire(stores) == []
        stores.advance(1)
        assert await stores.cold.outlook("q") == Outlook(True, START_MS + LEASE_MS)
        assert await acquired_ids(stores) == [later.row]

    async def test_a_lease_that_ran_out_is_due_again_at_its_old_place(
        self, stores: ColdStores
    ) -> None:
        rows = [new_row() for _ in range(3)]
        await put(stores, *rows)
        assert await acquired_ids(stores, items_max=3) == [rows[0].row]
        assert await stores.cold.outlook("q") == Outlook(True, START_MS + LEASE_MS)
        stores.advance(LEASE_MS)
        assert await acquired_ids(stores, OTHER) == [row.row for row in rows]

    async def test_a_renewed_lease_lasts(self, stores: ColdStores) -> None:
        rows = [new_row() for _ in range(3)]
        await put(stores, *rows)
        await acquire(stores, LOCK, items_max=6)
        await acquire(stores, OTHER)
        stores.advance(LEASE_MS - 1)
        assert await stores.cold.renew([LOCK, number(), OTHER], 2 * LEASE_S) == [2, 0, 1]
        stores.advance(2 * LEASE_MS - 1)
        assert await acquire(stores) == []
        stores.advance(1)
        assert len(await acquire(stores)) == 3

    async def test_a_lease_that_nobody_took_over_can_be_renewed(self, stores: ColdStores) -> None:
        rows = [new_row(1), new_row(1)]
        await put(stores, *rows)
        await acquire(stores)
        stores.advance(LEASE_MS)
        assert await acquired_ids(stores, OTHER, items_max=1) == [rows[0].row]
        assert await stores.cold.renew([LOCK], LEASE_S) == [1]
        assert await acquire(stores, OTHER) == []
        assert await stores.cold.outlook("q") == Outlook(False, stores.now_ms() + LEASE_MS)

    async def test_released_rows_are_due_at_once(self, stores: ColdStores) -> None:
        rows = [new_row() for _ in range(3)]
        await put(stores, *rows)
        await acquire(stores)
        await stores.cold.release(OTHER, [row.row for row in rows])
        assert await acquire(stores, OTHER) == []
        await stores.cold.release(LOCK, [rows[1].row, number()])
        assert (await stores.cold.outlook("q")).has_due
        assert await acquired_ids(stores, OTHER) == [rows[1].row]
        assert await stores.cold.renew([LOCK, OTHER], LEASE_S) == [2, 1]

    async def test_a_damaged_body_does_not_block_the_queue(self, stores: ColdStores) -> None:
        rows = [new_row() for _ in range(4)]
        await put(stores, *rows)
        await stores.damage_body(rows[0].head.run_id)
        await stores.damage_body(rows[2].head.run_id)
        assert await acquired_ids(stores, items_max=3) == [rows[1].row]
        assert await acquired_ids(stores) == [rows[3].row]
        assert await stores.cold.outlook("q") == Outlook(False, START_MS + LEASE_MS)
        # It is set aside, not thrown away, and still in the books.
        assert rows[0].head.run_id in await stores.bodies()
        assert (await stores.cold.totals())["q"].held == 12
        await check_books(stores)


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


class ColdSuite(HandOverSuite, LeaseSuite, SettleSuite):
    """All of it."""
