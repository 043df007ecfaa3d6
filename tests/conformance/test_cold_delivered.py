"""The short way to settle what was delivered says and leaves the same as the long one.

Hypothesis makes rows (of shared bodies, of writes, with failures, unlocked, run out) and outcomes
(stale, doubled, partial, of unknown rows), and settles them both ways in two databases.
"""

import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.model.finished import Keep, Keeps
from actors.model.keys import no_keys
from actors.model.slices import ItemError
from actors.ports.tiers import NewRow, RowOutcome
from daemon.stores.cold import settling
from daemon.stores.cold.connection import drive
from daemon.stores.cold.rows import Unpacked, place_of
from daemon.stores.cold.statement import Now
from daemon.stores.sqlite.books import Books
from daemon.stores.sqlite.delivered import settle_delivered
from daemon.stores.sqlite.rows import SqliteRows
from daemon.stores.sqlite.schema import migrate
from daemon.stores.sqlite.settled_view import prepare
from daemon.stores.sqlite.steps import SqliteConnection
from forebay import encode_run
from forebay.run import RunHead, read_head
from forebay.stage_frames import WRITE_HEADER

NOW = 1_000_000
CLOCKS = Now(NOW, NOW)
COUNT = 5
ALL = (1 << COUNT) - 1
LOCKS = [bytes([number]) * 16 for number in (1, 2)]
WRITES = ["", "ab" * 16, "cd" * 16]
KEEPS: dict[str, Keep] = {"a": "none", "b": "failures", "c": "all"}
TABLES = ("runs", "bodies", "flows", "totals", "receipts", "history", "aliases", "keys")


class Body(NamedTuple):
    head: RunHead
    data: bytes


class MadeRow(NamedTuple):
    new: NewRow
    lock: bytes | None
    is_due: bool
    """Its lease has run out, or it was never leased."""


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
bits = st.integers(1, ALL)


@st.composite
def bodies(draw: st.DrawFn, queues: str) -> Body:
    write = draw(st.sampled_from(WRITES))
    data = encode_run(
        [b"x"] * COUNT,
        queue=draw(st.sampled_from(queues)),
        flow=draw(texts),
        action=draw(texts),
        headers={WRITE_HEADER: write} if write else {},
        run_id=draw(st.binary(min_size=16, max_size=16)),
    )
    return Body(read_head(data), data)


@st.composite
def made_rows(draw: st.DrawFn) -> list[MadeRow]:
    # With a row of "c" nothing is settled the short way.
    body = bodies(draw(st.sampled_from(["a", "ab", "abc"])))
    found = draw(st.lists(body, min_size=1, max_size=3, unique_by=lambda b: b.head.run_id))
    rows = []
    for number in range(draw(st.integers(1, 6))):
        head, data = draw(st.sampled_from(found))
        attempt = draw(st.integers(0, 1))
        errors = (ItemError(1, NOW, "no"),) * attempt
        row = bytes([number]) * 16
        new = NewRow(row, head, data, draw(bits), attempt, 0, errors)
        lock = draw(st.sampled_from([*LOCKS, *LOCKS, None]))
        rows.append(MadeRow(new, lock, lock is None or draw(st.booleans())))
    return rows


@st.composite
def outcomes_of(draw: st.DrawFn, rows: list[MadeRow]) -> RowOutcome:
    """Most of them fit."""
    made = draw(st.sampled_from(rows))
    stranger = draw(st.integers(0, 9)) == 0
    return RowOutcome(
        b"?" * 16 if stranger else made.new.row,
        made.lock or draw(st.sampled_from(LOCKS)),
        draw(st.one_of(st.just(made.new.bits), st.integers(0, 2 * ALL + 1))),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[MadeRow], list[RowOutcome]]:
    rows = draw(made_rows())
    return rows, draw(st.lists(outcomes_of(rows), max_size=8))


def filled(rows: list[MadeRow]) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    prepare(db)
    books, runs = Books(), Unpacked()
    for made in rows:
        new = made.new
        assert drive(SqliteRows(db, CLOCKS).insert([new], runs))
        db.execute(
            "UPDATE runs SET lock_uuid = ?, is_due = ? WHERE id = ?",
            (made.lock, int(made.is_due), new.row),
        )
        write = runs.write(new.head)
        books.take(place_of(new.head), new.bits.bit_count(), write, is_dead=False)
    books.write(db)
    return db


def all_of(db: sqlite3.Connection) -> dict[str, list[Any]]:
    return {table: sorted(db.execute(f"SELECT * FROM {table}"), key=repr) for table in TABLES}


def keeps(queue: str) -> Keep:
    return KEEPS[queue]


class LongWay(SqliteConnection):
    async def settle_delivered(self, outcomes: Sequence[RowOutcome], keeps: Keeps) -> None:
        return None


def settle(con: SqliteConnection, wanted: list[RowOutcome]) -> list[bool]:
    return drive(settling.settle(con, wanted, keeps, no_keys))


@settings(deadline=None)
@given(cases())
def test_both_ways_of_settling_answer_and_leave_the_same(
    case: tuple[list[MadeRow], list[RowOutcome]],
) -> None:
    rows, wanted = case
    short, long = filled(rows), filled(rows)
    try:
        answers = settle(SqliteConnection(short, CLOCKS, makes_room=False), wanted)
        assert answers == settle(LongWay(long, CLOCKS, makes_room=False), wanted)
        assert all_of(short) == all_of(long)
    finally:
        short.close()
        long.close()


def test_the_short_way_is_taken_unless_history_keeps_the_row() -> None:
    """Otherwise both ways would be one, and equal for no reason."""
    for queue, is_short in (("a", True), ("b", True), ("c", False)):
        data = encode_run([b"x"] * COUNT, queue=queue)
        new = NewRow(b"r" * 16, read_head(data), data, ALL)
        db = filled([MadeRow(new, LOCKS[0], False)])
        outcome = RowOutcome(new.row, LOCKS[0], delivered=ALL)
        assert (settle_delivered(db, [outcome], keeps) is not None) is is_short
        db.close()
