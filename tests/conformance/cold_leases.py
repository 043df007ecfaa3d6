"""The suite of the `ColdQueue` port: rows are lent in order, for a time, within limits."""

from actors.ports.tiers import Outlook, RowOutcome
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

    async def test_a_row_is_cut_to_what_is_wanted(self, stores: ColdStores) -> None:
        rows = [new_row(2), new_row(5, bits=0b11101), new_row(1)]
        await put(stores, *rows)
        first, second = await acquire(stores, LOCK, items_max=4, cuts=True)
        assert (first.row, second.row) == (rows[0].row, rows[1].row)
        assert second.bits == 0b00101
        # The rest of the row is free, at its old place.
        rest, last = await acquire(stores, OTHER, items_max=9, cuts=True)
        assert (rest.head.run_id, rest.bits) == (rows[1].head.run_id, 0b11000)
        assert last.row == rows[2].row
        assert (await stores.cold.totals())["q"].runs == 4
        await check_books(stores)
        done = [
            RowOutcome(first.row, LOCK, first.bits),
            RowOutcome(second.row, LOCK, second.bits),
            RowOutcome(rest.row, OTHER, rest.bits),
            RowOutcome(last.row, OTHER, last.bits),
        ]
        assert await stores.cold.settle(done) == [True] * 4
        totals = (await stores.cold.totals())["q"]
        assert (totals.held, totals.runs, totals.delivered) == (0, 0, 7)
        assert not await stores.bodies()
        await check_books(stores)

    async def test_both_parts_of_a_row_that_was_cut_are_due_again(self, stores: ColdStores) -> None:
        row = new_row(3)
        await put(stores, row)
        (part,) = await acquire(stores, LOCK, items_max=1, cuts=True)
        await stores.cold.release(LOCK, [part.row])
        again = await acquire(stores, OTHER, items_max=3, cuts=True)
        assert [each.bits for each in again] == [0b001, 0b110]
        stores.advance(LEASE_MS)
        more = await acquire(stores, LOCK, items_max=2, cuts=True)
        assert [each.bits for each in more] == [0b001, 0b010]
        await check_books(stores)

    async def test_a_row_that_fits_is_not_cut(self, stores: ColdStores) -> None:
        rows = [new_row(2), new_row(2)]
        await put(stores, *rows)
        assert [row.row for row in await acquire(stores, items_max=4, cuts=True)] == [
            row.row for row in rows
        ]
        assert (await stores.cold.totals())["q"].runs == 2

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
        # It is set aside, not thrown away, and in the books as lost.
        assert rows[0].head.run_id in await stores.bodies()
        found = (await stores.cold.totals())["q"]
        assert (found.held, found.lost) == (6, 6)
        await check_books(stores)
