"""History in SQLite: rows of items that are finished, until they are forgotten by age.

Rows that end here are noted in the transaction that ends them; those of the journal are brought by
`note`. A row of history needs its body like any other row, so that a body goes with the last of
both (`drop_body`). Where a queue keeps all, the rows of a run share its body. Where it keeps
failures, a few items would keep a large run on disk for as long as they are remembered: they are
cut out into a run of their own, in which they keep their ids.

On a full disk a step is tried again with the ballast's room, and then without history (`tries`):
what is deleted must make room.

1,000 rows of 1,000 items, bodies of 135 KB, are noted in 0.7 to 1 s, 30 in a transaction; one item
cut out of each, in 0.15 to 0.2; 20,000 rows of one item in 0.4 s, 256 in a transaction. A step that
forgets 200 rows takes 10 to 40 ms with bodies of 135 KB, and usually 1 to 5 with small ones.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

from actors.model.cursors import read_pair
from actors.model.finished import FinishedRow, Keep, Keeps, Past, keep_nothing
from actors.model.slices import HeldBy, error_rows, indexes, item_bits
from daemon.stores.sqlite.rows import (
    BadRow,
    drop_body,
    insert_body,
    pack_bits,
    read_body,
    read_errors,
    unpack_bits,
)
from forebay.errors import BadRun
from forebay.run import Run, RunHead, read_head, take_items

CUT_BYTES_MIN: Final = 4096
"""A run that is smaller is kept as it is."""
FORGOTTEN_ROWS_MAX: Final = 200
FORGOTTEN_BYTES_MAX: Final = 32 * 1024 * 1024
"""What one step forgets, since others wait for it."""
PAGE_ERROR_BYTES_MAX: Final = 512 * 1024
"""Errors and results of one page, as stored: half of what an answer may say about its rows."""
ROW_BYTES: Final = 32
"""What the names and numbers of a row's holder take beside them."""

_NEWEST: Final = (2**63 - 1, 2**63 - 1)


class Cutter:
    """Takes items out of runs. The last run stays unpacked: its neighbours often want it too."""

    def __init__(self) -> None:
        self._last: Run | None = None

    def part(self, head: RunHead, data: bytes, bits: int) -> tuple[RunHead, bytes, int]:
        """These items as a run of their own, where that saves at least half of the items."""
        if len(data) < CUT_BYTES_MIN or 2 * bits.bit_count() > head.count:
            return head, data, bits
        if self._last is None or self._last.head.run_id != head.run_id:
            self._last = Run(head, data)
        try:
            part = take_items(self._last, list(indexes(bits)))
        except (BadRun, IndexError):
            # It cannot be unpacked, so that it is kept as it is.
            return head, data, bits
        head = read_head(part)
        return head, part, item_bits(0, head.count)


class Ended(NamedTuple):
    """Items of a row of `runs` that are finished."""

    n: int
    body_id: bytes
    bits: int
    size: int
    outcome: Literal["delivered", "deleted"]
    holder: HeldBy | None = None
    result: str = ""


def tries(keeps: Keeps) -> Iterator[Keeps]:
    """What is kept at a step's first try, and at further ones."""
    yield keeps
    while True:
        yield keep_nothing


def note(db: sqlite3.Connection, rows: Sequence[FinishedRow], keeps: Keeps) -> None:
    """Rows that were finished elsewhere."""
    cutter = Cutter()
    for row in rows:
        head, data, bits = row.head, row.data, row.bits
        if keeps(head.queue) != "all":
            head, data, bits = cutter.part(head, data, bits)
        insert_body(db, head.run_id, data)
        db.execute(
            _NOTE,
            (
                head.run_id,
                head.queue,
                head.flow,
                head.action,
                head.priority,
                bits.bit_count(),
                len(data),
                row.attempt,
                row.outcome,
                head.enqueued_ms,
                row.finished_ms,
                pack_bits(bits),
                json.dumps(error_rows(row.errors)),
                *(row.holder or (None, None)),
                row.result or None,
                row.job or None,
            ),
        )


def note_ended(db: sqlite3.Connection, ended: Ended, keep: Keep, now: int, cutter: Cutter) -> None:
    """A row of `runs`, or a part of it. Before the row is changed, and its body dropped."""
    body_id, bits, size = ended.body_id, ended.bits, ended.size
    if keep == "failures" and size >= CUT_BYTES_MIN:
        with suppress(BadRow):
            head, data, bits = cutter.part(*read_body(db, body_id), bits)
            if head.run_id != body_id:
                body_id, size = head.run_id, len(data)
                insert_body(db, body_id, data)
    db.execute(
        NOTE_ENDED,
        {
            "n": ended.n,
            "body": body_id,
            "count": bits.bit_count(),
            "size": size,
            "tried": int(ended.outcome == "delivered"),
            "outcome": ended.outcome,
            "now": now,
            "bits": pack_bits(bits),
            "by": ended.holder and ended.holder.by,
            "since": ended.holder and ended.holder.since_ms,
            "result": ended.result or None,
        },
    )


def note_claimed(db: sqlite3.Connection, consumer: int, keep: Keep, now: int) -> None:
    """The rows of a claim that is acknowledged, however many, in one statement."""
    if keep != "none":
        db.execute(NOTE_CLAIMED if keep == "all" else NOTE_CLAIMED_FAILURES, (consumer, now))


def look(db: sqlite3.Connection, queue: str, cursor: str, rows_max: int, bytes_max: int) -> Past:
    """ValueError if the cursor is none."""
    at = read_pair(cursor) if cursor else _NEWEST
    page = _Page(rows_max, bytes_max)
    for n, finished_at, size, *row in db.execute(SELECT_PAST, (queue, *at, rows_max + 1)):
        if not page.takes(size, said_bytes(row[-1], row[-5], row[-3])):
            return Past(page.rows, "{}-{}".format(*at))
        with suppress(BadRow):
            page.rows.append(page.read(db, finished_at, row))
        at = (finished_at, n)
    return Past(page.rows, None)


def queues(db: sqlite3.Connection) -> list[str]:
    return [queue for (queue,) in db.execute(SELECT_QUEUES)]


def forget(db: sqlite3.Connection, queue: str, before_ms: int) -> int:
    """One step; how many rows are gone."""
    old: list[tuple[int]] = []
    bodies: set[bytes] = set()
    size = 0
    for n, body_id, row_size in db.execute(SELECT_OLD, (queue, before_ms, FORGOTTEN_ROWS_MAX)):
        if old and size + row_size > FORGOTTEN_BYTES_MAX:
            break
        old.append((n,))
        bodies.add(body_id)
        size += row_size
    db.executemany(FORGET, old)
    for body_id in bodies:
        drop_body(db, body_id)
    return len(old)


class _Page:
    """The rows of one answer, and the room that is left in it."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self.rows: list[FinishedRow] = []
        self._left = rows_max
        self._room = bytes_max
        self._error_room = PAGE_ERROR_BYTES_MAX
        self._is_empty = True
        self._body: tuple[RunHead, bytes] | None = None

    def takes(self, size: int, error_bytes: int) -> bool:
        fits = self._left and size <= self._room and error_bytes <= self._error_room
        if not (fits or self._is_empty):
            return False
        self._is_empty = False
        self._left -= 1
        self._room -= size
        self._error_room -= error_bytes
        return True

    def read(self, db: sqlite3.Connection, finished_at: int, row: Sequence[Any]) -> FinishedRow:
        """BadRow if it cannot be read: it is left out."""
        body_id, packed, attempt, outcome, by, since_ms, result, job, errors = row
        if self._body is None or self._body[0].run_id != body_id:
            self._body = read_body(db, body_id)
        head, data = self._body
        bits = unpack_bits(packed) if isinstance(packed, bytes) else 0
        if not 0 < bits < 1 << head.count:
            raise BadRow("its items are not its body's")
        ending = (attempt, outcome, finished_at, read_errors(errors))
        said = (holder_of(by, since_ms), result or "", job or "")
        return FinishedRow(head, data, bits, *ending, *said)


def said_bytes(errors: bytes | str, by: str | None, result: str | None) -> int:
    """What a row takes in an answer beside its run, about."""
    return len(errors) + ROW_BYTES + len((by or "").encode()) + len((result or "").encode())


def holder_of(by: str | None, since_ms: int | None) -> HeldBy | None:
    """Who is noted in a row."""
    return None if by is None else HeldBy(by, since_ms or 0)


_COLUMNS: Final = """body_id, queue, flow, action, priority, count, size, attempt, outcome,
    created_at, finished_at, bits, error_history, locked_by, locked_at, result,
    job_id"""
_NOTE: Final = f"INSERT INTO history ({_COLUMNS}) VALUES ({', '.join('?' * 17)})"
NOTE_ENDED: Final = f"""INSERT INTO history ({_COLUMNS})
    SELECT :body, queue, flow, action, priority, :count, :size, attempt + :tried, :outcome,
    created_at, :now, :bits, error_history, :by, :since, :result, job_id
    FROM runs WHERE n = :n"""
NOTE_CLAIMED: Final = f"""INSERT INTO history ({_COLUMNS})
    SELECT body_id, queue, flow, action, priority, count, size, attempt + 1, 'delivered',
    created_at, ?2, bits, error_history, (SELECT name FROM consumers WHERE n = ?1), NULL, NULL,
    job_id FROM runs INDEXED BY runs_claimed
    WHERE state = 'CLAIMED' AND consumer = ?1"""
NOTE_CLAIMED_FAILURES: Final = f"{NOTE_CLAIMED} AND (attempt > 0 OR error_history <> '[]')"
# Bytes that are no UTF-8 would fail in the driver.
SELECT_PAST: Final = """SELECT n, finished_at, size, body_id, bits, attempt, outcome, locked_by,
    locked_at, result, job_id, CAST(error_history AS BLOB) FROM history INDEXED BY history_queue
    WHERE queue = ? AND (finished_at, n) < (?, ?) ORDER BY finished_at DESC, n DESC LIMIT ?"""
# From name to name, past all rows between them.
SELECT_QUEUES: Final = """WITH RECURSIVE names(name) AS (
        SELECT min(queue) FROM history
        UNION ALL
        SELECT (SELECT min(queue) FROM history WHERE queue > name) FROM names
        WHERE name IS NOT NULL
    ) SELECT name FROM names WHERE name IS NOT NULL"""
SELECT_OLD: Final = """SELECT n, body_id, size FROM history INDEXED BY history_queue
    WHERE queue = ? AND finished_at < ? ORDER BY finished_at, n LIMIT ?"""
FORGET: Final = "DELETE FROM history WHERE n = ?"
