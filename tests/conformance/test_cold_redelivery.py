"""The suite of redelivery, passed by SQLite and by PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.stores.bridge import Bridge
from tests.conformance.cold_redelivery import COLUMNS, RedeliverySuite, Times
from tests.conformance.postgres_stores import PostgresStores
from tests.conformance.sqlite_stores import SqliteStores


class SqliteTimedStores(SqliteStores):
    async def times(self, row: bytes) -> Times:
        sql = f"SELECT {COLUMNS} FROM runs WHERE id = ?"
        return self.beside(lambda db: Times(*db.execute(sql, (row,)).fetchone()))


class PostgresTimedStores(PostgresStores):
    async def times(self, row: bytes) -> Times:
        (found,) = await self.sql(f"SELECT {COLUMNS} FROM runs WHERE id = $1", row)
        return Times(*found.values())


class TestSqliteRedelivery(RedeliverySuite):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[SqliteTimedStores]:
        stores = SqliteTimedStores(tmp_path)
        await stores.cold.open()
        yield stores
        await stores.cold.close()


class TestPostgresRedelivery(RedeliverySuite):
    @pytest.fixture
    async def stores(self) -> AsyncIterator[PostgresTimedStores]:
        async with Bridge() as bridge:
            stores = PostgresTimedStores(bridge)
            await stores.cold.open()
            try:
                yield stores
            finally:
                await stores.drop()
