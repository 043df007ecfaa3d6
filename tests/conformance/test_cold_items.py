"""The suites of single items and of purging, passed by SQLite and by PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.model.finished import FinishedRow
from actors.ports.tiers import ColdItems, ColdPart, ColdTotals
from daemon.stores.bridge import Bridge
from daemon.stores.cold import items
from tests.conformance.cold_items import ItemsSuite, ItemStores
from tests.conformance.cold_purge import PurgeSuite
from tests.conformance.cold_stores import PLENTY, START_MS, new_row, put
from tests.conformance.postgres_stores import PostgresStores
from tests.conformance.sqlite_stores import SqliteStores


class SqliteItemStores(SqliteStores):
    @property
    def items(self) -> ColdItems:
        return self.cold.items


class PostgresItemStores(PostgresStores):
    @property
    def items(self) -> ColdItems:
        return self.cold.items


class StepSuite:
    """Steps over many rows: scans in stretches, and parts of one row."""

    @pytest.mark.parametrize("rows_max", [1, 2, 10])
    async def test_a_scan_goes_past_stretches_without_a_row_of_its_queue(
        self, stores: ItemStores, monkeypatch: pytest.MonkeyPatch, rows_max: int
    ) -> None:
        monkeypatch.setattr(items, "SCANNED_MAX", 3)
        rows = [new_row(1, "q" if n in (1, 2, 3, 11, 12) else "other") for n in range(13)]
        ended = [FinishedRow(r.head, r.data, r.bits, 1, "delivered", START_MS) for r in rows]
        await put(stores, *rows)
        await stores.cold.note_history(ended)
        expected = [row.head.run_id for row in rows if row.head.queue == "q"]
        for scan, wanted in (
            (stores.items.scan, expected),
            (stores.items.scan_history, expected[::-1]),
        ):
            found: list[bytes] = []
            after: int | None = 0
            while after is not None:
                page = await scan("q", after, rows_max, PLENTY)
                found += [sight.head.run_id for sight in page.rows]
                after = page.after
            assert found == wanted

    async def test_a_page_of_a_scan_is_bounded_in_bytes(self, stores: ItemStores) -> None:
        rows = [new_row(1, payload=bytes(1000), compressed=False) for _ in range(5)]
        await put(stores, *rows)
        sizes = []
        after: int | None = 0
        while after is not None:
            page = await stores.items.scan(None, after, 10, 2 * len(rows[0].data))
            sizes.append(len(page.rows))
            after = page.after
        assert sizes == [2, 2, 1]
        assert len((await stores.items.scan(None, 0, 10, 1)).rows) == 1

    async def test_parts_that_empty_a_row_together_leave_nothing(self, stores: ItemStores) -> None:
        row = new_row(3)
        await put(stores, row)
        parts = [ColdPart(row.row, bits, None) for bits in (0b001, 0b110, 0b010)]
        assert await stores.items.delete_all(parts) == [True, True, False]
        assert await stores.cold.totals() == {"q": ColdTotals(taken=3, deleted=3)}
        assert await stores.cold.flows() == []
        assert await stores.bodies() == set()


class TestSqliteItems(ItemsSuite, PurgeSuite, StepSuite):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[SqliteItemStores]:
        stores = SqliteItemStores(tmp_path)
        await stores.cold.open()
        yield stores
        await stores.cold.close()


class TestPostgresItems(ItemsSuite, PurgeSuite, StepSuite):
    @pytest.fixture
    async def stores(self) -> AsyncIterator[PostgresItemStores]:
        async with Bridge() as bridge:
            stores = PostgresItemStores(bridge)
            await stores.cold.open()
            try:
                yield stores
            finally:
                await stores.drop()
