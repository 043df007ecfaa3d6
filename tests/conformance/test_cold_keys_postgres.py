"""The suite of unique keys, passed by PostgreSQL."""

from collections.abc import AsyncIterator

import pytest

from daemon.bridge import Bridge
from tests.conformance.cold_keys import KeySuite
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


class TestPostgresKeys(KeySuite):
    pass
