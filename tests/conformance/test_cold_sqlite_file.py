"""What is SQLite's own in the cold tier: its schema, its indexes, its syncs."""

import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.ports.tiers import DeadFilter, RowOutcome, StoreUnavailable
from daemon.errors import CannotStart
from daemon.stores.cold import (
    claims,
    dead,
    dead_page,
    dead_search,
    hand_over,
    items,
    job_ends,
    job_failures,
    leasing,
    looks,
    settling,
    triggers,
)
from daemon.stores.cold.statement import Now, Statement
from daemon.stores.sqlite import (
    delivered,
    due,
    rows,
    schema,
    settled_view,
)
from tests.conformance.cold_stores import (
    START_MS,
    acquire,
    acquired_ids,
    dead_row,
    new_row,
    part_of,
    put,
)
from tests.conformance.sqlite_stores import SqliteStores, without_newest

LOCK = b"L" * 16


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[SqliteStores]:
    stores = SqliteStores(tmp_path)
    await stores.cold.open()
    yield stores
    await stores.cold.close()


def as_it_is_alone(step: str) -> str:
    """A step of a trigger."""
    return re.sub(r"NEW\.\w+", "NULL", step)


async def test_nothing_regular_walks_through_all_rows(stores: SqliteStores) -> None:
    plans = {
        "shrink": rows.SHRINK,
        "settle what was delivered": delivered.read_sql(4),
        "bodies": rows.bodies_sql(4),
        **{f"settled {at}": as_it_is_alone(step) for at, step in enumerate(settled_view.OF_ROWS)},
        "drop claimed bodies": rows.DROP_CLAIMED_BODIES,
        "drop claimed rows": rows.DROP_CLAIMED,
        "drop bodies by id": rows.DROP_BODIES.format("?, ?"),
    }
    for name, sql in plans.items():
        numbered = [int(number) for number in re.findall(r"\?(\d)", sql)]
        values = [0] * (max(numbered) if numbered else sql.count("?"))
        if "json_each" in sql:
            values = ["[]" if value == 2 else 0 for value in range(len(values))]  # type: ignore[misc]
        plan = stores.beside(
            lambda db, sql=sql, values=values: [  # type: ignore[misc]
                row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", values)
            ]
        )
        check_plan(plan, name, is_sorted=True)


def stated(text: str, which: DeadFilter) -> tuple[Statement, tuple[Any, ...]]:
    terms = dead_search.walked(which, dead_search.After(1, b""), 9)
    statement, *values = dead_search.stated(text, terms, 1)
    return statement, tuple(values)


FOUND = {
    "in queue": DeadFilter(queue="q"),
    "by age": DeadFilter(died_before_ms=9),
    "by id": DeadFilter(ids=("a",)),
}
UNSORTED = ("find by id", "end by id", "count what was claimed")
STEPS: dict[str, tuple[Statement, tuple[Any, ...]]] = {
    "store": (hand_over.SELECT_BODIES, ([b"1", b"2"],)),
    "confirm": (hand_over.CONFIRM, ([b"1", b"2"], None)),
    "forget": (hand_over.FORGET, ([b"1", b"2"],)),
    "settle": (settling.SELECT_LEASED, ([b"1", b"2"],)),
    "find an item": (items.SELECT_BY_BODY, ([b"1", b"2"],)),
    "scan": (items.SELECT_ROWS, (1, 2, "q", 3)),
    "end of a scan": (items.END_OF_ROWS, (1, 2)),
    "delete": (items.SELECT_HELD, ([b"1", b"2"],)),
    "purge what is due": (items.SELECT_DUE, ("q", 1)),
    "purge the rest": (items.SELECT_LATER, ("q", 1)),
    "move what has come due": (due.MOVE_DUE, ("q", 9)),
    "pick": (due.NEXT, ("q", ["f", "g"], 9)),
    "pick without exceptions": (due.NEXT, ("q", [], 9)),
    "lease": (leasing.LEASE, ([1, 2], b"", 1, b"")),
    "set aside": (leasing.SET_ASIDE, ([1, 2],)),
    "cut": (leasing.SPLIT_OFF, (1, b"", b"", 1, 1)),
    "renew": (leasing.RENEW, ([b"1", b"2"], 1)),
    "release": (leasing.RELEASE, ([b"1", b"2"], b"")),
    "release all": (leasing.RELEASE_ALL, (b"",)),
    "outlook": (leasing.OUTLOOK, ("q", ["f", "g"])),
    "outlook without exceptions": (leasing.OUTLOOK, ("q", [])),
    "fetch": (looks.SELECT_CLAIMED, (1, 2, 3)),
    "look": (looks.SELECT_STRETCH, ("q", 1, 2, 3)),
    "last row": (looks.SELECT_LAST, ()),
    "freeze a claim": (claims.FREEZE, ([1, 2], 1)),
    "open a claim": (claims.OPEN_CLAIM, (1, 1)),
    "count what was claimed": (claims.COUNT_CLAIMED, (1,)),
    "keys of what was claimed": (claims.SELECT_KEYED, (1,)),
    "release a claim": (claims.RELEASE_CLAIM, (1,)),
    "lock what is claimed and bad": (claims.LOCK_BAD, ([1, 2],)),
    "set claimed aside": (claims.SET_ASIDE, ([1, 2],)),
    "rows that a job claims": (triggers.SELECT_COUNTS, ([1, 2],)),
    "a row that a job cuts": (triggers.SELECT_ROW, (1,)),
    "what a job has claimed": (triggers.SELECT_CLAIMED, (1, 9)),
    "set a job's id": (triggers.SET_JOB_ID, (1, "a")),
    "letters of a job": (job_ends.LOCK_LETTERS, ("a",)),
    "letters of jobs": (triggers.SELECT_DEAD, (["a", "b"],)),
    "mark letters of a job": (job_ends.MARK_SPENT, ([1, 2], "")),
    "what a dead job has claimed": (job_failures.LOCK_CLAIMED, (1,)),
    "fail a row": (job_failures.FAIL_ROW, (1, "[]")),
    "lock letters": (dead.LOCK, ([1, 2],)),
    "retry": (dead.RETRY, ([1, 2],)),
    "edit": (dead.EDIT, (1, b"", b"", 1)),
    "by item": (dead.SELECT_BY_ITEM, ("a",)),
    "letters": (dead_page.SELECT, ([1, 2],)),
    **{f"find {name}": stated(dead_search.FIND, which) for name, which in FOUND.items()},
    **{f"end {name}": stated(dead_search.END, which) for name, which in FOUND.items()},
}


@pytest.mark.parametrize("name", STEPS)
async def test_no_statement_of_a_step_walks_through_all_rows(
    stores: SqliteStores, name: str
) -> None:
    statement, values = STEPS[name]
    check_plan(stores.plan(statement, *values), name, is_sorted=name not in UNSORTED)


def check_plan(plan: list[str], name: str, *, is_sorted: bool) -> None:
    """`is_sorted`: rows come in the order that is asked for."""
    steps = [step for step in plan if "runs" in step or "bodies" in step]
    assert steps, name
    assert all(step.startswith("SEARCH") for step in steps), (name, plan)
    if is_sorted:
        assert not any("TEMP B-TREE" in step for step in plan), (name, plan)


async def test_what_comes_next_is_seen_in_the_indexes_alone(stores: SqliteStores) -> None:
    """SQLite opens the table too, and would go there for a column that the index lacks."""
    text, values = leasing.OUTLOOK.sqlite(("q", ["f"]), Now(START_MS, START_MS))
    steps = stores.beside(lambda db: [row[1:5] for row in db.execute(f"EXPLAIN {text}", values)])
    tables = {p3 for name, _, _, p3 in steps if name == "DeferredSeek"}
    read = {cursor for name, cursor, _, _ in steps if name == "Column"}
    assert len(tables) == 5
    assert read
    assert not tables & read


async def test_only_what_may_come_again_is_written_without_a_sync(stores: SqliteStores) -> None:
    commits: list[str] = []
    level = "FULL"

    def note(sql: str) -> None:
        nonlocal level
        if sql.startswith("PRAGMA synchronous"):
            level = sql.split()[-1]
        elif sql == "COMMIT":
            commits.append(level)

    await stores.cold._db.write(lambda db: db.set_trace_callback(note))
    cold, letters = stores.cold, stores.dead

    async def levels() -> list[str]:
        await trio.lowlevel.checkpoint()
        noted = commits[:]
        commits.clear()
        return noted

    await levels()
    first, second = new_row(4), dead_row()
    for name, step, expected in (
        ("store", lambda: cold.store([first, second]), ["FULL"]),
        ("confirm", lambda: cold.confirm([first.row, second.row]), ["FULL"]),
        ("acquire", lambda: acquire(stores), ["NORMAL"]),
        ("renew", lambda: cold.renew([LOCK], 1.0), ["NORMAL"]),
        ("settle", lambda: cold.settle([RowOutcome(first.row, LOCK, 0b1)]), ["NORMAL"]),
        ("sync", cold.sync, ["FULL"]),
        ("sync again", cold.sync, []),
        (
            "settle durably",
            lambda: cold.settle([RowOutcome(first.row, LOCK, 0b1000)], is_durable=True),
            ["FULL"],
        ),
        ("sync after settle", cold.sync, []),
        (
            "move",
            lambda: cold.settle([RowOutcome(first.row, LOCK, 0, (part_of(first, 0b10),), 0b10)]),
            ["FULL"],
        ),
        ("release", lambda: cold.release(LOCK, [first.row]), ["NORMAL"]),
        ("edit", lambda: letters.edit("no such", b""), ["FULL"]),
        # An edit that found nothing wrote nothing, and so the release is not on disk yet.
        ("sync after release", cold.sync, ["FULL"]),
        ("retry", lambda: letters.retry(DeadFilter(), 1), ["FULL"]),
        ("sync after retry", cold.sync, []),
        ("remove", lambda: letters.remove(DeadFilter(), 1), ["FULL"]),
        ("claim", lambda: cold.claim("q", "reader", 0, 10), ["FULL"]),
        ("acknowledge", lambda: cold.claim("q", "reader", 1, 0), ["FULL"]),
        ("drop stream", lambda: cold.drop_stream("q", "reader"), ["FULL"]),
        ("forget", lambda: cold.forget([]), ["FULL"]),
    ):
        await step()
        assert await levels() == expected, name


async def test_the_log_is_synced_at_the_level_that_was_chosen(stores: SqliteStores) -> None:
    def level(db: sqlite3.Connection) -> object:
        return db.execute("PRAGMA synchronous").fetchone()[0]

    assert await stores.cold._db.write(level) == 2
    assert await stores.cold._db.write(level, is_durable=False) == 1
    assert await stores.cold._db.read(lambda db: db.execute("PRAGMA journal_mode").fetchone()) == (
        "wal",
    )


async def test_more_rows_than_fit_a_transaction_come_due_in_order(
    stores: SqliteStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due, "MOVED_MAX", 3)
    late = [new_row(priority=9 - n, row_due_ms=START_MS + 100 + n) for n in range(10)]
    await put(stores, *late)
    stores.advance(200)
    assert await acquired_ids(stores, items_max=3) == [late[-1].row]
    assert await acquired_ids(stores) == [row.row for row in late[-2::-1]]


async def test_more_leases_than_fit_a_transaction_run_out_together(
    stores: SqliteStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside rows that come due: both kinds share what a transaction may move."""
    monkeypatch.setattr(due, "MOVED_MAX", 3)
    leased = [new_row() for _ in range(4)]
    late = [new_row(row_due_ms=START_MS + 100) for _ in range(2)]
    await put(stores, *leased, *late)
    assert len(await acquire(stores, lease_s=0.1)) == 4
    stores.advance(100)
    now = Now(stores.now_ms(), stores.steady_ms())
    assert not stores.beside(lambda db: due.move_due(db, "q", now))
    count_due = "SELECT count(*) FROM runs WHERE is_due = 1"
    assert stores.beside(lambda db: db.execute(count_due).fetchone()) == (3,)
    assert await acquired_ids(stores) == [row.row for row in leased + late]


async def test_leases_of_another_life_are_freed_whatever_its_clock_said(
    stores: SqliteStores,
) -> None:
    rows = [new_row() for _ in range(2)]
    await put(stores, *rows)
    await acquire(stores, items_max=3, lease_s=10 * 365 * 86_400)
    await acquire(stores, lease_s=1.0)
    await stores.crash()
    assert await stores.cold.release_all() == 2
    assert await acquired_ids(stores, b"O" * 16) == [row.row for row in rows]


async def test_leases_of_a_file_of_the_first_version_are_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = SqliteStores(tmp_path)
    leased, late = new_row(), new_row(row_due_ms=START_MS + 10)
    await stores.cold.open()
    await put(stores, leased, late)
    await acquire(stores)
    await stores.cold.close()

    def age(db: sqlite3.Connection) -> None:
        without_newest(db)
        for table in ("receipts", "consumers", "history"):
            db.execute(f"DROP TABLE {table}")
        db.execute("DROP INDEX runs_claimed")
        for column in ("write_id", "consumer", "place"):
            db.execute(f"ALTER TABLE runs DROP COLUMN {column}")
        db.execute("DROP INDEX runs_later")
        db.execute("DROP INDEX runs_leased")
        [sql] = [sql for sql in schema.MIGRATIONS[0] if "INDEX runs_later" in sql]
        db.execute(sql)
        db.execute("UPDATE schema_version SET version = 1")

    stores.beside(age)
    await stores.cold.open()
    assert await stores.cold.release_all() == 1
    assert await acquired_ids(stores) == [leased.row]
    stores.advance(10)
    assert await acquired_ids(stores) == [late.row]
    await stores.cold.close()


async def test_a_search_looks_at_a_stretch_at_a_time(
    stores: SqliteStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_search, "SCANNED_MAX", 3)
    letters = [dead_row("rare" if n in (4, 9) else "common", START_MS + n) for n in range(12)]
    await put(stores, *letters)
    rare = DeadFilter(error="rare")
    page = await stores.dead.find(rare, 2)
    assert [letter.row for letter in page.letters] == [letters[4].row, letters[9].row]
    assert await stores.dead.count(rare, 9) == 2
    done, cursor = [], None
    while True:
        step = await stores.dead.retry(rare, 5, cursor)
        done.append(step.done)
        cursor = step.cursor
        if cursor is None:
            break
    assert sum(done) == 2
    assert done[0] == 0
    assert await stores.dead.count(DeadFilter(), 99) == 10


async def test_a_newer_schema_is_refused(stores: SqliteStores) -> None:
    await stores.cold.close()
    version = len(schema.MIGRATIONS)
    stores.beside(lambda db: db.execute("UPDATE schema_version SET version = version + 1"))
    with pytest.raises(CannotStart, match=f"version {version + 1}.* knows {version}"):
        await stores.cold.open()
    stores.beside(lambda db: db.execute("UPDATE schema_version SET version = version - 1"))
    await stores.cold.open()


async def test_a_migration_that_fails_leaves_the_schema_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = schema.MIGRATIONS[0]
    stores = SqliteStores(tmp_path)
    second = ("CREATE TABLE extra (a INTEGER)", "CREATE TABLE runs (a INTEGER)")
    monkeypatch.setattr(schema, "MIGRATIONS", (first, second))
    with pytest.raises(StoreUnavailable):
        await stores.cold.open()
    monkeypatch.setattr(schema, "MIGRATIONS", (first, second[:1]))
    await stores.cold.open()
    assert stores.beside(
        lambda db: db.execute("SELECT version FROM schema_version").fetchone()
    ) == (2,)
    await stores.cold.close()


async def test_a_page_unpacks_a_bounded_number_of_bytes(
    stores: SqliteStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single items of large runs are little to show, and much to unpack."""
    monkeypatch.setattr(dead_page, "UNPACKED_BYTES_MAX", 25_000)
    rows = [dead_row(items=10, bits=1, payload=bytes(1000)) for _ in range(7)]
    rows.append(part_of(rows[-1], 0b10, is_dead=True, errors=rows[-1].errors))
    await put(stores, *rows)
    counts, seen, cursor = [], [], None
    while True:
        page = await stores.dead.find(DeadFilter(), 100, cursor, payloads=True)
        counts.append(len(page.letters))
        seen += [letter.row for letter in page.letters]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == [row.row for row in rows]
    assert counts == [3, 3, 2]
    assert (await stores.dead.find(DeadFilter(), 100)).cursor is None


async def test_a_nearly_full_disk_gets_back_what_the_file_does_not_need(
    stores: SqliteStores,
) -> None:
    rows = [new_row(1, payload=bytes(100_000), compressed=False) for _ in range(100)]
    await put(stores, *rows)
    await acquire(stores)
    await stores.cold.settle([RowOutcome(row.row, LOCK, delivered=1) for row in rows])
    log = stores.path.with_name(f"{stores.path.name}-wal")
    await stores.cold.sync()
    assert stores.path.stat().st_size + log.stat().st_size > 10_000_000
    stores.cold.leave_free(1 << 60)
    await stores.cold.sync()
    assert stores.path.stat().st_size + log.stat().st_size < 1_000_000
    stores.cold.leave_free(0)
    await put(stores, again := new_row())
    assert await acquired_ids(stores) == [again.row]
