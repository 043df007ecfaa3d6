"""Leases on the rows of the cold tier, on the server's clock: taken, kept, given back.

A row's lock stays until the row is acquired again or released: whoever held a lease that ran out
may still settle or renew it, as long as nobody else has taken the row. Rows that another daemon's
transaction is about to take are passed over, so that two that acquire at once get different ones.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import structlog

from actors.model.moves import ColdMove, guard, set_state
from actors.model.slices import first_bits, lowest_bit
from actors.ports.tiers import ColdRow, Outlook
from daemon.stores.cold.books import Place
from daemon.stores.cold.connection import Room
from daemon.stores.cold.rows import FAR_MS, BadRow, own_bits, pack_bits, place_of, read_errors
from daemon.stores.cold.text import from_text, to_text
from daemon.stores.postgres.books import SharedBooks
from daemon.stores.postgres.connection import Connection
from daemon.stores.postgres.rows import NOW, read_bodies
from daemon.stores.postgres.steps import PICK
from forebay.ids import new_run_id

log = structlog.get_logger()

ROWS_MAX: Final = 10_000
"""So many rows are acquired in one step, whatever the limits allow."""


class Wish(NamedTuple):
    """What is to be acquired, and for whom."""

    queue: str
    lock: bytes
    items_max: int
    bytes_max: int
    lease_s: float
    except_flows: frozenset[str]
    holder: bytes
    cuts: bool = False


class _Bad(NamedTuple):
    n: int
    body_id: bytes
    items: int
    write: bytes | None
    error: str


async def acquire(con: Connection, wish: Wish, now_ms: int | None) -> list[ColdRow] | None:
    """Leases the next rows. Those that cannot be read are set aside, and the next ones taken.

    None: so much came due that others should have their turn first."""
    rows: list[ColdRow] = []
    sizes: dict[bytes, int] = {}
    while True:
        items_left = wish.items_max - sum(row.bits.bit_count() for row in rows)
        bytes_left = wish.bytes_max - len(rows) - sum(sizes.values())
        room = Room(items_left, bytes_left, ROWS_MAX, must_fit=bool(rows), cuts=wish.cuts)
        picked = await pick(con, wish.queue, wish.except_flows, room, now_ms)
        if picked is None:
            return None
        good, bad = await _lease(con, wish, picked, now_ms)
        rows += good
        sizes |= {row.head.run_id: len(row.data) for row in good}
        if bad:
            await _set_aside(con, wish, bad)
            continue
        surplus = sum(row.bits.bit_count() for row in rows) - wish.items_max
        if wish.cuts and surplus > 0:
            items = rows[-1].bits.bit_count() - surplus
            rows[-1] = await _cut(con, wish, rows[-1], items, now_ms)
        return rows


async def _cut(
    con: Connection, wish: Wish, row: ColdRow, items: int, now_ms: int | None
) -> ColdRow:
    """Keeps the first `items` of a leased row; the others become a free row on the same body."""
    kept = first_bits(row.bits, items)
    rest = row.bits & ~kept
    split = (new_run_id(), pack_bits(rest), rest.bit_count(), lowest_bit(rest))
    await con.execute(SPLIT_OFF, now_ms, row.row, *split)
    await con.execute(SHRINK, row.row, pack_bits(kept), kept.bit_count())
    books = SharedBooks()
    books.cut(place_of(row.head))
    await books.record(con, wish.holder)
    return replace(row, bits=kept)


async def pick(
    con: Connection,
    queue: str,
    except_flows: frozenset[str],
    room: Room,
    now_ms: int | None,
) -> list[int] | None:
    """The numbers of the next rows that are due, locked; None: ask again later."""
    flows = [to_text(flow) for flow in sorted(except_flows)]
    picked: list[int] | None = await con.fetchval(PICK, now_ms, queue, flows, *room)
    return picked


async def _lease(
    con: Connection, wish: Wish, picked: list[int], now_ms: int | None
) -> tuple[list[ColdRow], list[_Bad]]:
    """In the order of delivery. They are all leased, also those that turn out unreadable."""
    if not picked:
        return [], []
    lease_ms = round(wish.lease_s * 1000)
    # Rows of a shared warm queue are held by no daemon: they outlive each of them there.
    holder = None if lease_ms >= FAR_MS else wish.holder
    leased = await con.fetch(LEASE, now_ms, picked, wish.lock, holder, lease_ms)
    bodies = await read_bodies(con, (row["body_id"] for row in leased))
    places = {n: place for place, n in enumerate(picked)}
    good: list[ColdRow] = []
    bad: list[_Bad] = []
    for row in sorted(leased, key=lambda row: places[row["n"]]):
        n, id_, body_id, packed, attempt, due_ms, errors, items, write = row
        try:
            head, data = bodies.get(body_id)
            bits = own_bits(packed, head)
            good.append(ColdRow(id_, head, data, bits, attempt, due_ms, read_errors(errors)))
        except BadRow as error:
            bad.append(_Bad(n, body_id, items, write, str(error)))
    return good, bad


async def _set_aside(con: Connection, wish: Wish, bad: Sequence[_Bad]) -> None:
    books = SharedBooks()
    found = await con.fetch(SET_ASIDE, [row.n for row in bad])
    places = {n: Place(wish.queue, from_text(flow), from_text(action)) for n, flow, action in found}
    for row in bad:
        books.lose(places[row.n], row.items, row.write)
        log.error(
            "cold.row_corrupt",
            queue=wish.queue,
            run=row.body_id.hex(),
            items=row.items,
            error=row.error,
        )
    await books.record(con, wish.holder)


async def renew(
    con: Connection, locks: Sequence[bytes], lease_s: float, now_ms: int | None
) -> list[int]:
    rows = await con.fetch(RENEW, now_ms, list(locks), round(lease_s * 1000))
    counts = Counter(lock for (lock,) in rows)
    return [counts[lock] for lock in locks]


async def release(
    con: Connection, lock: bytes, rows: Sequence[bytes], now_ms: int | None
) -> set[str]:
    """The queues that have something due now."""
    released = await con.fetch(RELEASE, now_ms, list(rows), lock)
    return {queue for (queue,) in released}


async def release_all(con: Connection, holder: bytes, now_ms: int | None) -> list[str]:
    """The queue of each row."""
    return [queue for (queue,) in await con.fetch(RELEASE_ALL, now_ms, holder)]


async def outlook(
    con: Connection, queue: str, except_flows: frozenset[str], now_ms: int | None
) -> Outlook:
    flows = [to_text(flow) for flow in sorted(except_flows)]
    has_due, next_due_ms = await con.fetchrow(OUTLOOK, now_ms, queue, flows)
    return Outlook(has_due, next_due_ms)


LEASE: Final = f"""UPDATE runs
    SET is_due = false, lock_uuid = $3, holder = $4, scheduled_at = {NOW} + $5
    WHERE n = ANY ($2)
    RETURNING n, id, body_id, bits, attempt, due_ms, error_history, count, write_id"""
SET_ASIDE: Final = f"""UPDATE runs SET {set_state(ColdMove.SET_ASIDE)}, is_due = false,
    lock_uuid = NULL, holder = NULL WHERE n = ANY ($1) AND {guard(ColdMove.SET_ASIDE)}
    RETURNING n, flow, action"""
_SAME: Final = """body_id, state, queue, flow, flow_type, action, key, priority,
    scheduled_at_initially, due_ms, size, attempt, brought_by, created_at, origin, error_history,
    write_id, changed_at"""
SPLIT_OFF: Final = f"""INSERT INTO runs (id, bits, count, first_item, is_due, scheduled_at, {_SAME})
    SELECT $3, $4, $5, $6, true, {NOW}, {_SAME} FROM runs WHERE id = $2"""
"""A free row that is due, of items of a leased one."""
SHRINK: Final = "UPDATE runs SET bits = $2, count = $3 WHERE id = $1"
RENEW: Final = f"""UPDATE runs SET is_due = false, scheduled_at = {NOW} + $3
    WHERE lock_uuid = ANY ($2) AND {guard(ColdMove.ACQUIRE)} RETURNING lock_uuid"""
RELEASE: Final = f"""UPDATE runs
    SET is_due = true, lock_uuid = NULL, holder = NULL, scheduled_at = {NOW}
    WHERE id = ANY ($2) AND lock_uuid = $3 AND {guard(ColdMove.RELEASE)} RETURNING queue"""
RELEASE_ALL: Final = f"""UPDATE runs
    SET is_due = true, lock_uuid = NULL, holder = NULL, scheduled_at = {NOW}
    WHERE holder = $2 AND {guard(ColdMove.RELEASE)} RETURNING queue"""
_DUE: Final = """FROM runs WHERE state = 'COLD_QUEUED' AND is_due AND queue = $2
    AND NOT (flow = ANY ($3))"""
_LATER: Final = """FROM runs WHERE state = 'COLD_QUEUED' AND NOT is_due AND queue = $2
    AND NOT (flow = ANY ($3))"""
OUTLOOK: Final = f"""SELECT EXISTS (SELECT 1 {_DUE})
        OR EXISTS (SELECT 1 {_LATER} AND scheduled_at <= {NOW}),
    (SELECT scheduled_at {_LATER} AND scheduled_at > {NOW} AND scheduled_at < {FAR_MS}
        ORDER BY scheduled_at LIMIT 1)"""
