"""The suite of unique keys, passed by SQLite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.cold_keys import KeySuite
from tests.conformance.sqlite_stores import SqliteStores


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[SqliteStores]:
    stores = SqliteStores(tmp_path)
    await stores.cold.open()
    yield stores
    await stores.cold.close()


class TestSqliteKeys(KeySuite):
    pass
