"""The suite of unique keys, passed by SQLite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from actors.keys import KeyRule
from actors.tiers import StoreUnavailable
from daemon.cold import keys
from tests.conformance.cold_keys import WRITE, KeySuite, deletes_let_go, offer
from tests.conformance.cold_stores import check_books, new_row, put
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

    async def test_another_run_under_the_id_of_one_that_is_here_is_refused(
        self, stores: SqliteStores
    ) -> None:
        stores.cold.keep_keys(lambda _: KeyRule("ignore"))
        staged = new_row(1, keys=[b"a"], headers={"forebay-write": WRITE.hex()})
        await put(stores, staged)
        with trio.fail_after(60), pytest.raises(StoreUnavailable, match="taken already"):
            await stores.cold.offer([offer(b"b", run_id=staged.head.run_id)])
        await check_books(stores)

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
