"""History in SQLite: what the port's suite cannot see. Plans of queries, a full disk, old files."""

import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actors.model.slices import ItemError
from actors.ports.tiers import RowOutcome, StoreUnavailable
from daemon.stores.cold import history, items
from daemon.stores.cold.statement import Statement
from daemon.stores.sqlite.store import SqliteCold
from tests.conformance.cold_history import LOCK, finished, keep, past, settle_all
from tests.conformance.cold_stores import START_MS, acquire, dead_row, new_row, put
from tests.conformance.sqlite_stores import SqliteStores, without_newest


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[SqliteStores]:
    stores = SqliteStores(tmp_path)
    await stores.cold.open()
    yield stores
    await stores.cold.close()


@pytest.mark.parametrize(
    "statement, values",
    [
        (history.SELECT_PAST, ("q", 1, 1, 1)),
        (history.SELECT_OLD, ("q", 1, 1)),
        (history.SELECT_QUEUES, ()),
        (history.FORGET, (1,)),
        (history.NOTE_CLAIMED, (1,)),
        (history.NOTE_CLAIMED_FAILURES, (1,)),
        (items.SELECT_PAST_BY_BODY, ([b"1", b"2"],)),
        (items.SELECT_HISTORY, (2, 1, "q", 3)),
        (items.END_OF_HISTORY, (1, 2)),
    ],
)
async def test_no_step_walks_through_all_rows(
    stores: SqliteStores, statement: Statement, values: tuple[Any, ...]
) -> None:
    plan = stores.plan(statement, *values)
    steps = [step for step in plan if " history" in step or " runs" in step]
    assert steps
    assert all(step.startswith("SEARCH") for step in steps), plan
    assert not any("TEMP B-TREE" in step for step in plan), plan


async def test_on_a_full_disk_what_is_finished_makes_room_and_is_not_kept(tmp_path: Path) -> None:
    """The disk is a number of pages, and giving up the ballast does not help."""
    stores = SqliteStores(tmp_path)
    stores.cold = SqliteCold(stores.path, 1.0, stores.now_ms, ballast_bytes=100_000)
    await stores.cold.open()
    keep(stores, "all")
    errors = tuple(ItemError(n, START_MS, os.urandom(200).hex()) for n in range(20))
    await put(stores, *(new_row(1, attempt=1, errors=errors) for _ in range(30)))
    await put(stores, *(dead_row(errors=errors) for _ in range(30)))
    rows = await acquire(stores)
    database = stores.cold._db

    def fill(db: sqlite3.Connection) -> None:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages}")

    await database.read(fill)
    with pytest.raises(StoreUnavailable, match="full"):
        await stores.cold.note_history([finished(new_row(1, payload=os.urandom(40_000)))])
    assert all(await stores.cold.settle([RowOutcome(row.row, LOCK, row.bits) for row in rows]))
    assert await past(stores) == []
    assert (await stores.cold.totals())["q"].delivered == 30
    await stores.cold.close()


async def test_a_file_of_the_version_before_gets_a_history(tmp_path: Path) -> None:
    stores = SqliteStores(tmp_path)
    await stores.cold.open()
    row = new_row(2, attempt=1, errors=(ItemError(1, START_MS, "no"),))
    await put(stores, row)
    await stores.cold.close()

    def age(db: sqlite3.Connection) -> None:
        without_newest(db)
        db.execute("DROP TABLE history")
        db.execute("ALTER TABLE receipts DROP COLUMN corrupt")
        db.execute("UPDATE schema_version SET version = 3")

    stores.beside(age)
    await stores.cold.open()
    keep(stores, "failures")
    await settle_all(stores)
    assert [one.head.run_id for one in await past(stores)] == [row.head.run_id]
    await stores.cold.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE history SET bits = x'ff'",
        "UPDATE history SET bits = 'text'",
        "UPDATE history SET error_history = CAST(x'5b22ff225d' AS TEXT)",
        "UPDATE history SET error_history = '[[1]]'",
        "DELETE FROM bodies",
    ],
)
async def test_a_row_that_makes_no_sense_is_left_out_and_forgotten(
    stores: SqliteStores, damage: str
) -> None:
    keep(stores, "all")
    await stores.cold.note_history([finished(new_row(3))])
    stores.beside(lambda db: db.execute(damage))
    assert await past(stores) == []
    assert await stores.cold.forget_history("q", START_MS + 1) == 1
