"""The suites of the cold tier, passed by SQLite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.cold_steps import StepSuite
from tests.conformance.cold_suite import ColdSuite
from tests.conformance.dead_suite import DeadSuite
from tests.conformance.sqlite_stores import SqliteStores


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[SqliteStores]:
    stores = SqliteStores(tmp_path)
    await stores.cold.open()
    yield stores
    await stores.cold.close()


class TestSqliteCold(ColdSuite, StepSuite):
    pass


class TestSqliteDeadLetters(DeadSuite):
    pass
