"""Unique keys in SQLite agree with the model, whatever happens in which order."""

import tempfile
from pathlib import Path

import trio
from hypothesis import given, settings

from actors.model.keys import Policy
from tests.conformance.key_model import SCRIPTS, KeyPlayer, Step
from tests.conformance.sqlite_stores import SqliteStores
from tests.conformance.test_cold_model import MEMORY


@given(SCRIPTS)
@settings(max_examples=40, deadline=None)
def test_sqlite_agrees_with_the_model_of_keys(script: tuple[Policy, list[Step]]) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
            stores = SqliteStores(Path(directory))
            await stores.cold.open()
            try:
                await KeyPlayer(stores, script[0]).play(script[1])
            finally:
                await stores.cold.close()

    trio.run(play)
