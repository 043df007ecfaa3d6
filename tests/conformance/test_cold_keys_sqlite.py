"""The suite of unique keys, passed by SQLite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.stores.cold import offers, ticks
from daemon.stores.sqlite import keys
from tests.conformance.cold_keys import KeySuite, deletes_let_go, old_runs_are_forgotten
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

    async def test_runs_that_nobody_will_offer_again_are_forgotten(
        self, stores: SqliteStores, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(keys.SqliteKeys, "offered_max", 2)
        await old_runs_are_forgotten(stores)

    async def test_no_statement_walks_through_all_runs(self, stores: SqliteStores) -> None:
        known = stores.plan(offers.SELECT_KNOWN, [b""] * 4)
        assert [step.split()[:2] for step in known if "bodies" in step or "offered" in step] == [
            ["SEARCH", "offered"],
            ["SEARCH", "bodies"],
        ]
        old = stores.plan(offers.FORGET_OFFERED, 2, 2)
        assert not [step for step in old if step.startswith("SCAN")], old
        span = stores.plan(ticks.SELECT_SPAN, "q", b"", b"")
        assert [step.split()[:2] for step in span] == [["SEARCH", "keys"]]

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
