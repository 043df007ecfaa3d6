"""Searching dead letters in PostgreSQL, in the order in which they died, a stretch at a time."""

from typing import Final, NamedTuple

from actors.ports.tiers import DeadFilter
from daemon.stores.cold.books import Place
from daemon.stores.cold.rows import fold
from daemon.stores.cold.text import from_text, to_text
from daemon.stores.postgres.connection import Connection
from daemon.stores.sqlite.dead_search import After

SCANNED_MAX: Final = 5000


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


async def search(
    con: Connection, which: DeadFilter, limit: int, after: After | None, until: int
) -> Stretch:
    """Up to `limit` letters that match and died at `until` or before."""
    if limit < 1:
        raise ValueError(f"a search for {limit} dead letters")
    sql, values = search_sql(which, after, until)
    found: list[Found] = []
    rows = await con.fetch(sql, *values)
    last = after
    for n, row, body_id, died_at, queue, flow, action, write, is_match in rows:
        if is_match:
            if len(found) == limit:
                return Stretch(found, After(found[-1].died_at, found[-1].id))
            place = Place(queue, from_text(flow), from_text(action))
            found.append(Found(n, row, body_id, died_at, place, write))
        last = After(died_at, row)
    return Stretch(found, last if len(rows) == SCANNED_MAX else None)


def search_sql(which: DeadFilter, after: After | None, until: int) -> tuple[str, list[object]]:
    values: list[object] = []

    def value(given: object) -> str:
        values.append(given)
        return f"${len(values)}"

    where = ["state = 'FAILED'", f"died_at <= {value(until)}"]
    if which.ids:
        where.append(f"item_id = ANY ({value([to_text(id_) for id_ in which.ids])}::text[])")
    for term, operand in (
        ("queue =", which.queue),
        ("died_at <", which.died_before_ms),
        ("died_at >", which.died_after_ms),
    ):
        if operand is not None:
            where.append(f"{term} {value(operand)}")
    if after is not None:
        where.append(f"(died_at, id) > ({value(after.died_at)}, {value(after.row)})")
    match = ["true"]
    for name, text in (("flow", which.flow), ("action", which.action)):
        if text is not None:
            match.append(f"{name} = {value(to_text(text))}")
    if which.error is not None:
        match.append(f"strpos(error_folded, {value(to_text(fold(which.error)))}) > 0")
    if which.failure_reason is not None:
        match.append(f"coalesce(failure_reason, 'application') = {value(which.failure_reason)}")
    return (
        "SELECT n, id, body_id, died_at, queue, flow, action, write_id, "
        f"{' AND '.join(match)} AS is_match FROM runs WHERE {' AND '.join(where)} "
        f"ORDER BY died_at, id LIMIT {SCANNED_MAX}"
    ), values


async def newest(con: Connection) -> int:
    """When the last of those that are dead now has died."""
    found = await con.fetchval(SELECT_NEWEST)
    return int(found) if found is not None else 0


async def known_count(con: Connection, which: DeadFilter) -> int | None:
    """How many match, where the books say so."""
    compared = (which.error, which.failure_reason, which.died_before_ms, which.died_after_ms)
    if which.ids or {*compared} != {None}:
        return None
    names = [which.queue, *(None if t is None else to_text(t) for t in (which.flow, which.action))]
    return int(await con.fetchval(SELECT_COUNT, *names))


SELECT_NEWEST: Final = """SELECT died_at FROM runs WHERE state = 'FAILED'
    ORDER BY died_at DESC LIMIT 1"""
SELECT_COUNT: Final = """SELECT coalesce(sum(dead), 0)::bigint FROM flows
    WHERE ($1::text IS NULL OR queue = $1) AND ($2::text IS NULL OR flow = $2)
    AND ($3::text IS NULL OR action = $3)"""
