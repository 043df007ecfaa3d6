"""Reading rows of the cold tier in PostgreSQL without changing anything
(daemon/stores/sqlite/looks.py)."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from actors.model.cursors import read_pair
from actors.ports.tiers import Look, SeenRow, SeenRows
from daemon.stores.cold.claims import BadClaimed, open_consumer
from daemon.stores.cold.rows import BadRow, Bodies, own_bits
from daemon.stores.postgres.connection import Connection
from daemon.stores.postgres.rows import read_bodies
from daemon.stores.postgres.steps import PostgresConnection
from daemon.stores.sqlite.looks import Fetch, Span

SCANNED_MAX: Final = 5000


class Wish(NamedTuple):
    """Which rows of a claim."""

    queue: str
    consumer: str
    claim: int
    first: int
    rows_max: int
    bytes_max: int


async def fetch(con: Connection, wish: Wish) -> Fetch:
    who = (wish.queue, wish.consumer, wish.claim)
    n = await open_consumer(PostgresConnection(con, b"", None), *who)
    found = await con.fetch(SELECT_CLAIMED, n, wish.first, wish.rows_max + 1)
    taken = _fitting(found, wish.rows_max, wish.bytes_max)
    bodies = await read_bodies(con, (row["body_id"] for row in taken))
    rows: list[SeenRow] = []
    bad: list[BadClaimed] = []
    for row in taken:
        try:
            rows.append(_seen(row["place"], row, bodies))
        except BadRow as error:
            bad.append(BadClaimed(row["n"], row["body_id"], row["count"], row["size"], str(error)))
    next_ = found[len(taken)]["place"] if len(taken) < len(found) else None
    return Fetch(SeenRows(rows, next_), bad)


async def begin(con: Connection, cursor: str) -> Span:
    """Where a look begins; ValueError if the cursor is none."""
    if not cursor:
        return Span(0, await con.fetchval("SELECT coalesce(max(n), 0) FROM runs"))
    return Span(*read_pair(cursor))


async def look(
    con: Connection, queue: str, span: Span, rows_max: int, bytes_max: int, *, is_begun: bool
) -> tuple[Look, Span | None]:
    """One stretch; where the next one begins, if the page has room and there is more.

    `is_begun`: the page has rows already, and need not take another."""
    scanned = await con.fetch(SELECT_STRETCH, queue, *span, SCANNED_MAX)
    wanted = [row for row in scanned if row["is_wanted"]]
    taken = _fitting(wanted, rows_max, bytes_max, is_begun=is_begun)
    bodies = await read_bodies(con, (row["body_id"] for row in taken))
    rows: list[SeenRow] = []
    for row in taken:
        with suppress(BadRow):
            rows.append(_seen(0, row, bodies))
    if len(taken) < len(wanted):
        at = wanted[len(taken)]["n"] - 1
        return Look(rows, f"{at}-{span.until}"), None
    if len(scanned) < SCANNED_MAX:
        return Look(rows, None), None
    rest = Span(scanned[-1]["n"], span.until)
    return Look(rows, f"{rest.after}-{rest.until}"), rest


def _seen(number: int, row: Any, bodies: Bodies) -> SeenRow:
    """BadRow if it cannot be read."""
    head, data = bodies.get(row["body_id"])
    bits = own_bits(row["bits"], head)
    is_whole = bits == (1 << head.count) - 1
    return SeenRow(number, row["due_ms"], row["attempt"], 0 if is_whole else bits, data)


def _fitting(
    found: Sequence[Any], rows_max: int, bytes_max: int, *, is_begun: bool = False
) -> list[Any]:
    """The first of them, as many as fit into an answer, and one in any case if it is the first."""
    taken: list[Any] = []
    room = bytes_max
    for row in found:
        if (taken or is_begun) and (len(taken) == rows_max or row["size"] > room):
            break
        taken.append(row)
        room -= row["size"]
    return taken


SELECT_CLAIMED: Final = """SELECT n, place, count, size, body_id, bits, attempt, due_ms FROM runs
    WHERE state = 'CLAIMED' AND consumer = $1 AND place >= $2::bigint
    ORDER BY place LIMIT $3"""
SELECT_STRETCH: Final = """SELECT n, size,
    queue = $1 AND state IN ('COLD_QUEUED', 'CLAIMED') AS is_wanted, body_id, bits,
    attempt, due_ms FROM runs WHERE n > $2 AND n <= $3 ORDER BY n LIMIT $4"""
