"""The suite of purging, passed by SQLite and by PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.bridge import Bridge
from tests.conformance.cold_purge import PurgeSuite
from tests.conformance.test_cold_items import PostgresItemStores, SqliteItemStores


class TestSqlitePurge(PurgeSuite):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[SqliteItemStores]:
        stores = SqliteItemStores(tmp_path)
        await stores.cold.open()
        yield stores
        await stores.cold.close()


class TestPostgresPurge(PurgeSuite):
    @pytest.fixture
    async def stores(self) -> AsyncIterator[PostgresItemStores]:
        async with Bridge() as bridge:
            stores = PostgresItemStores(bridge)
            await stores.cold.open()
            try:
                yield stores
            finally:
                await stores.drop()
