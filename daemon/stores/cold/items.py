"""Single items of the cold tier: found by their id, looked at, deleted, changed.

A row is found by the run that its body is, or by the runs that its body lists (`aliases`: a part
of a run is a run of its own, in which the items keep their ids). A scan goes through a table in one
direction, one bounded stretch per transaction. Every change is one transaction, durable on return,
with its books and its history. It locks its rows first: of two daemons that change the same item
one finds it changed.

What it cannot do: find items by id in parts that were stored before there were aliases.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from actors.control.item_find import bit_of
from actors.model.finished import Keeps, keep_nothing
from actors.model.moves import ColdMove, guard
from actors.ports.tiers import ColdPart, ColdScan, ColdSight, NewRow
from actors.ports.trigger_jobs import is_spent
from daemon.stores.cold.books import Books, Place
from daemon.stores.cold.connection import Connection, Database, Row
from daemon.stores.cold.history import Ended, note_ended, read_said
from daemon.stores.cold.keyed import Released
from daemon.stores.cold.keys import follow
from daemon.stores.cold.rows import (
    BadRow,
    Bodies,
    Unpacked,
    fitting,
    own_bits,
    place_of,
    read_errors,
    unpack_bits,
)
from daemon.stores.cold.statement import Statement

SCANNED_MAX: Final = 2000
FOUND_MAX: Final = 20
"""How many rows are shown of one item."""
_PAST_END: Final = 2**63 - 1


class SingleItems:
    def __init__(self, db: Database, keeps: Callable[[], Keeps]) -> None:
        """`keeps`: what history keeps of items that are deleted one by one."""
        self._db = db
        self._keeps = keeps

    async def find(self, run_id: bytes, index: int) -> list[ColdSight]:
        return await self._db.read(lambda con: _find(con, run_id, index))

    async def scan(self, queue: str | None, after: int, rows_max: int, bytes_max: int) -> ColdScan:
        span = _Span(END_OF_ROWS, SELECT_ROWS, after, _PAST_END)
        return await self._db.read(lambda con: _scan(con, span, queue, rows_max, bytes_max))

    async def scan_history(
        self, queue: str | None, after: int, rows_max: int, bytes_max: int
    ) -> ColdScan:
        span = _Span(END_OF_HISTORY, SELECT_HISTORY, after or _PAST_END, 0)
        return await self._db.read(lambda con: _scan(con, span, queue, rows_max, bytes_max))

    async def delete(self, row: bytes, bits: int, lock: bytes | None) -> bool:
        keeps = self._keeps()
        (is_done,) = await self._delete([ColdPart(row, bits, lock)], keeps)
        return is_done

    async def delete_all(self, parts: Sequence[ColdPart]) -> list[bool]:
        return await self._delete(parts, keep_nothing)

    async def _delete(self, parts: Sequence[ColdPart], keeps: Keeps) -> list[bool]:
        """Not repeated when nobody knows whether it was committed: it would answer that nothing
        was there."""
        return await self._db.write(lambda con: _delete(con, parts, keeps), is_repeatable=False)

    async def purge(self, queue: str, rows_max: int) -> int:
        return await self._db.write(lambda con: _purge(con, queue, rows_max), is_repeatable=False)

    async def change(self, row: bytes, bits: int, lock: bytes | None, new: NewRow) -> bool:
        part = ColdPart(row, bits, lock)
        return await self._db.write(lambda con: _change(con, part, new), is_repeatable=False)


# Looking.


@dataclass(frozen=True, slots=True)
class _Span:
    """Where a scan goes on, in which direction, and where the table ends."""

    find_end: Statement
    select: Statement
    after: int
    last: int


async def _scan(
    con: Connection, span: _Span, queue: str | None, rows_max: int, bytes_max: int
) -> ColdScan:
    """One stretch, past rows that are not wanted."""
    end = await con.first(span.find_end, span.after, SCANNED_MAX - 1)
    until = span.last if end is None else end[0]
    found = await con.fetch(span.select, span.after, until, queue, rows_max + 1)
    taken = fitting(found, rows_max, bytes_max)
    bodies = await con.rows.read_bodies(body_id for _, _, body_id, *_ in taken)
    rows: list[ColdSight] = []
    for n, _, *columns in taken:
        # The step that acquires an unreadable row sets it aside.
        with suppress(BadRow):
            rows.append(replace(_sight(columns, bodies), place=n))
    if len(taken) < len(found):
        return ColdScan(rows, taken[-1][0])
    return ColdScan(rows, None if end is None else until)


async def _find(con: Connection, run_id: bytes, index: int) -> list[ColdSight]:
    ids = {run_id, *(body_id for (body_id,) in await con.fetch(SELECT_ALIASES, run_id))}
    bodies = await con.rows.read_bodies(ids)
    bits: dict[bytes, int] = {}
    for body_id in ids:
        with suppress(BadRow):
            if bit := bit_of(*bodies.get(body_id), run_id, index):
                bits[body_id] = bit
    found: list[ColdSight] = []
    for statement in (SELECT_BY_BODY, SELECT_PAST_BY_BODY):
        for body_id, *columns in await con.fetch(statement, sorted(bits)):
            with suppress(BadRow):
                sight = _sight([body_id, *columns], bodies)
                if sight.bits & bits[body_id]:
                    found.append(replace(sight, bits=bits[body_id]))
    found.sort(key=_liveliest)
    return found[:FOUND_MAX]


def _liveliest(sight: ColdSight) -> tuple[bool, bool, int]:
    """The order in which the lives of one item are told: what is there, then what was delivered,
    the last one first. A letter that was mended and delivered may have been removed after that."""
    is_past = sight.state in ("delivered", "deleted")
    return is_past, sight.state == "deleted", -(sight.ended_ms or 0)


def _sight(columns: Row, bodies: Bodies) -> ColdSight:
    """BadRow if it cannot be read."""
    (body_id, state, bits, attempt, due_ms, errors, row, lock, ended_ms, *said) = columns
    by, since_ms, result, job, changed_ms, first_due_ms = said
    head, data = bodies.get(body_id)
    return ColdSight(
        state,
        head,
        data,
        own_bits(bits, head),
        attempt,
        due_ms,
        read_errors(errors),
        row or b"",
        lock,
        ended_ms,
        0,
        *read_said(by, since_ms, result, job),
        is_spent(state, job),
        changed_ms or 0,
        first_due_ms,
    )


# Changing.


@dataclass(slots=True)
class _Held:
    """A row that is locked, as the step so far has left it."""

    n: int
    body_id: bytes
    bits: int
    place: Place
    write: bytes | None
    size: int
    lock: bytes | None = None

    def take(self, part: ColdPart) -> bool:
        """False: it is leased under another lock, or lacks some of the items."""
        is_free = self.lock is None or self.lock == part.lock
        if not is_free or not part.bits or part.bits & ~self.bits:
            return False
        self.bits &= ~part.bits
        return True


_Gone = tuple[_Held, int]
"""A row, and items that have left it."""


async def _lock(con: Connection, rows: Iterable[bytes]) -> dict[bytes, _Held]:
    # In one order: two that delete the same rows would wait for each other.
    return {
        row: _Held(n, body_id, unpack_bits(bits), Place(*place), write, size, lock)
        for row, n, body_id, bits, write, size, lock, *place in await con.fetch(
            SELECT_HELD, sorted(set(rows))
        )
    }


async def _delete(con: Connection, parts: Sequence[ColdPart], keeps: Keeps) -> list[bool]:
    rows = await _lock(con, (part.row for part in parts))
    gone: list[_Gone] = []
    answers = []
    for part in parts:
        row = rows.get(part.row)
        answers.append(row is not None and row.take(part))
        if row is not None and answers[-1]:
            gone.append((row, part.bits))
    await _end(con, gone, keeps)
    return answers


async def _purge(con: Connection, queue: str, rows_max: int) -> int:
    gone: list[_Gone] = []
    for statement in (SELECT_DUE, SELECT_LATER):
        for n, body_id, bits, write, size, *place in await con.fetch(
            statement, queue, rows_max - len(gone)
        ):
            gone.append((_Held(n, body_id, 0, Place(*place), write, size), unpack_bits(bits)))
    await _end(con, gone, keep_nothing)
    return sum(bits.bit_count() for _, bits in gone)


async def _end(con: Connection, gone: Sequence[_Gone], keeps: Keeps) -> None:
    """These items are deleted."""
    if not gone:
        return
    await con.rows.lock_bodies(row.body_id for row, _ in gone)
    await note_ended(
        con,
        [
            Ended(row.n, row.body_id, bits, row.size, "deleted", keeps(row.place.queue))
            for row, bits in gone
        ],
    )
    books = Books()
    await _leave(con, gone, books)
    await con.keys.let_go([Released(row.body_id, bits) for row, bits in gone])
    for row, bits in gone:
        books.delete(row.place.queue, bits.bit_count(), row.write)
    await con.rows.drop_bodies(row.body_id for row, _ in gone)
    await con.record(books)


async def _change(con: Connection, part: ColdPart, new: NewRow) -> bool:
    row = (await _lock(con, [part.row])).get(part.row)
    if row is None or not row.take(part):
        return False
    queue, items = row.place.queue, part.bits.bit_count()
    if new.head.queue != queue:
        raise ValueError(f"an item of {queue} moves to {new.head.queue}")
    await con.rows.lock_bodies([row.body_id])
    books, runs = Books(), Unpacked()
    await _leave(con, [(row, part.bits)], books)
    if not await con.rows.insert([new], runs):
        raise ValueError(f"there is a row {new.row.hex()} already")
    books.enter(place_of(new.head), items, runs.write(new.head), is_dead=new.is_dead)
    await follow(con, [(runs.run(new.head, new.data), new.bits)])
    await con.rows.drop_bodies([row.body_id])
    await con.record(books)
    con.wake(queue)
    return True


async def _leave(con: Connection, gone: Sequence[_Gone], books: Books) -> None:
    """The rows shrink to what is left of them, or go."""
    rests = {row.n: row.bits for row, _ in gone}
    await con.rows.shrink({n: bits for n, bits in rests.items() if bits})
    await con.rows.delete([n for n, bits in rests.items() if not bits])
    for row, bits in gone:
        # A row that several parts have emptied is counted once.
        is_last = not row.bits and rests.pop(row.n, None) is not None
        books.leave(row.place, bits.bit_count(), rows_gone=int(is_last))


_RUN_COLUMNS: Final = """body_id, state, bits, attempt, due_ms, :raw(error_history), id,
    lock_uuid, died_at,
    CASE WHEN state = 'CLAIMED' THEN
        (SELECT name FROM consumers WHERE consumers.n = runs.consumer) END,
    NULL::bigint, NULL, job_id, changed_at, scheduled_at_initially"""
_PAST_COLUMNS: Final = """body_id, outcome, bits, attempt, 0::bigint, :raw(error_history),
    NULL::bytea, NULL::bytea, finished_at, locked_by, locked_at, result, job_id, NULL::bigint,
    0::bigint"""
SELECT_ALIASES: Final = Statement("SELECT body_id FROM aliases WHERE run_id = $1")
SELECT_BY_BODY: Final = Statement(f"""SELECT {_RUN_COLUMNS} FROM runs INDEXED BY runs_body
    WHERE body_id = ANY ($1)
        AND state IN ('COLD_QUEUED', 'CLAIMED', 'FAILED')""")
SELECT_PAST_BY_BODY: Final = Statement(f"""SELECT {_PAST_COLUMNS}
    FROM history INDEXED BY history_body WHERE body_id = ANY ($1)""")
END_OF_ROWS: Final = Statement("SELECT n FROM runs WHERE n > $1 ORDER BY n LIMIT 1 OFFSET $2")
SELECT_ROWS: Final = Statement(f"""SELECT n, size, {_RUN_COLUMNS} FROM runs
    WHERE n > $1 AND n <= $2 AND ($3::text IS NULL OR queue = $3)
        AND state IN ('COLD_QUEUED', 'CLAIMED')
    ORDER BY n LIMIT $4""")
END_OF_HISTORY: Final = Statement("""SELECT n FROM history
    WHERE n < $1 ORDER BY n DESC LIMIT 1 OFFSET $2""")
SELECT_HISTORY: Final = Statement(f"""SELECT n, size, {_PAST_COLUMNS} FROM history
    WHERE n < $1 AND n >= $2 AND ($3::text IS NULL OR queue = $3)
    ORDER BY n DESC LIMIT $4""")
_WAITING: Final = guard(ColdMove.DELETE, ColdMove.CHANGE, ColdMove.GIVE_UP)
SELECT_HELD: Final = Statement(f"""SELECT id, n, body_id, bits, write_id, size, lock_uuid, queue,
    flow, action FROM runs WHERE id = ANY ($1) AND {_WAITING} ORDER BY id FOR UPDATE""")
_UNHELD: Final = f"""SELECT n, body_id, bits, write_id, size, queue, flow, action
    FROM runs INDEXED BY {{}} WHERE queue = $1 AND {_WAITING} AND is_due = {{}}
    AND lock_uuid IS NULL LIMIT $2 FOR UPDATE SKIP LOCKED"""
SELECT_DUE: Final = Statement(_UNHELD.format("runs_due", "TRUE"))
SELECT_LATER: Final = Statement(_UNHELD.format("runs_later", "FALSE"))
