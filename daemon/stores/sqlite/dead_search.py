"""Searching dead letters, in the order in which they died, a bounded stretch at a time.

The stretch is walked in an index (of a queue, of all, or of item ids); flow, action and the text
of the error are compared on the way.
"""

import json
import sqlite3
from typing import Final, NamedTuple

from actors.ports.tiers import DeadFilter
from daemon.stores.cold.books import Place
from daemon.stores.cold.rows import fold

SCANNED_MAX: Final = 5000


class After(NamedTuple):
    """The place in the order where a search goes on."""

    died_at: int
    row: bytes


class Found(NamedTuple):
    n: int
    id: bytes
    body_id: bytes
    died_at: int
    place: Place
    write: bytes | None


class Stretch(NamedTuple):
    rows: list[Found]
    after: After | None
    """None: there is nothing more to be found."""


def search(
    db: sqlite3.Connection, which: DeadFilter, limit: int, after: After | None, until: int
) -> Stretch:
    """Up to `limit` letters that match and died at `until` or before."""
    if limit < 1:
        raise ValueError(f"a search for {limit} dead letters")
    sql, values = search_sql(which, after, until)
    cursor = db.execute(sql, values)
    found: list[Found] = []
    scanned, last = 0, after
    for n, row, body_id, died_at, queue, flow, action, write, is_match in cursor:
        if is_match:
            if len(found) == limit:
                cursor.close()
                return Stretch(found, After(found[-1].died_at, found[-1].id))
            found.append(Found(n, row, body_id, died_at, Place(queue, flow, action), write))
        scanned += 1
        last = After(died_at, row)
    return Stretch(found, last if scanned == SCANNED_MAX else None)


def search_sql(
    which: DeadFilter, after: After | None, until: int
) -> tuple[str, list[str | int | bytes]]:
    match: list[str] = ["1"]
    values: list[str | int | bytes] = []
    for name, value in (("flow", which.flow), ("action", which.action)):
        if value is not None:
            match.append(f"{name} = ?")
            values.append(value)
    if which.error is not None:
        match.append("instr(error_folded, ?) > 0")
        values.append(fold(which.error))
    if which.failure_reason is not None:
        # What died before there were reasons failed for the application's.
        match.append("coalesce(failure_reason, 'application') = ?")
        values.append(which.failure_reason)
    where = ["state = 'FAILED'", "died_at <= ?"]
    values.append(until)
    if which.ids:
        index = "runs_dead_item"
        where.append("item_id IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(which.ids))
    else:
        index = "runs_dead" if which.queue is None else "runs_dead_queue"
    for term, operand in (
        ("queue = ?", which.queue),
        ("died_at < ?", which.died_before_ms),
        ("died_at > ?", which.died_after_ms),
    ):
        if operand is not None:
            where.append(term)
            values.append(operand)
    if after is not None:
        where.append("(died_at, id) > (?, ?)")
        values += after
    return (
        f"SELECT n, id, body_id, died_at, queue, flow, action, write_id, {' AND '.join(match)} "
        f"FROM runs INDEXED BY {index} WHERE {' AND '.join(where)} "
        f"ORDER BY died_at, id LIMIT {SCANNED_MAX}"
    ), values


def newest(db: sqlite3.Connection) -> int:
    """When the last of those that are dead now has died."""
    row = db.execute(
        "SELECT died_at FROM runs INDEXED BY runs_dead WHERE state = 'FAILED' "
        "ORDER BY died_at DESC LIMIT 1"
    ).fetchone()
    return row[0] if row else 0


def known_count(db: sqlite3.Connection, which: DeadFilter) -> int | None:
    """How many match, where the books say so."""
    compared = (which.error, which.failure_reason, which.died_before_ms, which.died_after_ms)
    if which.ids or {*compared} != {None}:
        return None
    terms = {"queue": which.queue, "flow": which.flow, "action": which.action}
    given = {name: value for name, value in terms.items() if value is not None}
    condition = " AND ".join(f"{name} = :{name}" for name in given) or "1"
    dead: int = db.execute(
        f"SELECT coalesce(sum(dead), 0) FROM flows WHERE {condition}", given
    ).fetchone()[0]
    return dead
