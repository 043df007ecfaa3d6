"""The suite of the `DeadLetters` port."""

import pytest

from actors.model.slices import ItemError
from actors.ports.tiers import (
    ColdTotals,
    DeadChange,
    DeadFilter,
    DeadLetter,
    FlowCount,
    NewRow,
    Outlook,
    RowOutcome,
)
from forebay.errors import BadRun
from forebay.ids import format_item_id
from forebay.limits import RUN_RAW_BYTES_MAX
from forebay.run import Run
from tests.conformance.cold_stores import (
    LEASE_S,
    START_MS,
    ColdStores,
    acquire,
    check_books,
    dead_row,
    new_row,
    part_of,
    put,
)

ALL = DeadFilter()
LOCK = b"L" * 16
MIB = 1024 * 1024


def id_of(row: NewRow) -> str:
    """Of the first item of a new run."""
    return format_item_id(row.head.run_id, 0)


async def found(
    stores: ColdStores, which: DeadFilter = ALL, *, payloads: bool = False
) -> list[DeadLetter]:
    return (await stores.dead.find(which, 100, payloads=payloads)).letters


async def ids(stores: ColdStores, which: DeadFilter = ALL) -> list[str]:
    return [letter.id for letter in await found(stores, which)]


class DeadSuite:
    async def test_a_letter_is_shown_as_it_died(self, stores: ColdStores) -> None:
        row = dead_row(
            items=3,
            bits=0b010,
            keys=[b"", b"k\xc3\xa9y", b""],
            priority=7,
            headers={"flow_type": "t"},
        )
        await stores.cold.store([row])
        assert await found(stores) == []
        await stores.cold.confirm([row.row])
        assert await found(stores) == [
            DeadLetter(
                row=row.row,
                id=format_item_id(row.head.run_id, 1),
                queue="q",
                flow="f",
                action="a",
                key="kéy",
                priority=7,
                attempt=2,
                enqueued_ms=START_MS,
                died_ms=START_MS,
                errors=row.errors,
                headers={"flow_type": "t"},
            )
        ]
        assert await stores.cold.totals() == {"q": ColdTotals(taken=1, dead=1)}
        assert await stores.cold.flows() == [FlowCount("q", "f", "a", items=0, dead=1)]
        assert await acquire(stores) == []
        assert await stores.cold.outlook("q") == Outlook(False, None)

    async def test_payloads_come_where_they_are_asked_for(self, stores: ColdStores) -> None:
        row = dead_row(items=3, bits=0b010)
        other = part_of(row, 0b100, is_dead=True, errors=row.errors)
        await put(stores, row, other)
        letters = await found(stores, payloads=True)
        assert [letter.payload for letter in letters] == [b"payload 1", b"payload 2"]
        await stores.damage_body(row.head.run_id)
        letters = await found(stores, payloads=True)
        assert [letter.payload for letter in letters] == [None, None]

    async def test_letters_are_chosen_by_whose_fault_it_was(self, stores: ColdStores) -> None:
        said: list[tuple[ItemError, ...]] = [
            (),
            (ItemError(1, START_MS, "no credit", "business"), ItemError(2, START_MS, "503")),
            (ItemError(1, START_MS, "503"), ItemError(2, START_MS, "no credit", "business")),
        ]
        letters = [dead_row(errors=errors) for errors in said]
        await put(stores, *letters)
        silent, twice, refused = map(id_of, letters)
        business = DeadFilter(failure_reason="business")
        application = DeadFilter(queue="q", failure_reason="application")
        assert [letter.id for letter in await found(stores, business)] == [refused]
        assert {letter.id for letter in await found(stores, application)} == {silent, twice}
        assert await stores.dead.count(application, 10) == 2
        assert (await stores.dead.retry(business, 10)).done == 1
        assert await found(stores, business) == []

    async def test_a_letter_without_errors_died_when_it_came(self, stores: ColdStores) -> None:
        await put(stores, dead_row(errors=()))
        (letter,) = await found(stores, DeadFilter(error=""))
        assert (letter.died_ms, letter.errors) == (stores.now_ms(), ())

    async def test_filters(self, stores: ColdStores) -> None:
        a = dead_row("Timeout: Größe", START_MS + 1, flow="one")
        b = dead_row("refused 50%_", START_MS + 2, queue="other", action="z")
        c = dead_row("timeout: größe", START_MS + 3, flow="two")
        await put(stores, a, b, c)
        a_id, b_id, c_id = id_of(a), id_of(b), id_of(c)
        for which, expected in (
            (ALL, [a_id, b_id, c_id]),
            (DeadFilter(queue="q"), [a_id, c_id]),
            (DeadFilter(queue="other"), [b_id]),
            (DeadFilter(queue="none"), []),
            (DeadFilter(flow="one"), [a_id]),
            (DeadFilter(flow="one", action="z"), []),
            (DeadFilter(action="z"), [b_id]),
            (DeadFilter(error="OUT: GRÖSSE"), [a_id, c_id]),
            (DeadFilter(error="%_"), [b_id]),
            (DeadFilter(error="first"), []),
            (DeadFilter(died_before_ms=START_MS + 3), [a_id, b_id]),
            (DeadFilter(died_after_ms=START_MS + 1), [b_id, c_id]),
            (DeadFilter(ids=(c_id, a_id, "no such")), [a_id, c_id]),
            (DeadFilter(ids=(c_id, a_id), flow="two", queue="q"), [c_id]),
        ):
            assert await ids(stores, which) == expected, which
            assert await stores.dead.count(which, 100) == len(expected), which
            assert await stores.dead.count(which, 1) == min(1, len(expected)), which

    async def test_pages_give_every_letter_once_oldest_first(self, stores: ColdStores) -> None:
        rows = [dead_row(died_ms=START_MS + n // 2, flow=f"{n % 3}") for n in range(11)]
        await put(stores, *rows[::-1])
        for which in (ALL, DeadFilter(queue="q"), DeadFilter(flow="1"), DeadFilter(error="IT")):
            expected = [row.row for row in rows if which.flow in (None, row.head.flow)]
            seen: list[bytes] = []
            cursor = None
            while True:
                page = await stores.dead.find(which, 3, cursor)
                seen += [letter.row for letter in page.letters]
                cursor = page.cursor
                if cursor is None:
                    break
                assert len(page.letters) == 3
            assert seen == expected

    async def test_a_full_last_page_is_the_last(self, stores: ColdStores) -> None:
        await put(stores, dead_row(), dead_row())
        assert (await stores.dead.find(ALL, 2)).cursor is None

    async def test_a_page_with_payloads_is_bounded_in_bytes(self, stores: ColdStores) -> None:
        sizes = [3 * MIB, 9 * MIB, 3 * MIB, 3 * MIB, 1, 3 * MIB]
        for n, size in enumerate(sizes):
            await put(stores, dead_row(died_ms=START_MS + n, payload=bytes(size)))
        pages: list[list[int]] = []
        cursor = None
        while True:
            page = await stores.dead.find(ALL, 100, cursor, payloads=True)
            pages.append([len(letter.payload or b"") for letter in page.letters])
            cursor = page.cursor
            if cursor is None:
                break
        # The payload is followed by a space and the item's number.
        assert [size for page_ in pages for size in page_] == [size + 2 for size in sizes]
        assert [len(page_) for page_ in pages] == [1, 1, 3, 1]
        assert len(await found(stores)) == len(sizes)

    async def test_what_is_no_cursor_is_refused(self, stores: ColdStores) -> None:
        with pytest.raises(ValueError, match="cursor"):
            await stores.dead.find(ALL, 2, b"nonsense")

    async def test_retried_letters_are_due_at_once(self, stores: ColdStores) -> None:
        first, second = dead_row(row_due_ms=START_MS + 1000), dead_row(queue="other")
        await put(stores, first, second)
        change = await stores.dead.retry(DeadFilter(ids=(id_of(first),)), 10)
        assert change == DeadChange(1, frozenset({"q"}), None)
        assert await ids(stores) == [id_of(second)]
        assert (await stores.cold.totals())["q"] == ColdTotals(taken=1, held=1, runs=1)
        assert (await stores.cold.outlook("q")).has_due
        (got,) = await acquire(stores)
        assert (got.row, got.bits, got.attempt, got.due_ms) == (first.row, 1, 0, 0)
        assert got.errors == first.errors

    async def test_a_letter_may_live_and_die_again(self, stores: ColdStores) -> None:
        row = dead_row()
        await put(stores, row)
        await stores.dead.retry(ALL, 10)
        (got,) = await acquire(stores)
        errors = (*got.errors, ItemError(1, START_MS + 5, "again"))
        again = part_of(got, 1, attempt=1, errors=errors, is_dead=True)
        outcome = RowOutcome(row.row, LOCK, moved=(again,), moved_bits=1)
        assert await stores.cold.settle([outcome]) == [True]
        (letter,) = await found(stores, DeadFilter(error="again"))
        assert (letter.id, letter.died_ms, letter.errors) == (id_of(row), START_MS + 5, errors)
        await check_books(stores)

    async def test_removed_letters_are_deleted_with_their_body(self, stores: ColdStores) -> None:
        row = dead_row(items=2, bits=0b01)
        other = part_of(row, 0b10, is_dead=True)
        await put(stores, row, other)
        assert (await stores.dead.remove(DeadFilter(error="it broke"), 10)).done == 1
        assert await stores.bodies() == {row.head.run_id}
        assert (await stores.dead.remove(ALL, 10)).done == 1
        assert await stores.bodies() == set()
        assert await stores.cold.totals() == {"q": ColdTotals(taken=2, deleted=2)}
        assert await stores.cold.flows() == []

    @pytest.mark.parametrize("change", ["retry", "remove"])
    async def test_changes_go_in_steps(self, stores: ColdStores, change: str) -> None:
        rows = [dead_row(flow="f" if n % 2 else "g", died_ms=START_MS + n) for n in range(9)]
        await put(stores, *rows)
        done, cursor = [], None
        while True:
            step = await getattr(stores.dead, change)(DeadFilter(flow="g"), 2, cursor)
            done.append(step.done)
            cursor = step.cursor
            await check_books(stores)
            if cursor is None:
                break
        assert sum(done) == 5
        assert max(done) <= 2
        assert await stores.dead.count(ALL, 100) == 4
        assert await stores.dead.count(DeadFilter(flow="f", died_after_ms=0), 100) == 4

    async def test_a_chain_of_retries_ends_though_letters_die_again(
        self, stores: ColdStores
    ) -> None:
        await put(stores, *(dead_row() for _ in range(4)))
        cursor, steps = None, 0
        while True:
            step = await stores.dead.retry(ALL, 1, cursor)
            steps += 1
            stores.advance(1)
            for got in await acquire(stores):
                errors = (ItemError(1, stores.now_ms(), "again"),)
                again = part_of(got, got.bits, errors=errors, is_dead=True)
                await stores.cold.settle(
                    [RowOutcome(got.row, LOCK, moved=(again,), moved_bits=got.bits)]
                )
            cursor = step.cursor
            if cursor is None:
                break
        assert steps <= 5
        assert await stores.dead.count(ALL, 100) == 4

    async def test_an_edited_letter_keeps_its_id_and_key(self, stores: ColdStores) -> None:
        row = dead_row(items=3, bits=0b100, keys=[b"x", b"y", b"z"], headers={"h": "v"})
        waiting = part_of(row, 0b001)
        await put(stores, row, waiting)
        (before,) = await found(stores)
        assert await stores.dead.edit(before.id, b"better") is True
        (after,) = await found(stores, payloads=True)
        assert after.payload == b"better"
        assert [
            (letter.row, letter.id, letter.key, letter.errors, letter.headers, letter.died_ms)
            for letter in (before, after)
        ] == [(row.row, before.id, "z", row.errors, {"h": "v"}, START_MS)] * 2
        assert (before.changed_ms, after.changed_ms) == (0, START_MS)
        assert len(await stores.bodies()) == 2
        assert await stores.dead.edit(before.id, b"best") is True
        assert len(await stores.bodies()) == 2
        await stores.dead.retry(ALL, 1)
        _, edited = await acquire(stores)
        run = Run(edited.head, edited.data)
        assert edited.bits == 1
        assert (run.payloads(), run.item_ids(), run.keys()) == ([b"best"], [before.id], [b"z"])
        await check_books(stores)

    async def test_a_payload_too_long_for_a_run_is_refused(self, stores: ColdStores) -> None:
        row = dead_row()
        await put(stores, row)
        with pytest.raises(BadRun, match="over the limit"):
            await stores.dead.edit(id_of(row), bytes(RUN_RAW_BYTES_MAX - 16))
        (letter,) = await found(stores, payloads=True)
        assert letter.payload == b"payload 0"
        assert len(await stores.bodies()) == 1

    async def test_only_dead_letters_are_edited(self, stores: ColdStores) -> None:
        row = new_row(1)
        await put(stores, row)
        assert await stores.dead.edit(id_of(row), b"x") is False
        assert await stores.dead.edit("no such", b"x") is False
        assert await stores.cold.renew([LOCK], LEASE_S) == [0]

    async def test_dead_letters_outlive_a_crash(self, stores: ColdStores) -> None:
        await put(stores, dead_row("one"), dead_row("two"), dead_row("three"))
        await stores.dead.remove(DeadFilter(error="one"), 1)
        await stores.dead.retry(DeadFilter(error="two"), 1)
        await stores.crash()
        assert [letter.errors[-1].text for letter in await found(stores)] == ["three"]
        assert await stores.cold.totals() == {
            "q": ColdTotals(taken=3, dead=1, deleted=1, held=1, runs=1)
        }
