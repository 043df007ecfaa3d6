"""The suite of ticks, passed by SQLite and by PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.ports.ticks import TickStore
from daemon.stores.bridge import Bridge
from tests.conformance.cold_ticks import TickSuite
from tests.conformance.postgres_stores import PostgresStores
from tests.conformance.sqlite_stores import SqliteStores


class SqliteTickStores(SqliteStores):
    @property
    def ticks(self) -> TickStore:
        return self.cold.ticks


class PostgresTickStores(PostgresStores):
    @property
    def ticks(self) -> TickStore:
        return self.cold.ticks


class TestSqliteTicks(TickSuite):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[SqliteTickStores]:
        stores = SqliteTickStores(tmp_path)
        await stores.cold.open()
        yield stores
        await stores.cold.close()


class TestPostgresTicks(TickSuite):
    @pytest.fixture
    async def stores(self) -> AsyncIterator[PostgresTickStores]:
        async with Bridge() as bridge:
            stores = PostgresTickStores(bridge)
            await stores.cold.open()
            try:
                yield stores
            finally:
                await stores.drop()
