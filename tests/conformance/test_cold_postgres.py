"""The suites of the cold tier, passed by PostgreSQL."""

from collections.abc import AsyncIterator

import pytest

from daemon.stores.bridge import Bridge
from tests.conformance.cold_suite import ColdSuite
from tests.conformance.dead_suite import DeadSuite
from tests.conformance.postgres_stores import PostgresStores


@pytest.fixture
async def stores() -> AsyncIterator[PostgresStores]:
    async with Bridge() as bridge:
        stores = PostgresStores(bridge)
        await stores.cold.open()
        try:
            yield stores
        finally:
            await stores.drop()


class TestPostgresCold(ColdSuite):
    pass


class TestPostgresDeadLetters(DeadSuite):
    pass
