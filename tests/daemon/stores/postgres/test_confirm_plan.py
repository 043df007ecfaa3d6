"""Rows that are confirmed or forgotten are found by their ids, whatever was confirmed before.

A statement that is used often gets a plan for any number of ids. The index of what is stored and
not confirmed has the ids in second place, and keeps what was confirmed until the next vacuum: such
a plan went through all of it for each id.
"""

import asyncpg
import pytest

from daemon.stores.bridge import Bridge
from daemon.stores.cold.hand_over import CONFIRM, FORGET
from daemon.stores.postgres.store import PostgresCold, PostgresSettings
from tests.servers.postgres import fresh_database

TIMEOUT_S = 60.0


@pytest.mark.parametrize(
    "statement, parameters",
    [(CONFIRM.postgres, "bytea[], bytea, bigint"), (FORGET.postgres, "bytea[]")],
)
async def test_rows_are_found_by_their_ids(bridge: Bridge, statement: str, parameters: str) -> None:
    with fresh_database() as url:
        cold = PostgresCold(PostgresSettings(url, TIMEOUT_S), b"daemon of plans.", bridge)
        await cold.open()
        await cold.close()

        async def explain() -> str:
            con = await asyncpg.connect(url, server_settings={"search_path": "forebay"})
            try:
                # A table as small as this one would be read whole.
                await con.execute("SET plan_cache_mode = force_generic_plan")
                await con.execute("SET enable_seqscan = off")
                await con.execute(f"PREPARE it ({parameters}) AS {statement}")
                given = ", ".join(["NULL"] * len(parameters.split(",")))
                lines = await con.fetch(f"EXPLAIN EXECUTE it ({given})")
                return "\n".join(line for (line,) in lines)
            finally:
                await con.close()

        plan = await bridge.run(explain, TIMEOUT_S)
        assert "runs_id_key" in plan, plan
        assert "runs_stored" not in plan, plan
