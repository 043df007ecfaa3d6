"""What a cold store deletes when a queue is purged: what waits, counted, and nothing else."""

from typing import Protocol

from actors.ports.tiers import ColdItems, ColdPart
from tests.conformance.cold_stores import (
    START_MS,
    ColdStores,
    acquire,
    check_books,
    dead_row,
    new_row,
    put,
)

LOCK = b"L" * 16


class PurgedStores(ColdStores, Protocol):
    @property
    def items(self) -> ColdItems: ...


class PurgeSuite:
    async def test_what_waits_is_deleted_and_counted(self, stores: PurgedStores) -> None:
        await put(stores, new_row(3), new_row(2, row_due_ms=START_MS + 10**9), new_row(1, "r"))
        assert await stores.items.purge("q", 10) == 5
        assert await stores.items.purge("q", 10) == 0
        totals = await stores.cold.totals()
        assert (totals["q"].deleted, totals["q"].held, totals["r"].held) == (5, 0, 1)
        assert len(await stores.bodies()) == 1
        await check_books(stores)
        await stores.crash()
        assert (await stores.cold.totals())["q"].deleted == 5

    async def test_one_step_is_bounded(self, stores: PurgedStores) -> None:
        later = START_MS + 10**9
        await put(stores, *(new_row(2) for _ in range(3)), new_row(2, row_due_ms=later))
        assert [await stores.items.purge("q", 2) for _ in range(3)] == [4, 4, 0]
        await check_books(stores)

    async def test_what_somebody_has_stays(self, stores: PurgedStores) -> None:
        await put(stores, dead_row(), new_row(2))
        (mine,) = await acquire(stores, LOCK)
        await put(stores, new_row(3, "s"))
        await stores.cold.claim("s", "me", 0, 10)
        await stores.cold.store([new_row(4)])
        assert await stores.items.purge("q", 10) == 0
        assert await stores.items.purge("s", 10) == 0
        assert (await stores.cold.totals())["q"].dead == 1
        assert await stores.items.delete_all(
            [ColdPart(mine.row, mine.bits, b"M" * 16), ColdPart(mine.row, 1, LOCK)]
        ) == [False, True]
        assert (await stores.cold.totals())["q"].held == 1
        await check_books(stores)

    async def test_a_part_is_deleted_once(self, stores: PurgedStores) -> None:
        await put(stores, new_row(3))
        (row,) = await acquire(stores, LOCK)
        part = ColdPart(row.row, 0b101, LOCK)
        assert await stores.items.delete_all([part, part]) == [True, False]
        assert (await stores.cold.totals())["q"].deleted == 2
        await check_books(stores)
