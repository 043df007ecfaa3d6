"""History in PostgreSQL: rows of items that are finished, until they are forgotten by age.

What is kept, and what is cut out of large runs, is as in daemon/stores/sqlite/history.py.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

from actors.model.cursors import read_pair
from actors.model.finished import FinishedRow, Keep, Keeps, Past
from actors.model.slices import HeldBy, error_rows
from daemon.stores.postgres.connection import Connection
from daemon.stores.postgres.rows import NOW, drop_bodies, insert_bodies, own_bits, read_bodies
from daemon.stores.postgres.text import from_text, to_text
from daemon.stores.sqlite.history import (
    CUT_BYTES_MIN,
    FORGOTTEN_BYTES_MAX,
    FORGOTTEN_ROWS_MAX,
    PAGE_ERROR_BYTES_MAX,
    Cutter,
    holder_of,
    said_bytes,
)
from daemon.stores.sqlite.rows import BadRow, pack_bits, read_errors

_NEWEST: Final = (2**63 - 1, 2**63 - 1)


class Ended(NamedTuple):
    """Items of a row of `runs` that are finished."""

    n: int
    body_id: bytes
    bits: int
    size: int
    outcome: Literal["delivered", "deleted"]
    keep: Keep
    holder: HeldBy | None = None
    result: str = ""


async def note(con: Connection, rows: Sequence[FinishedRow], keeps: Keeps) -> None:
    """Rows that were finished elsewhere."""
    cutter = Cutter()
    bodies: dict[bytes, bytes] = {}
    values: list[tuple[Any, ...]] = []
    for row in rows:
        head, data, bits = row.head, row.data, row.bits
        if keeps(head.queue) != "all":
            head, data, bits = cutter.part(head, data, bits)
        bodies[head.run_id] = data
        values.append(
            (
                head.run_id,
                head.queue,
                to_text(head.flow),
                to_text(head.action),
                head.priority,
                bits.bit_count(),
                len(data),
                row.attempt,
                row.outcome,
                head.enqueued_ms,
                row.finished_ms,
                pack_bits(bits),
                json.dumps(error_rows(row.errors)),
                *_locked(row.holder),
                to_text(row.result) or None,
                row.job or None,
            )
        )
    if values:
        await insert_bodies(con, bodies)
        await con.execute(NOTE, *(list(column) for column in zip(*values, strict=True)))


async def note_ended(con: Connection, ended: Sequence[Ended], now_ms: int | None) -> None:
    """Rows of `runs`, or parts of them. Before the rows are changed, and their bodies dropped."""
    if not ended:
        return
    parts, cut = await _cut(con, ended)
    if cut:
        await insert_bodies(con, cut)
    await con.execute(
        NOTE_ENDED,
        now_ms,
        [end.n for end in ended],
        [end.outcome for end in ended],
        [body_id for body_id, _, _ in parts],
        [size for _, size, _ in parts],
        [bits.bit_count() for _, _, bits in parts],
        [pack_bits(bits) for _, _, bits in parts],
        *(list(column) for column in zip(*(_locked(end.holder) for end in ended), strict=True)),
        [to_text(end.result) or None for end in ended],
    )


def _locked(holder: HeldBy | None) -> tuple[str | None, int | None]:
    return (None, None) if holder is None else (to_text(holder.by), holder.since_ms)


async def _cut(
    con: Connection, ended: Sequence[Ended]
) -> tuple[list[tuple[bytes, int, int]], dict[bytes, bytes]]:
    """Body, size and bits of each, as it is kept; and the bodies that were made for it."""
    large = [end for end in ended if end.keep == "failures" and end.size >= CUT_BYTES_MIN]
    bodies = await read_bodies(con, (end.body_id for end in large))
    cutter = Cutter()
    parts: list[tuple[bytes, int, int]] = []
    cut: dict[bytes, bytes] = {}
    for end in ended:
        part = (end.body_id, end.size, end.bits)
        if end.keep == "failures" and end.size >= CUT_BYTES_MIN:
            with suppress(BadRow):
                head, data, bits = cutter.part(*bodies.get(end.body_id), end.bits)
                if head.run_id != end.body_id:
                    part, cut[head.run_id] = (head.run_id, len(data), bits), data
        parts.append(part)
    return parts, cut


async def note_claimed(con: Connection, consumer: int, keep: Keep, now_ms: int | None) -> None:
    """The rows of a claim that is acknowledged, however many, in one statement."""
    await con.execute(NOTE_CLAIMED if keep == "all" else NOTE_CLAIMED_FAILURES, now_ms, consumer)


async def look(con: Connection, queue: str, cursor: str, rows_max: int, bytes_max: int) -> Past:
    """ValueError if the cursor is none."""
    at = read_pair(cursor) if cursor else _NEWEST
    found = await con.fetch(SELECT_PAST, queue, *at, rows_max + 1)
    taken = _fitting(found, rows_max, bytes_max)
    bodies = await read_bodies(con, (row["body_id"] for row in taken))
    rows: list[FinishedRow] = []
    for n, finished_at, _, body_id, packed, attempt, outcome, errors, *said in taken:
        with suppress(BadRow):
            head, data = bodies.get(body_id)
            bits, history = own_bits(packed, head), read_errors(errors)
            ending = (attempt, outcome, finished_at, history, *read_said(*said))
            rows.append(FinishedRow(head, data, bits, *ending))
        at = (finished_at, n)
    return Past(rows, None if len(taken) == len(found) else "{}-{}".format(*at))


def read_said(
    by: str | None, since_ms: int | None, result: str | None, job: str | None
) -> tuple[HeldBy | None, str, str]:
    """Who had a row's items, the result, and the job."""
    return holder_of(by and from_text(by), since_ms), from_text(result or ""), job or ""


def _fitting(found: Sequence[Any], rows_max: int, bytes_max: int) -> list[Any]:
    """The first of them, as many as fit into an answer, and one in any case."""
    taken: list[Any] = []
    room, error_room = bytes_max, PAGE_ERROR_BYTES_MAX
    for row in found:
        size = row["size"]
        error_bytes = said_bytes(row["error_history"], row["locked_by"], row["result"])
        if taken and (len(taken) == rows_max or size > room or error_bytes > error_room):
            break
        taken.append(row)
        room -= size
        error_room -= error_bytes
    return taken


async def queues(con: Connection) -> list[str]:
    return [queue for (queue,) in await con.fetch(SELECT_QUEUES)]


async def forget(con: Connection, queue: str, before_ms: int) -> int:
    """One step; how many rows are gone."""
    old: list[int] = []
    bodies: set[bytes] = set()
    size = 0
    for n, body_id, row_size in await con.fetch(SELECT_OLD, queue, before_ms, FORGOTTEN_ROWS_MAX):
        if old and size + row_size > FORGOTTEN_BYTES_MAX:
            break
        old.append(n)
        bodies.add(body_id)
        size += row_size
    if old:
        await con.execute("DELETE FROM history WHERE n = ANY ($1)", old)
        await drop_bodies(con, bodies)
    return len(old)


_COLUMNS: Final = """body_id, queue, flow, action, priority, count, size, attempt, outcome,
    created_at, finished_at, bits, error_history, locked_by, locked_at, result,
    job_id"""
_OF_RUNS: Final = "runs.queue, runs.flow, runs.action, runs.priority"
NOTE: Final = f"""INSERT INTO history ({_COLUMNS}) SELECT * FROM unnest(
    $1::bytea[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::integer[],
    $7::integer[], $8::integer[], $9::text[], $10::bigint[], $11::bigint[], $12::bytea[],
    $13::text[], $14::text[], $15::bigint[], $16::text[], $17::text[])"""
NOTE_ENDED: Final = f"""INSERT INTO history ({_COLUMNS})
    SELECT ended.body_id, {_OF_RUNS}, ended.count, ended.size,
        runs.attempt + (ended.outcome = 'delivered')::integer, ended.outcome, runs.created_at,
        {NOW}, ended.bits, runs.error_history, ended.locked_by, ended.locked_at, ended.result,
        runs.job_id
    FROM unnest(
        $2::bigint[], $3::text[], $4::bytea[], $5::integer[], $6::integer[], $7::bytea[],
        $8::text[], $9::bigint[], $10::text[]
    ) WITH ORDINALITY AS ended (
        n, outcome, body_id, size, count, bits, locked_by, locked_at, result, place
    )
    JOIN runs ON runs.n = ended.n ORDER BY ended.place"""
NOTE_CLAIMED: Final = f"""INSERT INTO history ({_COLUMNS})
    SELECT body_id, {_OF_RUNS}, count, size, attempt + 1, 'delivered', created_at, {NOW},
        bits, error_history, (SELECT name FROM consumers WHERE n = $2), NULL, NULL,
        job_id
    FROM runs WHERE state = 'CLAIMED' AND consumer = $2"""
NOTE_CLAIMED_FAILURES: Final = f"{NOTE_CLAIMED} AND (attempt > 0 OR error_history <> '[]')"
SELECT_PAST: Final = """SELECT n, finished_at, size, body_id, bits, attempt, outcome,
    error_history, locked_by, locked_at, result, job_id FROM history
    WHERE queue = $1 AND (finished_at, n) < ($2, $3)
    ORDER BY finished_at DESC, n DESC LIMIT $4"""
# From name to name, past all rows between them.
SELECT_QUEUES: Final = """WITH RECURSIVE names (name) AS (
        (SELECT queue FROM history ORDER BY queue LIMIT 1)
        UNION ALL
        SELECT (SELECT queue FROM history WHERE queue > name ORDER BY queue LIMIT 1) FROM names
        WHERE name IS NOT NULL
    ) SELECT name FROM names WHERE name IS NOT NULL"""
SELECT_OLD: Final = """SELECT n, body_id, size FROM history
    WHERE queue = $1 AND finished_at < $2 ORDER BY finished_at, n LIMIT $3
    FOR UPDATE SKIP LOCKED"""
