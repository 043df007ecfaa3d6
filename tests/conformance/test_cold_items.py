"""The suites of single items and of purging, passed by SQLite and by PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.ports.tiers import ColdItems
from daemon.stores.bridge import Bridge
from tests.conformance.cold_items import ItemsSuite
from tests.conformance.cold_purge import PurgeSuite
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


class TestSqliteItems(ItemsSuite, PurgeSuite):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[SqliteItemStores]:
        stores = SqliteItemStores(tmp_path)
        await stores.cold.open()
        yield stores
        await stores.cold.close()


class TestPostgresItems(ItemsSuite, PurgeSuite):
    @pytest.fixture
    async def stores(self) -> AsyncIterator[PostgresItemStores]:
        async with Bridge() as bridge:
            stores = PostgresItemStores(bridge)
            await stores.cold.open()
            try:
                yield stores
            finally:
                await stores.drop()
