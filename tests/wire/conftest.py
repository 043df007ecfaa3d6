from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.wire.harness import Served, serve


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """An ingest with the default settings."""
    async with serve(tmp_path) as served:
        yield served
