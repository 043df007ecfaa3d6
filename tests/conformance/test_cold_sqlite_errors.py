"""The cold tier in SQLite when things go wrong: damage, full and failing disks, others' locks."""

import os
import resource
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from actors.model.books import ColdReceipt
from actors.model.slices import ItemError
from actors.ports.tiers import (
    ColdTotals,
    DeadFilter,
    RowOutcome,
    StoreCorrupt,
    StoreUnavailable,
)
from daemon.stores.sqlite.connection import PAGE_BYTES
from daemon.stores.sqlite.quarantine import suspect
from daemon.stores.sqlite.store import SqliteCold
from tests.conformance.cold_stores import (
    LEASE_S,
    START_MS,
    acquire,
    acquired_ids,
    check_books,
    dead_row,
    new_row,
    part_of,
    put,
)
from tests.conformance.sqlite_stores import SqliteStores

LOCK = b"L" * 16


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[SqliteStores]:
    stores = SqliteStores(tmp_path)
    await stores.cold.open()
    yield stores
    await stores.cold.close()


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM bodies WHERE id = :body",
        "UPDATE bodies SET data = x'00' WHERE id = :body",
        "UPDATE bodies SET data = 'text' WHERE id = :body",
        "UPDATE bodies SET data = (SELECT data FROM bodies WHERE id <> :body) WHERE id = :body",
        "UPDATE runs SET bits = x'ff' WHERE body_id = :body",
        "UPDATE runs SET bits = x'' WHERE body_id = :body",
        "UPDATE runs SET error_history = '[[1]]' WHERE body_id = :body",
        "UPDATE runs SET error_history = '{' WHERE body_id = :body",
        "UPDATE runs SET error_history = CAST(x'5b22ff225d' AS TEXT) WHERE body_id = :body",
        "UPDATE runs SET bits = 'text' WHERE body_id = :body",
    ],
)
async def test_a_row_that_makes_no_sense_is_set_aside(stores: SqliteStores, damage: str) -> None:
    bad, good = new_row(), new_row()
    await put(stores, bad, good)
    stores.beside(lambda db: db.execute(damage, {"body": bad.head.run_id}))
    with structlog.testing.capture_logs() as logs:
        assert await acquired_ids(stores) == [good.row]
        assert await acquired_ids(stores) == []
    assert [(line["event"], line["items"]) for line in logs] == [("cold.row_corrupt", 3)]
    assert await stores.cold.totals() == {"q": ColdTotals(taken=6, held=3, runs=1, lost=3)}
    assert [(flow.items, flow.dead) for flow in await stores.cold.flows()] == [(3, 0)]


async def test_a_letter_whose_run_is_damaged_cannot_be_edited_but_removed(
    stores: SqliteStores,
) -> None:
    row = dead_row()
    await put(stores, row)
    (letter,) = (await stores.dead.find(DeadFilter(), 1)).letters
    await stores.damage_body(row.head.run_id)
    with pytest.raises(StoreCorrupt):
        await stores.dead.edit(letter.id, b"x")
    assert (await stores.dead.remove(DeadFilter(), 1)).done == 1
    assert await stores.bodies() == set()


async def test_a_letter_that_is_damaged_is_still_shown(stores: SqliteStores) -> None:
    await put(stores, dead_row())
    stores.beside(lambda db: db.execute("UPDATE runs SET error_history = '?', headers = x'01'"))
    (letter,) = (await stores.dead.find(DeadFilter(), 1)).letters
    assert (letter.died_ms, letter.errors, letter.headers) == (START_MS, (), {})


async def test_what_is_no_database_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "cold.db"
    path.write_bytes(b"not a database, " * 1000)
    cold = SqliteCold(path, 1.0, ballast_bytes=0)
    await cold.open()
    assert await cold.totals() == {}
    await cold.close()
    (aside,) = (tmp_path / "quarantine").iterdir()
    kept = list(aside.rglob("*")) if aside.is_dir() else [aside]
    assert b"not a database, " * 1000 in [file.read_bytes() for file in kept]


async def test_a_place_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    cold = SqliteCold(tmp_path / "missing" / "cold.db", 1.0)
    with pytest.raises(StoreUnavailable, match=r"cold\.db"):
        await cold.open()
    (tmp_path / "missing").mkdir()
    await cold.open()
    await cold.close()


async def test_a_locked_database_is_unavailable_and_then_not(tmp_path: Path) -> None:
    stores = SqliteStores(tmp_path)
    stores.cold = SqliteCold(stores.path, 0.01, stores.now_ms, ballast_bytes=0)
    await stores.cold.open()
    row = new_row()
    other = sqlite3.connect(stores.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        await stores.cold.store([row])
    other.execute("ROLLBACK")
    other.close()
    await put(stores, row)
    assert await acquired_ids(stores) == [row.row]
    await stores.cold.close()


async def test_a_full_database_refuses_new_work_and_drains(stores: SqliteStores) -> None:
    old = [new_row(100, payload=os.urandom(100)) for _ in range(5)]
    await put(stores, *old)

    def fill(db: sqlite3.Connection) -> None:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages}").fetchall()

    await stores.cold._db.read(fill)
    new = new_row(100, payload=os.urandom(400))
    with pytest.raises(StoreUnavailable, match="full"):
        await stores.cold.store([new, new_row()])
    assert await stores.cold.unconfirmed() == []
    got = await acquire(stores)
    assert [row.row for row in got] == [row.row for row in old]
    outcomes = [RowOutcome(row.row, LOCK, delivered=row.bits) for row in got]
    assert await stores.cold.settle(outcomes) == [True] * 5
    await put(stores, new)
    assert await acquired_ids(stores) == [new.row]
    await check_books(stores)


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """No file of this process can grow beyond: what SQLite sees is an I/O error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_after_an_io_error_the_store_works_again(stores: SqliteStores) -> None:
    kept = new_row()
    await put(stores, kept)
    lost = new_row(100, payload=os.urandom(5000))
    log_bytes = os.stat(f"{stores.path}-wal").st_size
    with files_end_at(log_bytes + 10_000), pytest.raises(StoreUnavailable, match="I/O"):
        await stores.cold.store([lost])
    assert await stores.cold.unconfirmed() == []
    # What the log held is in the database: no sync that failed can be held against it.
    assert os.stat(f"{stores.path}-wal").st_size == 0
    await put(stores, lost)
    assert await acquired_ids(stores) == [kept.row, lost.row]
    await stores.crash()
    assert (await stores.cold.totals())["q"].taken == 103
    assert await stores.cold.renew([LOCK], LEASE_S) == [2]


async def test_settling_on_a_full_disk_takes_the_ballast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is a number of pages that grows when the ballast goes."""
    stores = SqliteStores(tmp_path)
    stores.cold = SqliteCold(stores.path, 1.0, stores.now_ms, ballast_bytes=100_000)
    await stores.cold.open()
    ballast = stores.path.with_name("cold.db.ballast")
    assert ballast.stat().st_size == 100_000
    row = new_row(200, payload=os.urandom(100))
    await put(stores, row)
    (got,) = await acquire(stores)
    database = stores.cold._db
    (pages,) = await database.read(lambda db: db.execute("PRAGMA page_count").fetchone())
    attempt = database._transact

    def on_a_small_disk(work, is_durable):  # type: ignore[no-untyped-def]
        room = pages + 400 * (not ballast.exists())
        database._connected().execute(f"PRAGMA max_page_count = {room}").fetchall()
        return attempt(work, is_durable)

    monkeypatch.setattr(database, "_transact", on_a_small_disk)
    with pytest.raises(StoreUnavailable, match="full"):
        await stores.cold.store([new_row(1, payload=os.urandom(80_000))])
    assert ballast.exists()
    errors = tuple(ItemError(n, START_MS, os.urandom(200).hex()) for n in range(20))
    letters = tuple(part_of(got, 1 << index, errors=errors, is_dead=True) for index in range(200))
    outcome = RowOutcome(row.row, LOCK, moved=letters, moved_bits=got.bits)
    assert await stores.cold.settle([outcome]) == [True]
    assert not ballast.exists()
    assert await stores.dead.count(DeadFilter(queue="q"), 999) == 200
    await stores.cold.sync()
    assert ballast.exists()
    await stores.cold.close()


@pytest.mark.parametrize(
    "damage",
    [
        # The schema as text is on the first page; SQLite quotes what it cannot read.
        lambda data: data.replace(b"lock_uuid IS NOT NULL", b"lock_\xffuid IS NOT NULL"),
        lambda data: data.replace(b"CREATE TABLE bodies", b"CREATE TABLE b\xffdies"),
        lambda data: data[:100] + bytes(1000) + data[1100:],
    ],
)
async def test_a_damaged_schema_is_set_aside(
    stores: SqliteStores, damage: Callable[[bytes], bytes]
) -> None:
    await stores.cold.close()
    damaged = damage(stores.path.read_bytes())
    stores.path.write_bytes(damaged)
    await stores.cold.open()
    assert await stores.cold.totals() == {}
    kept = [file for file in (stores.path.parent / "quarantine").rglob("*") if file.is_file()]
    assert damaged in [file.read_bytes() for file in kept]


async def test_what_a_damaged_database_held_is_counted_as_lost(stores: SqliteStores) -> None:
    await put(stores, new_row(), dead_row(), delivered := new_row())
    await acquire(stores)
    await stores.cold.settle([RowOutcome(delivered.row, LOCK, delivered=0b111)])
    before = (await stores.cold.totals())["q"]
    assert before == ColdTotals(taken=7, delivered=3, dead=1, held=3, runs=1)
    select = "SELECT rootpage FROM sqlite_master WHERE name = 'runs'"
    (page,) = stores.beside(lambda db: db.execute(select).fetchone())
    await stores.cold.close()
    with stores.path.open("r+b") as file:
        file.seek((page - 1) * PAGE_BYTES)
        file.write(os.urandom(PAGE_BYTES))
    suspect(stores.path)
    with structlog.testing.capture_logs() as logs:
        await stores.cold.open()
    assert await stores.cold.totals() == {"q": ColdTotals(taken=7, delivered=3, lost=4)}
    assert ("cold.items_lost", 4) in [(line["event"], line.get("items")) for line in logs]
    # More was handed over than the totals knew of.
    assert await stores.cold.write_off({"q": 2})
    assert await stores.cold.totals() == {"q": ColdTotals(taken=9, delivered=3, lost=6)}


async def test_what_is_missing_from_a_sound_database_is_not_written_off(
    stores: SqliteStores,
) -> None:
    assert not await stores.cold.write_off({"q": 2})
    assert await stores.cold.totals() == {}


async def test_nobody_waits_for_a_row_of_a_write_that_cannot_be_read(stores: SqliteStores) -> None:
    write = b"W" * 16
    bad = new_row(headers={"forebay-write": write.hex()})
    await put(stores, bad)
    stores.beside(lambda db: db.execute("UPDATE bodies SET data = x'00'"))
    assert await acquired_ids(stores) == []
    assert await stores.cold.receipt(write) == ColdReceipt(lost=3)


async def test_text_that_is_none_is_corrupt(stores: SqliteStores) -> None:
    await put(stores, new_row())
    stores.beside(lambda db: db.execute("UPDATE flows SET flow = CAST(x'ff' AS TEXT)"))
    with pytest.raises(StoreCorrupt):
        await stores.cold.flows()
    assert (await stores.cold.totals())["q"].held == 3


async def test_an_index_that_is_wrong_is_noticed(stores: SqliteStores) -> None:
    """Rather than leasing a row twice, or looking for it for ever."""
    row = new_row()
    await put(stores, row, new_row())

    def damage(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA writable_schema = ON")
        schema_row = "name = 'runs_due'"
        (sql,) = db.execute(f"SELECT sql FROM sqlite_master WHERE {schema_row}").fetchone()
        db.execute(f"UPDATE sqlite_master SET sql = ? WHERE {schema_row}", (f"{sql} AND 0",))
        (version,) = db.execute("PRAGMA schema_version").fetchone()
        db.execute(f"PRAGMA schema_version = {version + 1}")

    def repair(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET sql = replace(sql, ' AND 0', '')")
        (version,) = db.execute("PRAGMA schema_version").fetchone()
        db.execute(f"PRAGMA schema_version = {version + 1}")

    # While SQLite believes that nothing belongs into the index, a row leaves the order of delivery.
    stores.beside(damage)
    stores.beside(
        lambda db: db.execute(
            "UPDATE runs SET is_due = 0, scheduled_at = ? WHERE id = ?",
            (stores.now_ms() + 1, row.row),
        )
    )
    stores.beside(repair)
    with pytest.raises(StoreCorrupt, match="disagree"):
        await acquire(stores)


async def test_folder_that_vanishes_makes_the_store_unavailable(tmp_path: Path) -> None:
    """A disk that was unmounted: every step is refused as the store's failure, none as a bug."""
    folder = tmp_path / "state"
    folder.mkdir()
    cold = SqliteCold(folder / "cold.sqlite", 5.0)
    cold.leave_free(1)
    await cold.open()
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable):
        await cold.sync()
    with pytest.raises(StoreUnavailable):
        await cold.store([new_row()])
    (tmp_path / "elsewhere").rename(folder)
    await cold.sync()
    await cold.close()
