"""What becomes of the items of a trigger's job that is dead, in SQLite.

Each row of the job's claim has failed once more, and remembers why. A row that may be tried again
stays claimed: it is given back with the claim. A row that has failed too often becomes dead
letters, one for each item, on the body it had, in the transaction that gives the others back. What
to do with which row is the same in both stores (`sort_failed`); a row that cannot be read is set
aside, as everywhere.

What it can't do: tell the item that made the job fail from those beside it.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from actors.model.moves import ColdMove, guard
from actors.model.slices import ItemError, error_rows, indexes, remember
from actors.ports.tiers import NewRow
from actors.ports.trigger_jobs import IDS_TOLD_MAX, FailedJob, JobEnd
from daemon.stores.cold.books import Place
from daemon.stores.cold.claims import BadClaimed, set_aside
from daemon.stores.cold.connection import drive
from daemon.stores.cold.rows import (
    FAILED,
    BadRow,
    Unpacked,
    item_id_of,
    read_errors,
    unpack_bits,
)
from daemon.stores.cold.statement import Now
from daemon.stores.sqlite.books import Books
from daemon.stores.sqlite.rows import delete_row, insert_row, read_body
from daemon.stores.sqlite.steps import SqliteConnection
from forebay.ids import new_run_id
from forebay.run import RunHead


class FailedRow(NamedTuple):
    """A row of the claim, as the job's death found it."""

    n: int
    body_id: bytes
    bits: bytes
    items: int
    size: int
    flow: str
    action: str
    write: bytes | None
    attempt: int
    due_ms: int
    errors: bytes


class Spent(NamedTuple):
    """A row whose items are given up, and what they remember."""

    row: FailedRow
    errors: tuple[ItemError, ...]

    def letters(self, head: RunHead, data: bytes) -> list[NewRow]:
        """One for each of its items; BadRow if they are not its body's."""
        row = self.row
        bits = unpack_bits(row.bits)
        if not 0 < bits < 1 << head.count:
            raise BadRow("its items are not its body's")
        same = (row.attempt + 1, row.due_ms, self.errors)
        return [
            NewRow(new_run_id(), head, data, 1 << index, *same, is_dead=True)
            for index in indexes(bits)
        ]


class Sorted(NamedTuple):
    again: Sequence[tuple[int, str]]
    """Rows that are tried again, each with what it remembers from now on."""
    spent: Sequence[Spent]
    bad: Sequence[BadClaimed]


def sort_failed(rows: Iterable[FailedRow], failed: FailedJob) -> Sorted:
    again: list[tuple[int, str]] = []
    spent: list[Spent] = []
    bad: list[BadClaimed] = []
    # Most rows have had the same life so far.
    known: dict[tuple[int, bytes], tuple[tuple[ItemError, ...], str]] = {}
    for row in rows:
        attempt = row.attempt + 1
        try:
            if (attempt, row.errors) not in known:
                errors = remember(read_errors(row.errors), failed.error_of(attempt))
                known[attempt, row.errors] = errors, json.dumps(error_rows(errors))
        except BadRow as error:
            bad.append(bad_claimed(row, error))
            continue
        errors, text = known[attempt, row.errors]
        if attempt > failed.retries_max:
            spent.append(Spent(row, errors))
        else:
            again.append((row.n, text))
    return Sorted(again, spent, bad)


def bad_claimed(row: FailedRow, error: BadRow) -> BadClaimed:
    return BadClaimed(row.n, row.body_id, row.items, row.size, str(error))


class Letters:
    """What is told of items that were given up."""

    def __init__(self) -> None:
        self.dead = 0
        self._ids: list[str] = []

    def add(self, letters: Sequence[NewRow], runs: Unpacked) -> None:
        self.dead += len(letters)
        for new in letters[: IDS_TOLD_MAX - len(self._ids)]:
            self._ids.append(item_id_of(new.head, new.data, new.bits.bit_length() - 1, runs))

    def end(self, failed: FailedJob) -> JobEnd:
        error = failed.error_of(0).text if self.dead else ""
        return JobEnd(failed.job, error, self.dead, tuple(self._ids))


def fail_claimed(db: sqlite3.Connection, consumer: int, failed: FailedJob) -> JobEnd:
    queue = failed.job.queue
    found = db.execute(SELECT_FAILED, (consumer,)).fetchall()
    again, spent, bad = sort_failed(map(FailedRow._make, found), failed)
    db.executemany(FAIL_ROW, [(text, n) for n, text in again])
    books, told, bad = Books(), Letters(), list(bad)
    runs, last_body = Unpacked(), b""
    for each in spent:
        row = each.row
        if row.body_id != last_body:
            # Rows that share a body are neighbours, and no more than one is kept in memory.
            runs, last_body = Unpacked(), row.body_id
        try:
            letters = each.letters(*read_body(db, row.body_id))
        except BadRow as error:
            bad.append(bad_claimed(row, error))
            continue
        delete_row(db, row.n)
        place = Place(queue, row.flow, row.action)
        books.leave(place, row.items, rows_gone=1)
        for new in letters:
            insert_row(db, new, FAILED, failed.now_ms, runs)
        books.enter(place, row.items, row.write, is_dead=True)
        told.add(letters, runs)
    books.write(db)
    if bad:
        drive(set_aside(SqliteConnection(db, Now(failed.now_ms, 0), makes_room=False), queue, bad))
    return told.end(failed)


def letter_error(history: Any) -> ItemError | None:
    """The last error of a dead job's letter; None if it says nothing that can be read."""
    try:
        errors = read_errors(history)
    except BadRow:
        return None
    return errors[-1] if errors else None


# Bytes that are no UTF-8 would fail in the driver.
_FAILED: Final = guard(ColdMove.FAIL_JOB, ColdMove.UNCLAIM)
SELECT_FAILED: Final = f"""SELECT n, body_id, bits, count, size, flow, action, write_id, attempt,
    due_ms, CAST(error_history AS BLOB)
    FROM runs INDEXED BY runs_claimed WHERE {_FAILED} AND consumer = ? ORDER BY place"""
FAIL_ROW: Final = f"""UPDATE runs SET attempt = attempt + 1, error_history = ?
    WHERE n = ? AND {_FAILED}"""
