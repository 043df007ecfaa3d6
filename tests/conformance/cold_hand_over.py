"""The suite of the `ColdQueue` port: rows change their owner, and outlive whoever brought them."""

import pytest
import trio

from actors.model.slices import ItemError
from actors.ports.tiers import ColdTotals, FlowCount, NewRow, Outlook, RowOutcome, StoreUnavailable
from forebay.run import Run, encode_run, read_head
from tests.conformance.cold_stores import (
    LEASE_S,
    START_MS,
    ColdStores,
    acquire,
    acquired_ids,
    check_books,
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

    async def test_run_under_the_id_of_another_is_stored_beside_it(
        self, stores: ColdStores
    ) -> None:
        first = new_row(2)
        data = encode_run([b"other"] * 5, queue="q", flow="f", run_id=first.head.run_id)
        second = NewRow(number(), read_head(data), data, 0b10101)
        await put(stores, first)
        await put(stores, second)
        await put(stores, second)
        await check_books(stores)
        got = {row.row: row for row in await acquire(stores)}
        assert got[first.row].data == first.data
        moved = got[second.row]
        run = Run(moved.head, moved.data)
        assert (run.payloads(), moved.bits) == ([b"other"] * 5, 0b10101)
        assert run.item_ids() == Run(second.head, data).item_ids()

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
