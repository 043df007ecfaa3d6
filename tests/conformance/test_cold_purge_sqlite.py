"""The suite of purging, passed by SQLite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.tiers import ColdItems
from tests.conformance.cold_purge import PurgeSuite
from tests.conformance.sqlite_stores import SqliteStores


class PurgedSqlite(SqliteStores):
    @property
    def items(self) -> ColdItems:
        return self.cold.items


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[PurgedSqlite]:
    stores = PurgedSqlite(tmp_path)
    await stores.cold.open()
    yield stores
    await stores.cold.close()


class TestSqlitePurge(PurgeSuite):
    pass
