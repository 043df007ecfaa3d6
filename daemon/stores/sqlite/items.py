"""Single items of the cold tier in SQLite: found by their id, looked at, deleted, changed.

A row is found by the run that its body is, or by the runs that its body lists (`aliases`: a part
of a run is a run of its own, in which the items keep their ids). Rows that share a body are as
many as a run has items, at most. A scan goes through a table in one direction, a bounded stretch
a transaction. Every change is one transaction, durable on return, with its books and its history.

What it can't do: find items by id in parts that were stored before there were aliases.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from actors.control.item_find import bit_of
from actors.model.clock import Clock
from actors.model.finished import Keeps, keep_nothing
from actors.model.moves import ColdMove, guard
from actors.model.slices import lowest_bit
from actors.ports.tiers import ColdPart, ColdScan, ColdSight, NewRow
from actors.ports.trigger_jobs import is_spent
from daemon.stores.cold.books import Place
from daemon.stores.cold.history import Cutter, holder_of
from daemon.stores.cold.rows import (
    FAILED,
    QUEUED,
    BadRow,
    Unpacked,
    pack_bits,
    place_of,
    read_errors,
    unpack_bits,
)
from daemon.stores.sqlite.books import Books
from daemon.stores.sqlite.connection import Database
from daemon.stores.sqlite.history import Ended, note_ended, tries
from daemon.stores.sqlite.keys import follow, let_go
from daemon.stores.sqlite.rows import delete_row, drop_body, insert_row, read_body

SCANNED_MAX: Final = 2000
FOUND_MAX: Final = 20
"""So many rows of history are shown of one item."""
_PAST_END: Final = 2**63 - 1


class _Row(NamedTuple):
    body_id: bytes
    state: Any
    bits: Any
    attempt: int
    due_ms: int
    errors: bytes
    row: bytes
    lock: bytes | None
    ended_ms: int | None
    job: str | None
    changed_ms: int | None
    first_due_ms: int
    locked_by: str | None = None
    locked_ms: int | None = None
    result: str | None = None


class SqliteItems:
    """Made by SqliteCold, whose connection it shares."""

    def __init__(self, db: Database, now_ms: Clock) -> None:
        self._db = db
        self._now_ms = now_ms
        self.keeps: Keeps = keep_nothing

    async def find(self, run_id: bytes, index: int) -> list[ColdSight]:
        return await self._db.read(partial(_find, run_id=run_id, index=index))

    async def scan(self, queue: str | None, after: int, rows_max: int, bytes_max: int) -> ColdScan:
        page = _Page(rows_max, bytes_max)
        return await self._scan(SELECT_ROWS, queue, after, page)

    async def scan_history(
        self, queue: str | None, after: int, rows_max: int, bytes_max: int
    ) -> ColdScan:
        page = _Page(rows_max, bytes_max)
        return await self._scan(SELECT_HISTORY, queue, after or _PAST_END, page)

    async def _scan(self, sql: str, queue: str | None, after: int, page: "_Page") -> ColdScan:
        """One stretch: whoever asks goes on as long as it likes."""
        rest = await self._db.read(
            lambda db: page.fill(db, db.execute(sql, (queue, after, SCANNED_MAX)), SCANNED_MAX)
        )
        return ColdScan(page.rows, rest)

    async def delete(self, row: bytes, bits: int, lock: bytes | None) -> bool:
        return await self._void(row, bits, lock, None)

    async def delete_all(self, parts: Sequence[ColdPart]) -> list[bool]:
        now = self._now_ms()
        return await self._db.write(
            lambda db: [_void(db, *part, None, now, keep_nothing) for part in parts]
        )

    async def purge(self, queue: str, rows_max: int) -> int:
        now = self._now_ms()
        return await self._db.write(lambda db: _purge(db, queue, rows_max, now))

    async def change(self, row: bytes, bits: int, lock: bytes | None, new: NewRow) -> bool:
        return await self._void(row, bits, lock, new)

    async def _void(self, row: bytes, bits: int, lock: bytes | None, new: NewRow | None) -> bool:
        now, kept = self._now_ms(), tries(self.keeps)
        return await self._db.write(lambda db: _void(db, row, bits, lock, new, now, next(kept)))


class _Page:
    """The rows of one scan, and the room that is left in it."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self.rows: list[ColdSight] = []
        self._rows_max = rows_max
        self._room = bytes_max

    def fill(
        self, db: sqlite3.Connection, found: Iterator[Sequence[Any]], scanned_max: int
    ) -> int | None:
        """Where the scan goes on; None: nowhere."""
        at = scanned = 0
        for n, is_wanted, size, *row in found:
            scanned += 1
            if is_wanted:
                if self.rows and (len(self.rows) == self._rows_max or size > self._room):
                    return at
                self._room -= size
                # What cannot be read is set aside by whoever acquires it.
                with suppress(BadRow):
                    self.rows.append(_sight(db, _Row(*row), place=n))
            at = n
        return at if scanned == scanned_max else None


def _sight(
    db: sqlite3.Connection, row: _Row, place: int = 0, bodies: dict[bytes, Any] | None = None
) -> ColdSight:
    """BadRow if it cannot be read."""
    head, data = (bodies or {}).get(row.body_id) or read_body(db, row.body_id)
    bits = unpack_bits(row.bits) if isinstance(row.bits, bytes) else 0
    if not 0 < bits < 1 << head.count:
        raise BadRow("its items are not its body's")
    errors = read_errors(row.errors)
    what = (row.state, head, data, bits, row.attempt, row.due_ms, errors)
    holder = holder_of(row.locked_by, row.locked_ms)
    said = (
        holder,
        row.result or "",
        row.job or "",
        is_spent(row.state, row.job),
        row.changed_ms or 0,
        row.first_due_ms,
    )
    return ColdSight(*what, row.row, row.lock, row.ended_ms, place, *said)


def _find(db: sqlite3.Connection, run_id: bytes, index: int) -> list[ColdSight]:
    found: list[ColdSight] = []
    bodies = [body for (body,) in db.execute(SELECT_ALIASES, (run_id,))]
    for body_id in dict.fromkeys((run_id, *bodies)):
        try:
            head, data = read_body(db, body_id)
        except BadRow:
            continue
        bit = bit_of(head, data, run_id, index)
        if not bit:
            continue
        known = {body_id: (head, data)}
        for sql in (SELECT_BY_BODY, SELECT_PAST_BY_BODY):
            for row in (_Row(*columns) for columns in db.execute(sql, (body_id,))):
                if isinstance(row.bits, bytes) and unpack_bits(row.bits) & bit:
                    with suppress(BadRow):
                        found.append(replace(_sight(db, row, bodies=known), bits=bit))
    found.sort(key=liveliest)
    return found[:FOUND_MAX]


def liveliest(sight: ColdSight) -> tuple[bool, bool, int]:
    """The order in which the lives of one item are told: what is there, then what was delivered,
    the last one first. A letter that was mended and delivered may have been removed after that."""
    is_past = sight.state in ("delivered", "deleted")
    return is_past, sight.state == "deleted", -(sight.ended_ms or 0)


def _void(
    db: sqlite3.Connection,
    row: bytes,
    bits: int,
    lock: bytes | None,
    new: NewRow | None,
    now: int,
    keeps: Keeps,
) -> bool:
    """Items leave a row: deleted, or as a row of their own."""
    found = db.execute(SELECT_HELD, (row,)).fetchone()
    if found is None:
        return False
    n, body_id, packed, queue, flow, action, write, size, held_by = found
    here = unpack_bits(packed)
    if (held_by is not None and held_by != lock) or not bits or bits & ~here:
        return False
    if new is not None and new.head.queue != queue:
        raise ValueError(f"an item of {queue} moves to {new.head.queue}")
    rest, items, books = here & ~bits, bits.bit_count(), Books()
    keep = keeps(queue)
    if new is None and keep != "none":
        note_ended(db, Ended(n, body_id, bits, size, "deleted"), keep, now, Cutter())
    if rest:
        db.execute(SHRINK, (pack_bits(rest), rest.bit_count(), lowest_bit(rest), n))
    else:
        delete_row(db, n)
    books.leave(Place(queue, flow, action), items, rows_gone=int(not rest))
    if new is None:
        books.delete(queue, items, write)
        let_go(db, body_id, bits, None)
    else:
        runs = Unpacked()
        if not insert_row(db, new, FAILED if new.is_dead else QUEUED, now, runs):
            raise ValueError(f"there is a row {new.row.hex()} already")
        books.enter(place_of(new.head), items, runs.write(new.head), is_dead=new.is_dead)
        follow(db, runs.run(new.head, new.data), new.bits)
    books.write(db)
    if not rest:
        drop_body(db, body_id)
    return True


def _purge(db: sqlite3.Connection, queue: str, rows_max: int, now: int) -> int:
    rows: list[tuple[bytes, bytes]] = []
    for sql in (SELECT_DUE, SELECT_LATER):
        rows += db.execute(sql, (queue, rows_max - len(rows))).fetchall()
    items = 0
    for row, packed in rows:
        bits = unpack_bits(packed)
        if _void(db, row, bits, None, None, now, keep_nothing):
            items += bits.bit_count()
    return items


_RUN_COLUMNS: Final = """body_id, state, bits, attempt, due_ms, CAST(error_history AS BLOB), id,
    lock_uuid, died_at, job_id, changed_at, scheduled_at_initially,
    CASE WHEN state = 'CLAIMED' THEN
        (SELECT name FROM consumers WHERE consumers.n = runs.consumer) END"""
_PAST_COLUMNS: Final = """body_id, outcome, bits, attempt, 0, CAST(error_history AS BLOB), x'',
    NULL, finished_at, job_id, NULL, 0, locked_by, locked_at, result"""
SELECT_ALIASES: Final = "SELECT body_id FROM aliases WHERE run_id = ?"
SELECT_BY_BODY: Final = f"""SELECT {_RUN_COLUMNS} FROM runs INDEXED BY runs_body
    WHERE body_id = ? AND state IN ('COLD_QUEUED', 'CLAIMED', 'FAILED')"""
SELECT_PAST_BY_BODY: Final = f"""SELECT {_PAST_COLUMNS} FROM history INDEXED BY history_body
    WHERE body_id = ?"""
SELECT_ROWS: Final = f"""SELECT n,
    (?1 IS NULL OR queue = ?1) AND state IN ('COLD_QUEUED', 'CLAIMED'), size,
    {_RUN_COLUMNS} FROM runs WHERE n > ?2 ORDER BY n LIMIT ?3"""
SELECT_HISTORY: Final = f"""SELECT n, ?1 IS NULL OR queue = ?1, size, {_PAST_COLUMNS}
    FROM history WHERE n < ?2 ORDER BY n DESC LIMIT ?3"""
_WAITING: Final = guard(ColdMove.DELETE, ColdMove.CHANGE, ColdMove.GIVE_UP)
SELECT_HELD: Final = f"""SELECT n, body_id, bits, queue, flow, action, write_id, size, lock_uuid
    FROM runs WHERE id = ? AND {_WAITING}"""
SELECT_DUE: Final = """SELECT id, bits FROM runs INDEXED BY runs_due
    WHERE queue = ? AND state = 'COLD_QUEUED' AND is_due = 1 LIMIT ?"""
SELECT_LATER: Final = """SELECT id, bits FROM runs INDEXED BY runs_later
    WHERE queue = ? AND state = 'COLD_QUEUED' AND is_due = 0 AND lock_uuid IS NULL LIMIT ?"""
SHRINK: Final = "UPDATE runs SET bits = ?, count = ?, first_item = ? WHERE n = ?"
