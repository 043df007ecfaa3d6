"""History: rows of items that are finished, until they are forgotten by age.

Rows that end in the cold store are noted in the transaction that ends them (`note_ended`); those of
the journal are brought by `note`. A row of history needs its body like any other row, so that a
body goes with the last row of both. Where a queue keeps everything, the rows of a run share its
body. Where it keeps failures, a few items would keep a large run on disk for as long as they are
remembered: they are cut out into a run of their own, in which they keep their ids.

On a full disk a step is run again without history: what is deleted must make room.

1,000 rows of 1,000 items, bodies of 135 KB, are noted in 0.7 to 1 s in SQLite, 30 per transaction;
one item cut out of each, in 0.15 to 0.2; 20,000 rows of one item in 0.4 s, 256 per transaction. A
step that forgets 200 rows takes 10 to 40 ms with bodies of 135 KB, and usually 1 to 5 with small
ones.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

from actors.model.cursors import read_pair
from actors.model.finished import FinishedRow, Keep, Keeps, Past
from actors.model.slices import HeldBy, error_rows, indexes, item_bits
from daemon.stores.cold.connection import Connection
from daemon.stores.cold.rows import BadRow, own_bits, pack_bits, read_errors
from daemon.stores.cold.statement import Statement
from forebay.errors import BadRun
from forebay.run import Run, RunHead, read_head, take_items

CUT_BYTES_MIN: Final = 4096
"""A run that is smaller is kept as it is."""
FORGOTTEN_ROWS_MAX: Final = 200
FORGOTTEN_BYTES_MAX: Final = 32 * 1024 * 1024
"""How much one step forgets: others wait for it."""
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
            )
        )
    await con.rows.insert_bodies(bodies)
    await con.each(NOTE, values)


async def note_ended(con: Connection, ended: Sequence[Ended]) -> None:
    """Rows of `runs`, or parts of them. Before the rows are changed, and their bodies dropped."""
    kept = [one for one in ended if one.keep != "none" and not con.makes_room]
    if not kept:
        return
    parts, cut = await _cut(con, kept)
    await con.rows.insert_bodies(cut)
    await con.each(
        NOTE_ENDED,
        [
            (
                one.n,
                body_id,
                bits.bit_count(),
                size,
                int(one.outcome == "delivered"),
                one.outcome,
                pack_bits(bits),
                *(one.holder or (None, None)),
                one.result or None,
            )
            for one, (body_id, size, bits) in zip(kept, parts, strict=True)
        ],
    )


async def _cut(
    con: Connection, ended: Sequence[Ended]
) -> tuple[list[tuple[bytes, int, int]], dict[bytes, bytes]]:
    """Body, size and bits of each, as it is kept; and the bodies that were made for it."""
    large = [one for one in ended if one.keep == "failures" and one.size >= CUT_BYTES_MIN]
    bodies = await con.rows.read_bodies(one.body_id for one in large)
    cutter = Cutter()
    parts: list[tuple[bytes, int, int]] = []
    cut: dict[bytes, bytes] = {}
    for one in ended:
        part = (one.body_id, one.size, one.bits)
        if one.keep == "failures" and one.size >= CUT_BYTES_MIN:
            with suppress(BadRow):
                head, data, bits = cutter.part(*bodies.get(one.body_id), one.bits)
                if head.run_id != one.body_id:
                    part, cut[head.run_id] = (head.run_id, len(data), bits), data
        parts.append(part)
    return parts, cut


async def note_claimed(con: Connection, consumer: int, keep: Keep) -> None:
    """The rows of a claim that is acknowledged, however many, in one statement."""
    if keep != "none" and not con.makes_room:
        await con.execute(NOTE_CLAIMED if keep == "all" else NOTE_CLAIMED_FAILURES, consumer)


async def look(con: Connection, queue: str, cursor: str, rows_max: int, bytes_max: int) -> Past:
    """ValueError if the cursor is not one of ours."""
    at = read_pair(cursor) if cursor else _NEWEST
    found = await con.fetch(SELECT_PAST, queue, *at, rows_max + 1)
    taken = _fitting(found, rows_max, bytes_max)
    bodies = await con.rows.read_bodies(body_id for _, _, _, body_id, *_ in taken)
    rows: list[FinishedRow] = []
    for n, finished_at, _, body_id, packed, attempt, outcome, errors, *said in taken:
        # Rows that cannot be read are left out.
        with suppress(BadRow):
            head, data = bodies.get(body_id)
            ending = (attempt, outcome, finished_at, read_errors(errors), *read_said(*said))
            rows.append(FinishedRow(head, data, own_bits(packed, head), *ending))
        at = (finished_at, n)
    return Past(rows, None if len(taken) == len(found) else "{}-{}".format(*at))


def read_said(
    by: str | None, since_ms: int | None, result: str | None, job: str | None
) -> tuple[HeldBy | None, str, str]:
    """Who had a row's items, the result, and the job."""
    return holder_of(by, since_ms), result or "", job or ""


def holder_of(by: str | None, since_ms: int | None) -> HeldBy | None:
    """Who is noted in a row."""
    return None if by is None else HeldBy(by, since_ms or 0)


def said_bytes(errors: bytes | str, by: str | None, result: str | None) -> int:
    """What a row takes in an answer beside its run, about."""
    return len(errors) + ROW_BYTES + len((by or "").encode()) + len((result or "").encode())


def _fitting(found: Sequence[Any], rows_max: int, bytes_max: int) -> list[Any]:
    """The first of them, as many as fit into an answer, and one in any case."""
    taken: list[Any] = []
    room, error_room = bytes_max, PAGE_ERROR_BYTES_MAX
    for row in found:
        _, _, size, _, _, _, _, errors, by, _, result, _ = row
        error_bytes = said_bytes(errors, by, result)
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
    old: list[tuple[int]] = []
    bodies: set[bytes] = set()
    size = 0
    for n, body_id, row_size in await con.fetch(SELECT_OLD, queue, before_ms, FORGOTTEN_ROWS_MAX):
        if old and size + row_size > FORGOTTEN_BYTES_MAX:
            break
        old.append((n,))
        bodies.add(body_id)
        size += row_size
    await con.each(FORGET, old)
    await con.rows.drop_bodies(bodies)
    return len(old)


_COLUMNS: Final = """body_id, queue, flow, action, priority, count, size, attempt, outcome,
    created_at, finished_at, bits, error_history, locked_by, locked_at, result, job_id"""
NOTE: Final = Statement(
    f"INSERT INTO history ({_COLUMNS}) VALUES ({', '.join(f'${n}' for n in range(1, 18))})"
)
NOTE_ENDED: Final = Statement(f"""INSERT INTO history ({_COLUMNS})
    SELECT $2::bytea, queue, flow, action, priority, $3::integer, $4::integer,
        attempt + $5::integer, $6::text, created_at, :now, $7::bytea, error_history, $8::text,
        $9::bigint, $10::text, job_id
    FROM runs WHERE n = $1""")
_CLAIMED: Final = f"""INSERT INTO history ({_COLUMNS})
    SELECT body_id, queue, flow, action, priority, count, size, attempt + 1, 'delivered',
        created_at, :now, bits, error_history, (SELECT name FROM consumers WHERE n = $1), NULL,
        NULL, job_id
    FROM runs INDEXED BY runs_claimed WHERE state = 'CLAIMED' AND consumer = $1"""
NOTE_CLAIMED: Final = Statement(_CLAIMED)
NOTE_CLAIMED_FAILURES: Final = Statement(f"{_CLAIMED} AND (attempt > 0 OR error_history <> '[]')")
SELECT_PAST: Final = Statement("""SELECT n, finished_at, size, body_id, bits, attempt, outcome,
    :raw(error_history), locked_by, locked_at, result, job_id
    FROM history INDEXED BY history_queue
    WHERE queue = $1 AND (finished_at, n) < ($2, $3)
    ORDER BY finished_at DESC, n DESC LIMIT $4""")
# From name to name, past all rows between them.
SELECT_QUEUES: Final = Statement("""WITH RECURSIVE names (name) AS (
        SELECT min(queue) FROM history
        UNION ALL
        SELECT (SELECT min(queue) FROM history WHERE queue > name) FROM names
        WHERE name IS NOT NULL
    ) SELECT name FROM names WHERE name IS NOT NULL""")
SELECT_OLD: Final = Statement("""SELECT n, body_id, size FROM history INDEXED BY history_queue
    WHERE queue = $1 AND finished_at < $2 ORDER BY finished_at, n LIMIT $3
    FOR UPDATE SKIP LOCKED""")
FORGET: Final = Statement("DELETE FROM history WHERE n = $1")
