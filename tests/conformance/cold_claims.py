"""The suite of the `ColdQueue` port: claims are fixed, durable, and acknowledged once."""

import pytest

from actors.model.books import ColdReceipt
from actors.ports.tiers import (
    ColdTotals,
    DeadFilter,
    NewRow,
    Outlook,
    RowOutcome,
    SeenRow,
    Stream,
    WrongClaim,
)
from forebay.limits import TIME_MS_MAX
from tests.conformance.cold_stores import (
    LEASE_S,
    PLENTY,
    START_MS,
    ColdStores,
    acquire,
    acquired_ids,
    check_books,
    dead_row,
    new_row,
    part_of,
    put,
)

LOCK = b"L" * 16
WEEK_MS = 7 * 24 * 3_600_000


async def claim(
    stores: ColdStores, after: int, items_max: int = PLENTY, consumer: str = "c"
) -> Stream:
    return await stores.cold.claim("q", consumer, after, items_max)


async def fetch(
    stores: ColdStores, number: int, *, consumer: str = "c", rows: int = 2, size: int = PLENTY
) -> list[SeenRow]:
    """The whole claim, a few rows at a time."""
    seen: list[SeenRow] = []
    at: int | None = 0
    while at is not None:
        part = await stores.cold.fetch("q", consumer, number, at, rows, size)
        seen += part.rows
        at = part.next
    return seen


def as_seen(number: int, row: NewRow) -> SeenRow:
    is_whole = row.bits == (1 << row.head.count) - 1
    return SeenRow(number, row.due_ms, row.attempt, 0 if is_whole else row.bits, row.data)


class ClaimSuite:
    async def test_a_claim_holds_what_is_due_in_the_order_of_delivery(
        self, stores: ColdStores
    ) -> None:
        low = new_row(2, priority=9)
        second = new_row(2, enqueued_ms=START_MS - 5)
        first = new_row(2, due_ms=START_MS - 9, row_due_ms=START_MS - 9)
        urgent = new_row(2, priority=0, enqueued_ms=START_MS + 5)
        later = new_row(2, row_due_ms=START_MS + 100)
        await put(stores, low, second, first, urgent, later, new_row(queue="other"), dead_row())
        got = await claim(stores, 0)
        assert got == Stream(0, 1, 4, 8, got.bytes, waiting=2, taken=11)
        expected = [as_seen(n, row) for n, row in enumerate([urgent, first, second, low])]
        assert await fetch(stores, 1) == expected
        assert got.bytes == sum(len(row.data) for row in expected)
        stores.advance(100)
        assert (await claim(stores, 0)).claim == 1
        assert (await claim(stores, 1)).claim == 2
        assert await fetch(stores, 2) == [as_seen(0, later)]

    async def test_a_claim_may_be_asked_for_and_read_again_and_is_the_same(
        self, stores: ColdStores
    ) -> None:
        await put(stores, *(new_row(2) for _ in range(5)))
        got = await claim(stores, 0, 6)
        seen = await fetch(stores, 1)
        await put(stores, new_row(2, priority=0))
        assert await claim(stores, 0, 1) == got._replace(waiting=6, taken=12)
        assert await fetch(stores, 1, rows=PLENTY) == seen
        assert await fetch(stores, 1, size=1) == seen
        assert await stores.cold.fetch("q", "c", 1, 2, 9, PLENTY) == (seen[2:], None)
        for past_it in (3, TIME_MS_MAX):
            assert await stores.cold.fetch("q", "c", 1, past_it, 9, PLENTY) == ([], None)
        assert (await stores.cold.stream("q", "c")).claim == 1

    @pytest.mark.parametrize("is_crash", [False, True])
    async def test_a_claim_outlives_the_daemon(self, stores: ColdStores, is_crash: bool) -> None:
        await put(stores, new_row(), new_row(bits=0b101, attempt=2))
        got = await claim(stores, 0)
        seen = await fetch(stores, 1)
        assert [row.bits for row in seen] == [0, 0b101]
        await (stores.crash() if is_crash else stores.reopen())
        await stores.release_all()
        stores.advance(WEEK_MS)
        assert await acquire(stores) == []
        assert await stores.cold.outlook("q") == Outlook(False, None)
        assert await stores.cold.streams() == [("q", "c")]
        assert await claim(stores, 0) == got
        assert await fetch(stores, 1) == seen

    @pytest.mark.parametrize("is_crash", [False, True])
    async def test_what_is_acknowledged_is_delivered_and_gone(
        self, stores: ColdStores, is_crash: bool
    ) -> None:
        rows = [new_row(headers={"forebay-write": "ab" * 16}), new_row(flow="g"), new_row()]
        await put(stores, *rows)
        await claim(stores, 0, 6)
        assert (await stores.cold.totals())["q"] == ColdTotals(taken=9, held=9, runs=3)
        await claim(stores, 1, 3)
        await (stores.crash() if is_crash else stores.reopen())
        assert await claim(stores, 1) == Stream(1, 2, 1, 3, len(rows[2].data), 0, 9)
        assert await stores.bodies() == {rows[2].head.run_id}
        assert (await stores.cold.totals())["q"] == ColdTotals(9, 6, held=3, runs=1)
        assert await stores.cold.receipt(b"\xab" * 16) == ColdReceipt(delivered=3)
        await check_books(stores)
        assert await claim(stores, 2) == Stream(acknowledged=2, taken=9)
        assert await claim(stores, 2) == Stream(acknowledged=2, taken=9)
        assert await stores.bodies() == set()
        assert await stores.cold.flows() == []

    async def test_after_must_be_where_the_consumer_stands(self, stores: ColdStores) -> None:
        with pytest.raises(WrongClaim):
            await claim(stores, 1)
        assert await stores.cold.streams() == []
        await put(stores, new_row(1), new_row(1), new_row(1))
        await claim(stores, 0, 1)
        for wrong in (2, 3):
            with pytest.raises(WrongClaim):
                await claim(stores, wrong)
        await claim(stores, 1, 1)
        for wrong in (0, 3):
            with pytest.raises(WrongClaim):
                await claim(stores, wrong)
        await claim(stores, 2, 0)
        for wrong in (1, 3):
            with pytest.raises(WrongClaim):
                await claim(stores, wrong)
        assert await stores.cold.stream("q", "c") == Stream(2, waiting=1, taken=3)
        for number in (1, 2, 3):
            with pytest.raises(WrongClaim):
                await fetch(stores, number)
        with pytest.raises(WrongClaim):
            await fetch(stores, 1, consumer="nobody")

    async def test_a_row_that_is_too_large_is_claimed_alone(self, stores: ColdStores) -> None:
        await put(stores, new_row(9), new_row(1), new_row(2))
        assert (await claim(stores, 0, 2)).items == 9
        assert (await claim(stores, 1, 2)).items == 1
        assert (await claim(stores, 2, 0)).claim is None
        assert (await claim(stores, 2, 2)).items == 2

    async def test_consumers_do_not_share(self, stores: ColdStores) -> None:
        rows = [new_row(2) for _ in range(3)]
        await put(stores, *rows)
        assert (await claim(stores, 0, 2)).waiting == 4
        other = await claim(stores, 0, consumer="d")
        assert (other.claim, other.items, other.waiting) == (1, 4, 0)
        assert await fetch(stores, 1) == [as_seen(0, rows[0])]
        assert [row.number for row in await fetch(stores, 1, consumer="d")] == [0, 1]
        await claim(stores, 1, consumer="d")
        assert (await stores.cold.stream("q", "c")).items == 2
        assert await stores.cold.streams() == [("q", "c"), ("q", "d")]
        assert await stores.cold.stream("q", "nobody") == Stream(waiting=0, taken=6)

    async def test_claimed_rows_are_nobody_elses(self, stores: ColdStores) -> None:
        """Not even of a lease that ran out, and was theirs before."""
        row, letter = new_row(), dead_row()
        await put(stores, row, letter)
        await acquire(stores)
        stores.advance(round(LEASE_S * 1000))
        await claim(stores, 0)
        assert await stores.cold.settle([RowOutcome(row.row, LOCK, delivered=0b1)]) == [False]
        assert await stores.cold.renew([LOCK], LEASE_S) == [0]
        await stores.cold.release(LOCK, [row.row])
        assert await acquire(stores) == []
        await stores.dead.remove(DeadFilter(), 10)
        assert await stores.cold.drop_stream("q", "c") == 3
        assert await stores.cold.settle([RowOutcome(row.row, LOCK, delivered=0b1)]) == [False]

    async def test_leased_rows_and_paused_flows_are_not_claimed(self, stores: ColdStores) -> None:
        leased, paused, free = new_row(), new_row(flow="g"), new_row(flow="h")
        await put(stores, leased, paused, free)
        await acquire(stores, items_max=3)
        got = await stores.cold.claim("q", "c", 0, PLENTY, frozenset({"g"}))
        assert (got.items, got.waiting) == (3, 6)
        assert await fetch(stores, 1) == [as_seen(0, free)]
        stores.advance(round(LEASE_S * 1000))
        assert (await claim(stores, 1)).items == 6

    async def test_a_dropped_stream_gives_back_what_it_had_at_its_old_place(
        self, stores: ColdStores
    ) -> None:
        rows = [new_row(2, priority=priority) for priority in (1, 2, 3, 4)]
        await put(stores, *rows)
        await claim(stores, 0, 2)
        await claim(stores, 1, 4)
        # What was due stays due.
        stores.step(-WEEK_MS)
        assert await stores.cold.drop_stream("q", "c") == 4
        assert await stores.cold.drop_stream("q", "c") == 0
        assert await stores.cold.streams() == []
        await check_books(stores)
        assert await acquired_ids(stores, items_max=4) == [row.row for row in rows[1:3]]
        with pytest.raises(WrongClaim):
            await claim(stores, 1)
        assert (await claim(stores, 0)).items == 2

    async def test_a_body_goes_with_its_last_row(self, stores: ColdStores) -> None:
        row = new_row(4, bits=0b0011)
        rest = part_of(row, 0b1100, due_ms=START_MS + 50)
        await put(stores, row, rest)
        await claim(stores, 0)
        await claim(stores, 1)
        assert await stores.bodies() == {row.head.run_id}
        stores.advance(50)
        assert (await claim(stores, 1)).claim == 2
        assert await fetch(stores, 2) == [as_seen(0, rest)]
        await claim(stores, 2)
        assert await stores.bodies() == set()

    async def test_a_row_that_cannot_be_read_is_missing_and_holds_up_nothing(
        self, stores: ColdStores
    ) -> None:
        rows = [new_row(2) for _ in range(4)]
        await put(stores, *rows)
        await claim(stores, 0)
        await stores.damage_body(rows[0].head.run_id)
        await stores.damage_body(rows[2].head.run_id)
        for _ in range(2):
            seen = await fetch(stores, 1, rows=1)
            assert seen == [as_seen(1, rows[1]), as_seen(3, rows[3])]
        got = await claim(stores, 0)
        assert (got.claim, got.rows, got.items, got.waiting) == (1, 4, 4, 0)
        assert await claim(stores, 1) == Stream(acknowledged=1, taken=8)
        assert (await stores.cold.totals())["q"] == ColdTotals(8, 4, lost=4)
        await check_books(stores)

    async def test_a_look_sees_all_that_is_held_and_changes_nothing(
        self, stores: ColdStores
    ) -> None:
        rows = [
            new_row(2),
            new_row(3, bits=0b011, attempt=4),
            new_row(2, row_due_ms=START_MS + 10),
            new_row(2, priority=0),
        ]
        await put(stores, *rows, dead_row(), new_row(queue="other"))
        await stores.cold.store([new_row()])
        await claim(stores, 0, 2)
        await acquire(stores, items_max=2)
        before = await stores.cold.stream("q", "c")
        for rows_max, size in ((1, PLENTY), (3, PLENTY), (PLENTY, PLENTY), (PLENTY, 1)):
            seen: list[SeenRow] = []
            cursor: str | None = ""
            while cursor is not None:
                look = await stores.cold.peek("q", cursor, rows_max, size)
                assert 0 < len(look.rows) <= rows_max
                seen += look.rows
                cursor = look.cursor
            assert seen == [as_seen(0, row) for row in rows]
        assert await stores.cold.peek("none", "", 9, PLENTY) == ([], None)
        await stores.damage_body(rows[0].head.run_id)
        assert len((await stores.cold.peek("q", "", 9, PLENTY)).rows) == 3
        assert await stores.cold.stream("q", "c") == before
        assert (await stores.cold.totals())["q"].held == 8
        for bad in ("x", "1", "1-", "-1", "1-x", "9" * 50, f"1-{2**63}", f"{2**63}-1"):
            with pytest.raises(ValueError, match="cursor"):
                await stores.cold.peek("q", bad, 9, PLENTY)

    async def test_a_look_ends_though_more_comes(self, stores: ColdStores) -> None:
        await put(stores, new_row(), new_row())
        look = await stores.cold.peek("q", "", 1, PLENTY)
        await put(stores, new_row(), new_row())
        assert look.cursor is not None
        look = await stores.cold.peek("q", look.cursor, 1, PLENTY)
        while look.cursor is not None:
            look = await stores.cold.peek("q", look.cursor, 1, PLENTY)
            assert not look.rows
            assert look.cursor is None
