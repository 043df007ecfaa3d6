"""Claims on the rows of the cold tier in PostgreSQL: a consumer takes numbered sets of rows.

As in daemon/stores/sqlite/claims.py: a claim is fixed once it is made, its rows are in a state of
their own, and it is acknowledged as a whole. The consumer's row is locked throughout, so that two
daemons that are asked for the same consumer's claim take turns, and give the same answer.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import structlog

from actors.model.finished import Keep
from actors.model.moves import ColdMove, guard, set_state
from actors.ports.tiers import Stream
from daemon.stores.cold.books import Place
from daemon.stores.cold.keyed import Released
from daemon.stores.cold.rows import unpack_bits
from daemon.stores.cold.text import from_text, to_text
from daemon.stores.postgres.books import SharedBooks
from daemon.stores.postgres.connection import Connection
from daemon.stores.postgres.history import note_claimed
from daemon.stores.postgres.keys import HAS_KEYS, let_go
from daemon.stores.postgres.leasing import Room, pick
from daemon.stores.postgres.rows import drop_bodies
from daemon.stores.sqlite.claims import CLAIM_ROWS_MAX, BadClaimed, check_after, no_open_claim

log = structlog.get_logger()

_PLENTY: Final = 1 << 60


class Wish(NamedTuple):
    """What is asked for, and by whom."""

    queue: str
    name: str
    after: int
    items_max: int
    except_flows: frozenset[str]
    keep: Keep
    daemon: bytes
    window_ms: int | None = None
    """So long keys stay taken of what is acknowledged."""


class _Consumer(NamedTuple):
    n: int
    acknowledged: int
    claim: int | None
    rows: int
    items: int
    bytes: int


async def claim(con: Connection, wish: Wish, now_ms: int | None) -> Stream | None:
    """None: so much came due that others should have their turn first."""
    consumer = await _locked(con, wish)
    check_after(wish.after, consumer.acknowledged, consumer.claim)
    open_claim = consumer.claim
    if open_claim is not None and wish.after == open_claim:
        await _acknowledge(con, consumer.n, wish, now_ms)
        open_claim = None
    if open_claim is None and wish.items_max:
        room = Room(wish.items_max, _PLENTY, CLAIM_ROWS_MAX)
        picked = await pick(con, wish.queue, wish.except_flows, room, now_ms)
        if picked is None:
            return None
        if picked:
            rows = await con.fetchrow(FREEZE, picked, consumer.n)
            await con.execute(OPEN_CLAIM, consumer.n, wish.after + 1, *rows)
    return await stream(con, wish.queue, wish.name)


async def stream(con: Connection, queue: str, name: str) -> Stream:
    waiting, taken = await con.fetchrow(SELECT_WAITING, queue)
    consumer = await con.fetchrow(SELECT_CONSUMER, queue, to_text(name))
    if consumer is None:
        return Stream(waiting=waiting, taken=taken)
    return Stream(*_Consumer(*consumer)[1:], waiting, taken)


async def streams(con: Connection) -> list[tuple[str, str]]:
    rows = await con.fetch("SELECT queue, name FROM consumers")
    return sorted((queue, from_text(name)) for queue, name in rows)


async def drop(con: Connection, queue: str, name: str) -> int:
    consumer = await con.fetchrow(f"{SELECT_CONSUMER} FOR UPDATE", queue, to_text(name))
    if consumer is None:
        return 0
    n, items = consumer["n"], consumer["items"]
    await con.execute(RELEASE_CLAIM, n)
    await con.execute("DELETE FROM consumers WHERE n = $1", n)
    return int(items)


async def open_consumer(con: Connection, queue: str, name: str, number: int) -> int:
    """The consumer whose open claim has this number; WrongClaim if it is not open."""
    consumer = await con.fetchrow(SELECT_CONSUMER, queue, to_text(name))
    if consumer is None or consumer["claim"] != number:
        raise no_open_claim(queue, name, number)
    return int(consumer["n"])


async def set_aside(con: Connection, queue: str, bad: Iterable[BadClaimed], daemon: bytes) -> None:
    books = SharedBooks()
    for row in bad:
        found = await con.fetchrow(SET_ASIDE, row.n)
        if found is None:
            continue
        consumer, flow, action, write = found
        await con.execute(SHRINK_CLAIM, consumer, row.items, row.size)
        books.lose(Place(queue, from_text(flow), from_text(action)), row.items, write)
        run = row.body_id.hex()
        log.error("cold.row_corrupt", queue=queue, run=run, items=row.items, error=row.error)
    await books.record(con, daemon)


async def _locked(con: Connection, wish: Wish) -> _Consumer:
    """The consumer, made if it was never here."""
    who = wish.queue, to_text(wish.name)
    found = await con.fetchrow(f"{SELECT_CONSUMER} FOR UPDATE", *who)
    while found is None:
        check_after(wish.after, 0, None)
        await con.execute(INSERT_CONSUMER, *who)
        found = await con.fetchrow(f"{SELECT_CONSUMER} FOR UPDATE", *who)
    return _Consumer(*found)


async def _acknowledge(con: Connection, n: int, wish: Wish, now_ms: int | None) -> None:
    books = SharedBooks()
    for flow, action, write, rows, items in await con.fetch(COUNT_CLAIMED, n):
        place = Place(wish.queue, from_text(flow), from_text(action))
        books.leave(place, items, rows_gone=rows)
        books.deliver(wish.queue, items, write)
    if wish.keep != "none":
        await con.execute(LOCK_BODIES, n)
        await note_claimed(con, n, wish.keep, now_ms)
    keyed = await con.fetch(SELECT_KEYED, n)
    ended = [Released(body_id, unpack_bits(bits), wish.window_ms) for body_id, bits in keyed]
    await let_go(con, ended, now_ms)
    gone = await con.fetch(DROP_ROWS, n)
    await drop_bodies(con, (body_id for (body_id,) in gone))
    await con.execute(CLOSE_CLAIM, n)
    await books.record(con, wish.daemon)


_CLAIMED: Final = f"FROM runs WHERE {guard(ColdMove.ACKNOWLEDGE)} AND consumer = $1"

SELECT_CONSUMER: Final = """SELECT n, acknowledged, claim, rows, items, bytes FROM consumers
    WHERE queue = $1 AND name = $2"""
INSERT_CONSUMER: Final = """INSERT INTO consumers (queue, name) VALUES ($1, $2)
    ON CONFLICT DO NOTHING"""
SELECT_WAITING: Final = """SELECT coalesce(sum(held), 0)::bigint
        - (SELECT coalesce(sum(items), 0)::bigint FROM consumers WHERE queue = $1),
    coalesce(sum(taken), 0)::bigint FROM totals WHERE queue = $1"""
# The rows are those of `pick`, locked, which takes what it may be made of alone.
FREEZE: Final = f"""WITH frozen AS (
        UPDATE runs SET {set_state(ColdMove.CLAIM)}, is_due = false, lock_uuid = NULL,
            holder = NULL, consumer = $2, place = picked.place - 1
        FROM unnest($1::bigint[]) WITH ORDINALITY AS picked (n, place)
        WHERE runs.n = picked.n RETURNING runs.count, runs.size
    ) SELECT count(*), sum(count)::bigint, sum(size)::bigint FROM frozen"""
OPEN_CLAIM: Final = (
    "UPDATE consumers SET claim = $2, rows = $3, items = $4, bytes = $5 WHERE n = $1"
)
CLOSE_CLAIM: Final = """UPDATE consumers SET acknowledged = claim, claim = NULL, rows = 0,
    items = 0, bytes = 0 WHERE n = $1"""
COUNT_CLAIMED: Final = f"""SELECT flow, action, write_id, count(*), sum(count)::bigint {_CLAIMED}
    GROUP BY flow, action, write_id"""
LOCK_BODIES: Final = f"""SELECT count(*) FROM (
    SELECT 1 FROM bodies WHERE id IN (SELECT body_id {_CLAIMED}) ORDER BY id FOR UPDATE
) AS locked"""
SELECT_KEYED: Final = f"SELECT body_id, bits {_CLAIMED} AND {HAS_KEYS}"
DROP_ROWS: Final = f"DELETE {_CLAIMED} RETURNING body_id"
RELEASE_CLAIM: Final = f"""UPDATE runs SET {set_state(ColdMove.UNCLAIM)}, is_due = true,
    consumer = NULL, place = NULL, job_id = NULL
    WHERE {guard(ColdMove.UNCLAIM)} AND consumer = $1"""
SHRINK_CLAIM: Final = """UPDATE consumers SET items = items - $2, bytes = bytes - $3
    WHERE n = $1"""
_BAD: Final = guard(ColdMove.SET_CLAIMED_ASIDE)
SET_ASIDE: Final = f"""WITH claimed AS (
        SELECT n, consumer FROM runs WHERE n = $1 AND {_BAD} FOR UPDATE
    ) UPDATE runs SET {set_state(ColdMove.SET_CLAIMED_ASIDE)}, consumer = NULL, place = NULL
    FROM claimed
    WHERE runs.n = claimed.n RETURNING claimed.consumer, flow, action, write_id"""
