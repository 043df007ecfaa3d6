"""The suite of the `ColdItems` port: single items are found, deleted and changed; books balance."""

from dataclasses import replace
from typing import Any, Protocol

import pytest

from actors.model.finished import FinishedRow
from actors.model.slices import HeldBy, ItemError
from actors.ports.tiers import ColdItems, ColdPart, DeadFilter, NewRow, RowOutcome
from forebay.ids import pack_item_id, parse_item_id
from forebay.run import Run, encode_run, read_head, take_items
from tests.conformance.cold_stores import (
    PLENTY,
    START_MS,
    ColdStores,
    acquire,
    check_books,
    dead_row,
    new_row,
    number,
    put,
)

LOCK = b"L" * 16


class ItemStores(ColdStores, Protocol):
    @property
    def items(self) -> ColdItems: ...


async def states(stores: ItemStores, run_id: bytes, index: int) -> list[str]:
    return [sight.state for sight in await stores.items.find(run_id, index)]


async def totals(stores: ItemStores) -> dict[str, int]:
    await check_books(stores)
    found = (await stores.cold.totals())["q"]
    return {"held": found.held, "deleted": found.deleted, "dead": found.dead}


class ItemsSuite:
    async def test_an_item_is_found_by_its_run(self, stores: ItemStores) -> None:
        row = new_row(3, bits=0b101, row_due_ms=START_MS + 5)
        await put(stores, row, new_row(3))
        (sight,) = await stores.items.find(row.head.run_id, 2)
        assert (sight.state, sight.bits, sight.row) == ("COLD_QUEUED", 0b100, row.row)
        assert (sight.lock, sight.due_ms, sight.data) == (None, START_MS + 5, row.data)
        assert await states(stores, row.head.run_id, 1) == []
        assert await states(stores, row.head.run_id, 3) == []
        assert await states(stores, number(), 0) == []

    async def test_an_item_is_found_in_a_part_of_its_run(self, stores: ItemStores) -> None:
        whole = new_row(4)
        part = take_items(Run(whole.head, whole.data), [1, 3])
        row = replace(new_row(2), head=read_head(part), data=part)
        await put(stores, row)
        (sight,) = await stores.items.find(whole.head.run_id, 3)
        assert sight.bits == 0b10
        assert await states(stores, whole.head.run_id, 0) == []
        assert await states(stores, read_head(part).run_id, 0) == []
        assert await stores.items.delete(row.row, 0b11, None)
        assert await stores.bodies() == set()
        assert await states(stores, whole.head.run_id, 3) == []

    async def test_what_is_dead_leased_and_finished_is_found(self, stores: ItemStores) -> None:
        stores.cold.keep_history(lambda queue: "all")
        dead, row = dead_row(), new_row(2)
        await put(stores, dead, row)
        assert await states(stores, dead.head.run_id, 0) == ["FAILED"]
        await acquire(stores)
        (sight,) = await stores.items.find(row.head.run_id, 0)
        assert sight.lock == LOCK
        await stores.cold.settle([RowOutcome(row.row, LOCK, delivered=0b1)])
        assert await states(stores, row.head.run_id, 0) == ["delivered"]
        assert await states(stores, row.head.run_id, 1) == ["COLD_QUEUED"]
        await stores.dead.remove(DeadFilter(), 10)
        (sight,) = await stores.items.find(dead.head.run_id, 0)
        assert (sight.state, sight.ended_ms) == ("deleted", stores.now_ms())
        assert sight.errors == dead.errors

    async def test_what_is_finished_is_found_with_who_had_it(self, stores: ItemStores) -> None:
        holder, row = HeldBy("host/q/me", START_MS), new_row(2)
        said = FinishedRow(
            row.head, row.data, 0b11, 1, "delivered", START_MS, (), holder, "ok", "j"
        )
        await stores.cold.note_history([said])
        (found,) = await stores.items.find(row.head.run_id, 1)
        (scanned,) = (await stores.items.scan_history("q", 0, 10, PLENTY)).rows
        for sight in (found, scanned):
            assert (sight.holder, sight.result, sight.job) == (holder, "ok", "j")

    async def test_who_has_claimed_an_item_is_told_and_kept(self, stores: ItemStores) -> None:
        stores.cold.keep_history(lambda queue: "all")
        row = new_row(2)
        await put(stores, row)
        await stores.cold.claim("q", "nightly", 0, PLENTY)
        (claimed,) = await stores.items.find(row.head.run_id, 0)
        await stores.cold.claim("q", "nightly", 1, 0)
        (done,) = await stores.items.find(row.head.run_id, 0)
        assert [(sight.state, sight.holder) for sight in (claimed, done)] == [
            ("CLAIMED", HeldBy("nightly", 0)),
            ("delivered", HeldBy("nightly", 0)),
        ]

    async def test_an_item_is_deleted_and_its_neighbours_stay(self, stores: ItemStores) -> None:
        row = new_row(3)
        await put(stores, row)
        assert await stores.items.delete(row.row, 0b010, None)
        assert not await stores.items.delete(row.row, 0b010, None)
        assert not await stores.items.delete(row.row, 0b011, None)
        assert await totals(stores) == {"held": 2, "deleted": 1, "dead": 0}
        (left,) = await acquire(stores)
        assert left.bits == 0b101

    @pytest.mark.parametrize("keep, past", [("none", []), ("failures", ["deleted"])])
    async def test_history_keeps_what_is_deleted(
        self, stores: ItemStores, keep: Any, past: list[str]
    ) -> None:
        stores.cold.keep_history(lambda queue: keep)
        row = new_row(2)
        await put(stores, row)
        assert await stores.items.delete(row.row, 0b01, None)
        assert await states(stores, row.head.run_id, 0) == past

    async def test_a_leased_row_is_its_holder_s(self, stores: ItemStores) -> None:
        row = new_row(2)
        await put(stores, row)
        await acquire(stores)
        assert not await stores.items.delete(row.row, 0b01, None)
        assert not await stores.items.delete(row.row, 0b01, b"M" * 16)
        assert await stores.items.delete(row.row, 0b01, LOCK)
        assert await stores.cold.settle([RowOutcome(row.row, LOCK, delivered=0b11)]) == [True]
        assert await totals(stores) == {"held": 0, "deleted": 1, "dead": 0}
        assert await stores.bodies() == set()

    @pytest.mark.parametrize("is_dead", [False, True])
    async def test_an_item_is_changed(self, stores: ItemStores, is_dead: bool) -> None:
        row = new_row(3)
        await put(stores, row)
        data = take_items(Run(row.head, row.data), [1], [b"other"])
        errors = (ItemError(1, START_MS, "given up"),) if is_dead else ()
        new = replace(
            row,
            row=number(),
            head=read_head(data),
            data=data,
            bits=1,
            errors=errors,
            is_dead=is_dead,
            changed_ms=START_MS + 7,
        )
        assert await stores.items.change(row.row, 0b010, None, new)
        assert not await stores.items.change(row.row, 0b010, None, replace(new, row=number()))
        (sight,) = await stores.items.find(row.head.run_id, 1)
        assert sight.state == ("FAILED" if is_dead else "COLD_QUEUED")
        assert sight.changed_ms == START_MS + 7
        assert Run(sight.head, sight.data).payloads() == [b"other"]
        expected = {"held": 2, "deleted": 0, "dead": 1} if is_dead else {"held": 3}
        assert (await totals(stores)).items() >= expected.items()
        await stores.reopen()
        assert len(await stores.items.find(row.head.run_id, 1)) == 1

    @pytest.mark.parametrize("is_removed_first", [True, False])
    async def test_a_letter_that_was_mended_and_delivered_is_told_as_delivered(
        self, stores: ItemStores, is_removed_first: bool
    ) -> None:
        stores.cold.keep_history(lambda queue: "failures")
        letter = dead_row(items=3, bits=0b010)
        other = new_row(1)
        await put(stores, letter, other)
        (found,) = (await stores.dead.find(DeadFilter(), 10)).letters
        run_id, index = parse_item_id(found.id)
        if is_removed_first:
            assert (await stores.dead.remove(DeadFilter(), 10)).done == 1
        data = encode_run(
            [b"mended"], queue="q", run_id=number(), item_ids=[pack_item_id(run_id, index)]
        )
        again = NewRow(number(), read_head(data), data, 1)
        await put(stores, again)
        (sight, *_) = await stores.items.find(run_id, index)
        if is_removed_first:
            assert (sight.state, sight.data) == ("COLD_QUEUED", data)
        stores.advance(1000)
        rows = await acquire(stores)
        assert all(await stores.cold.settle([RowOutcome(r.row, LOCK, r.bits) for r in rows]))
        stores.advance(1000)
        if not is_removed_first:
            assert (await stores.dead.remove(DeadFilter(), 10)).done == 1
        first, second = await stores.items.find(run_id, index)
        assert (first.state, second.state) == ("delivered", "deleted")
        assert Run(first.head, first.data).payloads() == [b"mended"]
        # One that never failed is not kept.
        assert await stores.items.find(other.head.run_id, 0) == []

    async def test_scans_go_through_all_rows_in_pages(self, stores: ItemStores) -> None:
        stores.cold.keep_history(lambda queue: "all")
        rows = [new_row(1), new_row(2, "p"), new_row(3), dead_row()]
        await put(stores, *rows)
        ended = [new_row(1), new_row(1, "p")]
        await stores.cold.note_history(
            [FinishedRow(r.head, r.data, r.bits, 1, "delivered", START_MS) for r in ended]
        )

        async def all_of(queue: str | None, *, past: bool) -> list[bytes]:
            scan = stores.items.scan_history if past else stores.items.scan
            found: list[bytes] = []
            after: int | None = 0
            while after is not None:
                page = await scan(queue, after, 1, PLENTY)
                assert len(page.rows) <= 1
                found += [sight.head.run_id for sight in page.rows]
                after = page.after
            return found

        ids = [row.head.run_id for row in rows]
        assert await all_of(None, past=False) == ids[:3]
        assert await all_of("q", past=False) == [ids[0], ids[2]]
        past = [row.head.run_id for row in ended]
        assert await all_of(None, past=True) == past[::-1]
        assert await all_of("p", past=True) == [past[1]]

    async def test_many_are_deleted_at_once_and_a_queue_is_purged(self, stores: ItemStores) -> None:
        stores.cold.keep_history(lambda queue: "all")
        rows = [new_row(3), new_row(3), new_row(3, row_due_ms=START_MS + 9_000_000), new_row(2)]
        await put(stores, *rows, dead_row(), new_row(1, "p"))
        await acquire(stores, items_max=3)
        leased = (await stores.items.find(rows[0].head.run_id, 0))[0].lock
        assert leased == LOCK
        parts = [ColdPart(rows[0].row, 0b1, LOCK), ColdPart(rows[1].row, 0b1, LOCK)]
        parts += [ColdPart(rows[3].row, 0b11, None), ColdPart(number(), 0b1, None)]
        assert await stores.items.delete_all(parts) == [True, True, True, False]
        assert await totals(stores) == {"held": 7, "deleted": 4, "dead": 1}
        deleted = 0
        while items := await stores.items.purge("q", 1):
            deleted += items
        assert deleted == 5
        assert await totals(stores) == {"held": 2, "deleted": 9, "dead": 1}
        assert await states(stores, rows[2].head.run_id, 0) == []
