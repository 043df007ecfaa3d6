"""A bridge, and a server that a test may stop, pause and kill."""

from collections.abc import AsyncIterator, Iterator

import pytest

from daemon.stores.bridge import Bridge
from tests.servers.postgres import PostgresServer, postgres_server


@pytest.fixture
async def bridge() -> AsyncIterator[Bridge]:
    async with Bridge() as bridge:
        yield bridge


@pytest.fixture(scope="module")
def module_server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def server(module_server: PostgresServer) -> Iterator[PostgresServer]:
    """It runs again after the test, whatever was done to it."""
    yield module_server
    module_server.put_right()
