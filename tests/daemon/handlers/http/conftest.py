from collections.abc import AsyncIterator

import pytest

from tests.daemon.handlers.http.faulty import FaultyServer, faulty_server


@pytest.fixture
async def server() -> AsyncIterator[FaultyServer]:
    async with faulty_server() as server:
        yield server
