"""Reading rows of the cold tier without changing anything: of a claim, or of all that waits.

A row is given with its body as it is stored, its checksum verified. Rows of a claim come by their
numbers, from an index. A look at what waits goes through the table in the order in which rows were
stored, a bounded stretch at a time, past rows of other queues; its chain of pages ends with what
was there when it began. What cannot be read is left out of a look: whoever acquires or claims it
says so, and sets it aside.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from actors.model.cursors import read_pair
from actors.ports.tiers import Look, SeenRow, SeenRows
from daemon.stores.cold.claims import BadClaimed, open_consumer
from daemon.stores.cold.connection import drive
from daemon.stores.cold.rows import BadRow, unpack_bits
from daemon.stores.cold.statement import Now
from daemon.stores.sqlite.rows import read_body
from daemon.stores.sqlite.steps import SqliteConnection

SCANNED_MAX: Final = 5000


class Fetch(NamedTuple):
    seen: SeenRows
    bad: list[BadClaimed]
    """Rows that must be set aside before the rest can be given."""


class Span(NamedTuple):
    """Rows by their numbers in the table: after the one, up to the other."""

    after: int
    until: int


class Page:
    """The rows of one answer, and the room that is left in it."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self.rows: list[SeenRow] = []
        self._rows_max = rows_max
        self._room = bytes_max
        self._body: tuple[bytes, bytes, int] | None = None

    def fits(self, size: int) -> bool:
        return not self.rows or (len(self.rows) < self._rows_max and size <= self._room)

    def add(self, db: sqlite3.Connection, number: int, row: Sequence[Any]) -> None:
        """BadRow if it cannot be read. `row`: body, bits, attempt and due time."""
        body_id, packed, attempt, due_ms = row
        data, count = self._read(db, body_id)
        bits = unpack_bits(packed) if isinstance(packed, bytes) else 0
        if not 0 < bits < 1 << count:
            raise BadRow("its items are not its body's")
        is_whole = bits == (1 << count) - 1
        self.rows.append(SeenRow(number, due_ms, attempt, 0 if is_whole else bits, data))
        self._room -= len(data)

    def _read(self, db: sqlite3.Connection, body_id: bytes) -> tuple[bytes, int]:
        """Neighbours often share a body."""
        if self._body is None or self._body[0] != body_id:
            head, data = read_body(db, body_id)
            self._body = (body_id, data, head.count)
        return self._body[1:]


def fetch(
    db: sqlite3.Connection,
    queue: str,
    consumer: str,
    claim: int,
    first: int,
    rows_max: int,
    bytes_max: int,
) -> Fetch:
    con = SqliteConnection(db, Now(0, 0), makes_room=False)
    n = drive(open_consumer(con, queue, consumer, claim))
    page = Page(rows_max, bytes_max)
    bad: list[BadClaimed] = []
    for row_n, place, count, size, *row in db.execute(SELECT_CLAIMED, (n, first, rows_max + 1)):
        if not page.fits(size):
            return Fetch(SeenRows(page.rows, place), bad)
        try:
            page.add(db, place, row)
        except BadRow as error:
            bad.append(BadClaimed(row_n, row[0], count, size, str(error)))
    return Fetch(SeenRows(page.rows, None), bad)


def begin(db: sqlite3.Connection, cursor: str) -> Span:
    """Where a look begins; ValueError if the cursor is none."""
    if not cursor:
        return Span(0, db.execute("SELECT coalesce(max(n), 0) FROM runs").fetchone()[0])
    return Span(*read_pair(cursor))


def look(db: sqlite3.Connection, queue: str, span: Span, page: Page) -> tuple[Span, bool]:
    """One stretch. Where the next one begins, and whether the page is complete."""
    at, scanned = span.after, 0
    for n, is_wanted, size, *row in db.execute(SELECT_STRETCH, (queue, *span, SCANNED_MAX)):
        if is_wanted:
            if not page.fits(size):
                return Span(at, span.until), True
            with suppress(BadRow):
                page.add(db, 0, row)
        at = n
        scanned += 1
    return Span(at, span.until) if scanned == SCANNED_MAX else END, scanned < SCANNED_MAX


def as_look(page: Page, rest: Span) -> Look:
    return Look(page.rows, None if rest is END else f"{rest.after}-{rest.until}")


END: Final = Span(0, 0)
"""There is nothing more."""
SELECT_CLAIMED: Final = """SELECT n, place, count, size, body_id, bits, attempt, due_ms
    FROM runs INDEXED BY runs_claimed
    WHERE state = 'CLAIMED' AND consumer = ? AND place >= ? ORDER BY place LIMIT ?"""
SELECT_STRETCH: Final = """SELECT n, queue = ? AND state IN ('COLD_QUEUED', 'CLAIMED'), size,
    body_id, bits, attempt, due_ms FROM runs WHERE n > ? AND n <= ? ORDER BY n LIMIT ?"""
