"""Scripts of operations, with restarts and crashes in them: PostgreSQL, SQLite and the model agree.

Each script is played on both stores, with a model for each: what one shows, the other shows.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio
from hypothesis import given, settings

from daemon.stores.bridge import Bridge
from tests.conformance.cold_play import Player, Step, scripts
from tests.conformance.postgres_stores import PostgresStores
from tests.conformance.sqlite_stores import SqliteStores
from tests.conformance.test_cold_model import MEMORY


def without_steps(script: Sequence[Step]) -> list[Step]:
    """Nobody sets the server's clock."""
    return [step for step in script if step[0] != "step"]


@given(scripts)
@settings(max_examples=8, deadline=None)
def test_postgres_agrees_with_the_model_and_with_sqlite(script: Sequence[Step]) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
            sqlite = SqliteStores(Path(directory))
            async with Bridge() as bridge:
                postgres = PostgresStores(bridge)
                await sqlite.cold.open()
                await postgres.cold.open()
                try:
                    await Player(postgres).play(without_steps(script))
                    await Player(sqlite).play(without_steps(script))
                finally:
                    await sqlite.cold.close()
                    await postgres.drop()

    trio.run(play)
