"""The suite of moves, passed by SQLite and by PostgreSQL; and that no statement goes past it."""

import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

import daemon.stores.cold
import daemon.stores.postgres
import daemon.stores.sqlite
from daemon.stores.bridge import Bridge
from daemon.stores.postgres.connection import Connection
from tests.conformance.cold_moves import MoveSuite, Raw
from tests.conformance.test_cold_triggers import PostgresTriggerStores, SqliteTriggerStores

SELECT_RAW = "SELECT state, is_due, lock_uuid, attempt, count FROM runs WHERE queue = {} ORDER BY n"
SELECT_PAST = "SELECT outcome FROM history WHERE queue = {} ORDER BY n"


class SqliteMoveStores(SqliteTriggerStores):
    async def raw(self, queue: str) -> tuple[list[Raw], list[str]]:
        def work(db: sqlite3.Connection) -> tuple[list[Raw], list[str]]:
            rows = [Raw(*row) for row in db.execute(SELECT_RAW.format("?"), (queue,))]
            return rows, [said for (said,) in db.execute(SELECT_PAST.format("?"), (queue,))]

        return self.beside(work)

    async def allows(self, row: bytes, state: str) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            db.execute("BEGIN IMMEDIATE")
            try:
                changed = db.execute("UPDATE runs SET state = ? WHERE id = ?", (state, row))
                return changed.rowcount == 1
            except sqlite3.IntegrityError:
                return False
            finally:
                db.execute("ROLLBACK")

        return self.beside(work)


class PostgresMoveStores(PostgresTriggerStores):
    async def raw(self, queue: str) -> tuple[list[Raw], list[str]]:
        async def work(con: Connection) -> tuple[list[Raw], list[str]]:
            rows = await con.fetch(SELECT_RAW.format("$1"), queue)
            past = await con.fetch(SELECT_PAST.format("$1"), queue)
            return [Raw(*row) for row in rows], [said for (said,) in past]

        # A connection of its own for each look took longer than all of the rest.
        return await self.cold._db.read(work)

    async def allows(self, row: bytes, state: str) -> bool:
        # One statement, which fails in the end: nothing is changed in either case.
        try:
            await self.sql(
                """WITH changed AS (UPDATE runs SET state = $2 WHERE id = $1 RETURNING n)
                SELECT 1 / (SELECT count(*) - 1 FROM changed)""",
                row,
                state,
            )
        except asyncpg.RaiseError:
            return False
        except asyncpg.DivisionByZeroError:
            return True
        raise AssertionError("there is no such row")


class TestSqliteMoves(MoveSuite):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[SqliteMoveStores]:
        stores = SqliteMoveStores(tmp_path)
        await stores.cold.open()
        yield stores
        await stores.cold.close()


class TestPostgresMoves(MoveSuite):
    @pytest.fixture
    async def stores(self) -> AsyncIterator[PostgresMoveStores]:
        async with Bridge() as bridge:
            stores = PostgresMoveStores(bridge)
            await stores.cold.open()
            try:
                yield stores
            finally:
                await stores.drop()


@pytest.mark.parametrize(
    "store", [daemon.stores.cold, daemon.stores.sqlite, daemon.stores.postgres]
)
def test_no_statement_sets_a_state_that_is_not_a_moves(store: object) -> None:
    (directory,) = store.__path__  # type: ignore[attr-defined]
    files = [path for path in Path(directory).glob("*.py") if path.name != "schema.py"]
    changes = re.compile(
        r"UPDATE runs((?!WHERE|\"\"\").)*?\bstate = ('|CASE[^\"]*?'[A-Z])", re.DOTALL
    )
    found = [path.name for path in files if changes.search(path.read_text())]
    assert found == []
    # It does find those that are there.
    assert changes.search("UPDATE runs SET is_due = 1,\n    state = 'CLAIMED' WHERE n = ?")
    assert changes.search("UPDATE runs SET state = CASE WHEN x THEN 'FAILED' END")
