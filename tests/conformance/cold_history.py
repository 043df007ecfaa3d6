"""The suite of the `ColdQueue` port: what is finished stays visible, as far as its queue says so.

The books must not know of it, and bodies must go with the last row that needs them, of either kind.
"""

from dataclasses import replace

import pytest

from actors.model.finished import FinishedRow, Keep, Past
from actors.model.slices import HeldBy, ItemError, item_bits
from actors.ports.tiers import ColdTotals, DeadFilter, NewRow, RowOutcome
from forebay.run import Run, RunHead
from tests.conformance.cold_stores import (
    PLENTY,
    START_MS,
    ColdStores,
    acquire,
    check_books,
    dead_row,
    new_row,
    part_of,
    put,
)

LOCK = b"L" * 16
ERROR = ItemError(1, START_MS - 5, "it broke")
HOLDER = HeldBy("host/q/worker \0", START_MS - 7)


def keep(stores: ColdStores, what: Keep) -> None:
    stores.cold.keep_history(lambda queue: what)


def finished(
    new: NewRow, bits: int | None = None, at_ms: int = START_MS, attempt: int = 1
) -> FinishedRow:
    """As the journal's settlement brings it."""
    bits = new.bits if bits is None else bits
    errors = new.errors
    return FinishedRow(new.head, new.data, bits, attempt, "delivered", at_ms, errors)


def payloads(row: FinishedRow) -> list[bytes]:
    every = Run(row.head, row.data).payloads(0, row.head.count)
    return [payload for index, payload in enumerate(every) if row.bits >> index & 1]


def item_ids(row: FinishedRow) -> list[str]:
    return item_ids_of(row.head, row.data, row.bits)


def item_ids_of(head: RunHead, data: bytes, bits: int) -> list[str]:
    every = Run(head, data).item_ids(0, head.count)
    return [id_ for index, id_ in enumerate(every) if bits >> index & 1]


async def past(stores: ColdStores, queue: str = "q") -> list[FinishedRow]:
    found = await stores.cold.history(queue, "", 1000, PLENTY)
    assert found.cursor is None
    return found.rows


async def settle_all(stores: ColdStores, lock: bytes = LOCK) -> None:
    rows = await acquire(stores, lock)
    await stores.cold.settle([RowOutcome(row.row, lock, delivered=row.bits) for row in rows])


class HistorySuite:
    async def test_nothing_is_kept_before_it_is_asked_for(self, stores: ColdStores) -> None:
        await put(stores, new_row(attempt=1, errors=(ERROR,)), dead_row())
        await settle_all(stores)
        await stores.dead.remove(DeadFilter(), 10)
        assert await past(stores) == []
        assert await stores.bodies() == set()

    @pytest.mark.parametrize(
        "what, shown", [("none", 0), ("failures", 2), ("all", 3)], ids=["none", "some", "all"]
    )
    async def test_rows_that_are_delivered_here_are_kept_as_their_queue_says(
        self, stores: ColdStores, what: Keep, shown: int
    ) -> None:
        keep(stores, what)
        first = new_row(2)
        failed = new_row(3, attempt=1, errors=(ERROR,), priority=7)
        # A letter that was retried starts again at 0, and has its errors.
        retried = new_row(1, errors=(ERROR,))
        await put(stores, first, failed, retried)
        stores.advance(50)
        await settle_all(stores)
        rows = await past(stores)
        assert len(rows) == shown
        if shown:
            by_id = {row.head.run_id: row for row in rows}
            row = by_id[failed.head.run_id]
            assert (row.outcome, row.attempt, row.bits) == ("delivered", 2, 0b111)
            assert (row.finished_ms, row.errors) == (START_MS + 50, (ERROR,))
            assert row.data == failed.data
            assert retried.head.run_id in by_id
        assert await stores.cold.totals() == {"q": ColdTotals(taken=6, delivered=6)}
        await check_books(stores)

    async def test_a_part_that_is_delivered_is_kept_once_and_the_rest_stays(
        self, stores: ColdStores
    ) -> None:
        keep(stores, "all")
        row = new_row(4)
        await put(stores, row)
        (got,) = await acquire(stores)
        dead = part_of(got, 0b0100, is_dead=True, errors=(ERROR,), attempt=1)
        again = part_of(got, 0b1000, attempt=1, errors=(ERROR,))
        outcome = RowOutcome(row.row, LOCK, 0b0001, (dead, again), 0b1100)
        # Told twice, kept once.
        await stores.cold.settle([outcome])
        await stores.cold.settle([outcome])
        assert [one.bits for one in await past(stores)] == [0b0001]
        await stores.cold.settle([RowOutcome(row.row, LOCK, delivered=0b0010)])
        await settle_all(stores, b"M" * 16)
        assert [(one.bits, one.attempt) for one in await past(stores)] == [
            (0b1000, 2),
            (0b0010, 1),
            (0b0001, 1),
        ]
        assert await stores.bodies() == {row.head.run_id}
        await check_books(stores)

    async def test_who_had_items_and_what_was_said_of_them_is_kept(
        self, stores: ColdStores
    ) -> None:
        keep(stores, "all")
        here, brought = new_row(3), new_row(2)
        await put(stores, here)
        await acquire(stores)
        results = ((0b001, "invoice 17"), (0b110, "Größe \0 17"))
        outcome = RowOutcome(here.row, LOCK, 0b111, holder=HOLDER, results=results)
        await stores.cold.settle([outcome])
        row = replace(
            finished(brought, at_ms=START_MS - 1), holder=HOLDER, result="by hand", job="j"
        )
        await stores.cold.note_history([row, finished(brought, 1, at_ms=START_MS - 2)])
        found = await past(stores)
        assert [(one.bits, one.result, one.job) for one in found] == [
            (0b110, "Größe \0 17", ""),
            (0b001, "invoice 17", ""),
            (0b11, "by hand", "j"),
            (0b01, "", ""),
        ]
        assert [one.holder for one in found] == [HOLDER, HOLDER, HOLDER, None]

    async def test_errors_are_kept_with_their_reason_and_who_had_the_item(
        self, stores: ColdStores
    ) -> None:
        keep(stores, "failures")
        errors = (ERROR, ItemError(2, START_MS, "no credit", "business", *HOLDER))
        letter = dead_row(errors=errors)
        await put(stores, letter)
        (found,) = (await stores.dead.find(DeadFilter(), 10)).letters
        assert found.errors == errors
        await stores.dead.remove(DeadFilter(), 10)
        assert [row.errors for row in await past(stores)] == [errors]

    async def test_a_stale_outcome_keeps_nothing(self, stores: ColdStores) -> None:
        keep(stores, "all")
        row = new_row()
        await put(stores, row)
        await acquire(stores)
        answers = await stores.cold.settle([RowOutcome(row.row, b"?" * 16, delivered=0b111)])
        assert answers == [False]
        assert await past(stores) == []

    @pytest.mark.parametrize("what", ["failures", "all"])
    async def test_a_letter_that_is_removed_is_kept_with_its_errors(
        self, stores: ColdStores, what: Keep
    ) -> None:
        keep(stores, what)
        letter, other = dead_row("it broke"), dead_row(queue="other")
        await put(stores, letter, other)
        stores.advance(7)
        await stores.dead.remove(DeadFilter(queue="q"), 10)
        (row,) = await past(stores)
        assert (row.outcome, row.attempt, row.finished_ms) == ("deleted", 2, START_MS + 7)
        assert row.errors == letter.errors
        assert payloads(row) == [b"payload 0"]
        assert await past(stores, "other") == []
        assert (await stores.cold.totals())["q"] == ColdTotals(taken=1, deleted=1)

    @pytest.mark.parametrize("what, shown", [("none", 0), ("failures", 1), ("all", 3)])
    async def test_a_claim_that_is_acknowledged_is_kept(
        self, stores: ColdStores, what: Keep, shown: int
    ) -> None:
        keep(stores, what)
        rows = [new_row(2), new_row(3, attempt=2, errors=(ERROR,)), new_row(1)]
        await put(stores, *rows)
        await stores.cold.claim("q", "c", 0, PLENTY)
        assert await past(stores) == []
        stores.advance(9)
        await stores.cold.claim("q", "c", 1, PLENTY)
        found = await past(stores)
        assert len(found) == shown
        if shown:
            (failed,) = [row for row in found if row.errors]
            assert (failed.attempt, failed.finished_ms) == (3, START_MS + 9)
        assert len(await stores.bodies()) == shown
        assert (await stores.cold.totals())["q"] == ColdTotals(taken=6, delivered=6)

    async def test_what_was_finished_elsewhere_is_kept_outside_the_books(
        self, stores: ColdStores
    ) -> None:
        keep(stores, "all")
        run = new_row(5, keys=[b"k%d" % index for index in range(5)], headers={"a": "b"})
        await stores.cold.note_history([finished(run, 0b00111), finished(run, 0b11000, attempt=3)])
        first, second = sorted(await past(stores), key=lambda row: row.attempt)
        assert payloads(first) == [b"payload 0", b"payload 1", b"payload 2"]
        assert payloads(second) == [b"payload 3", b"payload 4"]
        assert first.head.headers() == {"a": "b"}
        assert await stores.bodies() == {run.head.run_id}
        assert await stores.cold.totals() == {}
        assert list(await stores.cold.flows()) == []
        await stores.reopen()
        assert len(await past(stores)) == 2

    async def test_a_few_failures_do_not_keep_a_large_run(self, stores: ColdStores) -> None:
        """Items that are cut out keep their ids, here and where they are delivered."""
        keep(stores, "failures")
        payload = bytes(range(256)) * 8
        elsewhere = new_row(100, payload=payload, errors=(ERROR,), attempt=1)
        here = new_row(100, payload=payload)
        await stores.cold.note_history([finished(elsewhere, 0b101)])
        await put(stores, here)
        (got,) = await acquire(stores)
        again = part_of(got, 0b110, attempt=1, errors=(ERROR,))
        letter = part_of(got, 0b1000, is_dead=True, attempt=1, errors=(ERROR,))
        every = item_bits(0, 100)
        outcome = RowOutcome(here.row, LOCK, every & ~0b1110, (again, letter), 0b1110)
        await stores.cold.settle([outcome])
        await settle_all(stores, b"M" * 16)
        await stores.dead.remove(DeadFilter(), 1)
        rows = await past(stores)
        assert sorted(map(len, (row.data for row in rows)))[-1] < len(here.data) // 10
        ids = {id_ for row in rows for id_ in item_ids(row)}
        assert ids == {
            *item_ids_of(elsewhere.head, elsewhere.data, 0b101),
            *item_ids_of(here.head, here.data, 0b1110),
        }
        assert await stores.bodies() == {row.head.run_id for row in rows}
        assert here.head.run_id not in await stores.bodies()

    async def test_history_is_read_newest_first_in_pages_that_end_where_they_began(
        self, stores: ColdStores
    ) -> None:
        keep(stores, "all")
        rows = [new_row(1) for _ in range(7)]
        # Two at the same moment: each is seen once.
        times = [START_MS + at for at in (0, 1, 2, 2, 3, 4, 5)]
        await stores.cold.note_history(
            [finished(row, at_ms=at) for row, at in zip(rows, times, strict=True)]
        )
        await stores.cold.note_history([finished(new_row(1, queue="other"))])
        seen: list[FinishedRow] = []
        cursor: str | None = ""
        while cursor is not None:
            page: Past = await stores.cold.history("q", cursor, 2, PLENTY)
            assert 0 < len(page.rows) <= 2
            seen += page.rows
            cursor = page.cursor
            await stores.cold.note_history([finished(new_row(1), at_ms=START_MS + 100)])
        ids = [row.head.run_id for row in seen]
        assert ids == [row.head.run_id for row in reversed(rows)]
        assert [row.finished_ms for row in seen] == sorted(times, reverse=True)

    async def test_a_page_ends_where_it_has_grown_too_large(self, stores: ColdStores) -> None:
        keep(stores, "all")
        rows = [new_row(1, payload=b"x" * 1000) for _ in range(3)]
        await stores.cold.note_history([finished(row) for row in rows])
        size = max(len(row.data) for row in rows)
        assert len((await stores.cold.history("q", "", 10, 2 * size)).rows) == 2
        # One always fits.
        assert len((await stores.cold.history("q", "", 10, 1)).rows) == 1
        # Errors are counted too: an answer says so much about its rows, and no more.
        errors = tuple(ItemError(attempt, START_MS, "é" * 500) for attempt in range(20))
        many = [new_row(1, queue="e", errors=errors) for _ in range(60)]
        await stores.cold.note_history([finished(row) for row in many])
        assert 1 < len((await stores.cold.history("e", "", 1000, PLENTY)).rows) < 60

    @pytest.mark.parametrize(
        "cursor",
        ["x", "1", "-", "1-", "-1", "1-x", "9" * 50 + "-1", f"1-{2**63}", f"{2**63}-1", "1-1-1"],
    )
    async def test_what_is_no_cursor_is_refused(self, stores: ColdStores, cursor: str) -> None:
        with pytest.raises(ValueError, match="cursor"):
            await stores.cold.history("q", cursor, 1, 1)

    async def test_what_is_too_old_is_forgotten_with_its_bodies_in_steps(
        self, stores: ColdStores
    ) -> None:
        keep(stores, "all")
        held = new_row(2)
        await put(stores, held)
        old = [new_row(1) for _ in range(500)]
        young, other = new_row(1), new_row(1, queue="other")
        await stores.cold.note_history(
            [
                *(finished(row, at_ms=START_MS + at) for at, row in enumerate(old)),
                # A part of what is still held: the body stays.
                finished(held, 0b01),
                finished(young, at_ms=START_MS + 1000),
                finished(other),
            ]
        )
        assert sorted(await stores.cold.history_queues()) == ["other", "q"]
        steps = 0
        while forgotten := await stores.cold.forget_history("q", START_MS + 1000):
            assert forgotten <= 250
            steps += 1
        assert steps > 1
        assert [row.head.run_id for row in await past(stores)] == [young.head.run_id]
        bodies = {row.head.run_id for row in (held, young, other)}
        assert await stores.bodies() == bodies
        assert await stores.cold.forget_history("other", START_MS + 1) == 1
        assert await stores.cold.history_queues() == ["q"]
        await settle_all(stores)
        await stores.cold.forget_history("q", START_MS + 2000)
        assert await stores.cold.history_queues() == []
        assert await stores.bodies() == set()
        assert await stores.cold.totals() == {"q": ColdTotals(taken=2, delivered=2)}

    async def test_a_body_that_history_needs_outlives_its_claim_and_its_edit(
        self, stores: ColdStores
    ) -> None:
        keep(stores, "all")
        letter, claimed = dead_row(), new_row(3)
        await stores.cold.note_history([finished(letter), finished(claimed, 0b001)])
        await put(stores, letter, claimed)
        item = (await stores.dead.find(DeadFilter(), 1)).letters[0].id
        await stores.dead.edit(item, b"another")
        await stores.cold.claim("q", "c", 0, PLENTY)
        keep(stores, "none")
        await stores.cold.claim("q", "c", 1, PLENTY)
        assert {row.head.run_id for row in await past(stores)} == {
            letter.head.run_id,
            claimed.head.run_id,
        }
        assert payloads((await past(stores))[-1])

    async def test_a_row_whose_body_is_damaged_is_left_out(self, stores: ColdStores) -> None:
        keep(stores, "all")
        rows = [new_row(1) for _ in range(3)]
        await stores.cold.note_history([finished(row) for row in rows])
        await stores.damage_body(rows[1].head.run_id)
        assert {row.head.run_id for row in await past(stores)} == {
            rows[0].head.run_id,
            rows[2].head.run_id,
        }
