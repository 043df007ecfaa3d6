"""Reading rows of the cold store without changing anything: of a claim, or of all that waits.

A row is given with its body as it is stored, its checksum verified. Rows of a claim come by their
numbers, from an index. A look at what waits goes through the table in the order in which rows were
stored, a bounded stretch at a time, past rows of other queues; its chain of pages ends with what
was there when it began. A look leaves out what cannot be read: the step that acquires or claims
such a row says so, and sets it aside.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from actors.model.cursors import read_pair
from actors.ports.tiers import Look, SeenRow, SeenRows
from daemon.stores.cold.claims import BadClaimed, open_consumer, set_aside
from daemon.stores.cold.connection import Connection, Database
from daemon.stores.cold.items import END_OF_ROWS
from daemon.stores.cold.rows import BadRow, Bodies, fitting, own_bits
from daemon.stores.cold.statement import Statement

SCANNED_MAX: Final = 5000


class Wish(NamedTuple):
    """Which rows of a claim."""

    queue: str
    consumer: str
    claim: int
    first: int
    rows_max: int
    bytes_max: int


class _Fetched(NamedTuple):
    seen: SeenRows
    bad: list[BadClaimed]
    """Rows that must be set aside before the rest can be given."""


class _Span(NamedTuple):
    """Rows by their numbers in the table: after the one, up to the other."""

    after: int
    until: int


class _Stretch(NamedTuple):
    rows: list[SeenRow]
    rest: _Span | None
    """Where the next one begins; None: there is nothing more."""
    is_last: bool
    """The next row does not fit into the page."""


async def fetch(db: Database, wish: Wish) -> SeenRows:
    """Sets rows aside that cannot be read."""
    while True:
        found = await db.read(lambda con: _fetch(con, wish))
        if not found.bad:
            return found.seen
        await db.write(partial(set_aside, queue=wish.queue, bad=found.bad))


async def peek(db: Database, queue: str, cursor: str, rows_max: int, bytes_max: int) -> Look:
    """ValueError if the cursor is none."""
    span = _Span(*read_pair(cursor)) if cursor else _Span(0, await db.read(_last))
    rows: list[SeenRow] = []
    while True:
        stretch = await db.read(
            partial(
                _look,
                queue=queue,
                span=span,
                rows_max=rows_max - len(rows),
                bytes_max=bytes_max - sum(len(row.data) for row in rows),
                is_begun=bool(rows),
            )
        )
        rows += stretch.rows
        if stretch.rest is None:
            return Look(rows, None)
        span = stretch.rest
        if stretch.is_last:
            return Look(rows, f"{span.after}-{span.until}")


async def _fetch(con: Connection, wish: Wish) -> _Fetched:
    consumer = await open_consumer(con, wish.queue, wish.consumer, wish.claim)
    found = await con.fetch(SELECT_CLAIMED, consumer, wish.first, wish.rows_max + 1)
    taken = fitting(found, wish.rows_max, wish.bytes_max)
    bodies = await con.rows.read_bodies(body_id for _, _, _, _, body_id, *_ in taken)
    rows: list[SeenRow] = []
    bad: list[BadClaimed] = []
    for place, size, n, count, body_id, *columns in taken:
        try:
            rows.append(_seen(place, body_id, columns, bodies))
        except BadRow as error:
            bad.append(BadClaimed(n, body_id, count, size, str(error)))
    next_ = found[len(taken)][0] if len(taken) < len(found) else None
    return _Fetched(SeenRows(rows, next_), bad)


async def _last(con: Connection) -> int:
    found = await con.first(SELECT_LAST)
    assert found is not None
    return int(found[0])


async def _look(
    con: Connection, queue: str, span: _Span, rows_max: int, bytes_max: int, *, is_begun: bool
) -> _Stretch:
    """`is_begun`: the page has rows already, and need not take another."""
    end = await con.first(END_OF_ROWS, span.after, SCANNED_MAX - 1)
    until = span.until if end is None else min(end[0], span.until)
    found = await con.fetch(SELECT_STRETCH, queue, span.after, until, rows_max + 1)
    taken = fitting(found, rows_max, bytes_max, is_begun=is_begun)
    bodies = await con.rows.read_bodies(body_id for _, _, body_id, *_ in taken)
    rows: list[SeenRow] = []
    for _, _, body_id, *columns in taken:
        with suppress(BadRow):
            rows.append(_seen(0, body_id, columns, bodies))
    if len(taken) < len(found):
        return _Stretch(rows, _Span(found[len(taken)][0] - 1, span.until), is_last=True)
    rest = _Span(until, span.until) if until < span.until else None
    return _Stretch(rows, rest, is_last=False)


def _seen(number: int, body_id: bytes, columns: Sequence[Any], bodies: Bodies) -> SeenRow:
    """BadRow if it cannot be read."""
    packed, attempt, due_ms = columns
    head, data = bodies.get(body_id)
    bits = own_bits(packed, head)
    is_whole = bits == (1 << head.count) - 1
    return SeenRow(number, due_ms, attempt, 0 if is_whole else bits, data)


SELECT_LAST: Final = Statement("SELECT coalesce(max(n), 0) FROM runs")
SELECT_CLAIMED: Final = Statement("""SELECT place, size, n, count, body_id, bits, attempt, due_ms
    FROM runs INDEXED BY runs_claimed
    WHERE state = 'CLAIMED' AND consumer = $1 AND place >= $2::bigint
    ORDER BY place LIMIT $3""")
SELECT_STRETCH: Final = Statement("""SELECT n, size, body_id, bits, attempt, due_ms FROM runs
    WHERE n > $2 AND n <= $3 AND queue = $1 AND state || '' IN ('COLD_QUEUED', 'CLAIMED')
    ORDER BY n LIMIT $4""")
"""The state in other words than the index `runs_oldest` has: through that index all rows of the
queue would be read and sorted for each page."""
