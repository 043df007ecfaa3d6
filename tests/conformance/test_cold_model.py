"""Scripts of operations, with restarts and crashes in them: the stores agree with the model."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio
from hypothesis import given, settings

from tests.conformance.cold_play import Player, Step, scripts
from tests.conformance.sqlite_stores import SqliteStores

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Syncs take no time there; what they are for is tested elsewhere."""


@given(scripts)
@settings(max_examples=30, deadline=None)
def test_sqlite_agrees_with_the_model(script: Sequence[Step]) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
            stores = SqliteStores(Path(directory))
            await stores.cold.open()
            try:
                await Player(stores).play(script)
            finally:
                await stores.cold.close()

    trio.run(play)
