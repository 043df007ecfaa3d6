"""The suite of unique keys, passed by SQLite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.stores.sqlite import keys
from tests.conformance.cold_keys import KeySuite, deletes_let_go
from tests.conformance.sqlite_stores import SqliteStores


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[SqliteStores]:
    stores = SqliteStores(tmp_path)
    await stores.cold.open()
    yield stores
    await stores.cold.close()


class TestSqliteKeys(KeySuite):
    async def test_items_that_are_deleted_let_go_of_their_keys(self, stores: SqliteStores) -> None:
        await deletes_let_go(stores, stores.cold.items)

    async def test_no_statement_walks_through_all_keys(self, stores: SqliteStores) -> None:
        statements = {
            "find": keys.SELECT_KEYS,
            "rows": keys.SELECT_ROWS.format("?"),
            "let go": f"DELETE FROM keys {keys.IN_STRETCH}",
            "let go here and there": f"DELETE FROM keys {keys.AT_PLACES}",
            "home": keys.SELECT_HOME,
            "drop homes": keys.DROP_HOMES,
            "old": keys.SELECT_OLD,
            "delete": keys.DELETE_KEYS,
        }
        for name, sql in statements.items():
            values = ["[]"] * (3 if "?3" in sql else sql.count("?"))
            plan = stores.beside(
                lambda db, sql=sql, values=values: [  # type: ignore[misc]
                    row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", values)
                ]
            )
            tables = [step for step in plan if step.split()[1] in ("keys", "homes", "runs")]
            assert tables, name
            assert all(step.startswith("SEARCH") for step in tables), (name, plan)
