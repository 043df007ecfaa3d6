"""Leases on the rows of the cold store: taken, kept, given back.

A row's lock stays until the row is acquired again or released: a holder whose lease ran out may
still settle or renew it, as long as nobody else has taken the row. Rows that another daemon's
transaction is about to take are passed over, so that two that acquire at once get different ones.

In PostgreSQL leases and due times are on the server's clock. In SQLite `scheduled_at` is a time of
the wall clock, but of the clock of leases in a row that is leased (actors/model/clock.py). That
clock means nothing to the next process: `release_all` comes before anything else.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import structlog

from actors.model.moves import ColdMove, guard, set_state
from actors.model.slices import first_bits, lowest_bit
from actors.ports.tiers import ColdRow, Outlook, StoreCorrupt
from daemon.stores.cold.books import Books, Place
from daemon.stores.cold.connection import Connection, Database, Room
from daemon.stores.cold.rows import FAR_MS, BadRow, own_bits, pack_bits, place_of, read_errors
from daemon.stores.cold.statement import Statement
from forebay.ids import new_run_id

log = structlog.get_logger()

ROWS_MAX: Final = 10_000
"""How many rows are acquired in one step at most, whatever the limits allow."""


class Wish(NamedTuple):
    """What is to be acquired, and under which lock."""

    queue: str
    lock: bytes
    items_max: int
    bytes_max: int
    lease_ms: int
    except_flows: frozenset[str]
    cuts: bool = False


class _Leased(NamedTuple):
    n: int
    row: ColdRow


class _Bad(NamedTuple):
    n: int
    body_id: bytes
    items: int
    write: bytes | None
    error: str


async def acquire(db: Database, wish: Wish) -> list[ColdRow]:
    """When very many rows come due at once, others get their turn between the transactions."""
    while True:
        rows = await db.write(
            lambda con: lease(con, wish),
            is_durable=False,
            # Rows whose lease was not answered are free when it ends.
            is_repeatable=False,
        )
        if rows is not None:
            return rows


async def lease(con: Connection, wish: Wish) -> list[ColdRow] | None:
    """Leases the next rows. Those that cannot be read are set aside, and the next ones taken.

    None: so much came due that others should have their turn first."""
    leased: list[_Leased] = []
    items, size = wish.items_max, wish.bytes_max
    while True:
        room = Room(items, size, ROWS_MAX, must_fit=bool(leased), cuts=wish.cuts)
        picked = await con.pick(wish.queue, wish.except_flows, room)
        if picked is None:
            return None
        good, bad = await _lease(con, wish, picked)
        leased += good
        items -= sum(one.row.bits.bit_count() for one in good)
        size -= len(good) + sum({one.row.head.run_id: len(one.row.data) for one in good}.values())
        if not bad:
            break
        await _set_aside(con, wish.queue, bad)
    rows = [one.row for one in leased]
    if wish.cuts and items < 0:
        n, row = leased[-1]
        kept = await cut(con, n, row.bits, row.bits.bit_count() + items, place_of(row.head))
        rows[-1] = replace(row, bits=kept)
    return rows


async def cut(con: Connection, n: int, bits: int, items: int, place: Place) -> int:
    """A row that was picked keeps its first items. The others become a free row on the same body,
    at the same place in the order. Returns what is kept."""
    kept = first_bits(bits, items)
    rest = bits & ~kept
    of_rest = (pack_bits(rest), rest.bit_count(), lowest_bit(rest))
    await con.execute(SPLIT_OFF, n, new_run_id(), *of_rest)
    await con.rows.shrink({n: kept})
    books = Books()
    books.cut(place)
    await con.record(books)
    return kept


async def _lease(
    con: Connection, wish: Wish, picked: list[int]
) -> tuple[list[_Leased], list[_Bad]]:
    """In the order of delivery. They are all leased, also those that turn out unreadable."""
    if not picked:
        return [], []
    # Rows of a shared warm queue are held by no daemon: they outlive each of them there.
    holder = None if wish.lease_ms >= FAR_MS else con.daemon
    found: dict[int, Sequence[Any]] = {
        n: more for n, *more in await con.fetch(LEASE, picked, wish.lock, wish.lease_ms, holder)
    }
    if len(found) < len(picked):
        # Setting a row aside would not take it out of the index: there is no going on.
        raise StoreCorrupt("the index of what is due and the rows disagree")
    bodies = await con.rows.read_bodies({row[1] for row in found.values()})
    good: list[_Leased] = []
    bad: list[_Bad] = []
    for n in picked:
        id_, body_id, packed, attempt, due_ms, errors, items, write = found[n]
        try:
            head, data = bodies.get(body_id)
            bits = own_bits(packed, head)
            row = ColdRow(id_, head, data, bits, attempt, due_ms, read_errors(errors))
            good.append(_Leased(n, row))
        except BadRow as error:
            bad.append(_Bad(n, body_id, items, write, str(error)))
    return good, bad


async def _set_aside(con: Connection, queue: str, bad: Sequence[_Bad]) -> None:
    found = await con.fetch(SET_ASIDE, [row.n for row in bad])
    places = {n: Place(queue, flow, action) for n, flow, action in found}
    books = Books()
    for row in bad:
        books.lose(places[row.n], row.items, row.write)
        run = row.body_id.hex()
        log.error("cold.row_corrupt", queue=queue, run=run, items=row.items, error=row.error)
    await con.record(books)


async def renew(con: Connection, locks: Sequence[bytes], lease_ms: int) -> list[int]:
    """How many rows each lock has."""
    counts = Counter(lock for (lock,) in await con.fetch(RENEW, locks, lease_ms))
    return [counts[lock] for lock in locks]


async def release(con: Connection, lock: bytes, rows: Sequence[bytes]) -> None:
    for (queue,) in await con.fetch(RELEASE, rows, lock):
        con.wake(queue)


async def release_all(con: Connection) -> int:
    """Frees the rows that earlier processes of this daemon had acquired; how many."""
    released = await con.fetch(RELEASE_ALL, con.daemon)
    for (queue,) in released:
        con.wake(queue)
    return len(released)


async def outlook(con: Connection, queue: str, except_flows: frozenset[str]) -> Outlook:
    """In wall time: a lease is expected to end as it will unless the wall clock is set."""
    found = await con.first(OUTLOOK, queue, sorted(except_flows))
    assert found is not None
    has_due, *coming = found
    return Outlook(bool(has_due), min((at for at in coming if at is not None), default=None))


_RETURNED: Final = "n, id, body_id, bits, attempt, due_ms, :raw(error_history), count, write_id"
LEASE: Final = Statement(
    f"""UPDATE runs
    SET is_due = FALSE, lock_uuid = $2, scheduled_at = :lease_now + $3, holder = $4
    WHERE n = ANY ($1) RETURNING {_RETURNED}""",
    sqlite=f"""UPDATE runs SET is_due = FALSE, lock_uuid = $2, scheduled_at = :lease_now + $3
    WHERE n = ANY ($1) AND {guard(ColdMove.ACQUIRE)} AND is_due = TRUE RETURNING {_RETURNED}""",
)
"""SQLite's index may be damaged: what it says is checked against the rows."""
SET_ASIDE: Final = Statement(f"""UPDATE runs SET {set_state(ColdMove.SET_ASIDE)}, is_due = FALSE,
    :unlocked WHERE n = ANY ($1) AND {guard(ColdMove.SET_ASIDE)} RETURNING n, flow, action""")
_SAME: Final = """body_id, state, queue, flow, flow_type, action, key, priority,
    scheduled_at_initially, due_ms, size, attempt, created_at, origin, error_history, write_id,
    changed_at"""


def _split_off(same: str) -> str:
    return f"""INSERT INTO runs (id, bits, count, first_item, is_due, scheduled_at, {same})
    SELECT $2, $3, $4, $5, TRUE, :now, {same} FROM runs WHERE n = $1"""


SPLIT_OFF: Final = Statement(_split_off(f"{_SAME}, brought_by"), sqlite=_split_off(_SAME))
"""In PostgreSQL a row says which daemon brought it."""
RENEW: Final = Statement(f"""UPDATE runs
    SET is_due = FALSE, scheduled_at = :lease_now + $2
    WHERE lock_uuid = ANY ($1) AND {guard(ColdMove.ACQUIRE)} RETURNING lock_uuid""")
_FREED: Final = "is_due = TRUE, :unlocked, scheduled_at = :now"
RELEASE: Final = Statement(f"""UPDATE runs SET {_FREED}
    WHERE id = ANY ($1) AND lock_uuid = $2 AND {guard(ColdMove.RELEASE)} RETURNING queue""")
RELEASE_ALL: Final = Statement(
    f"UPDATE runs SET {_FREED} WHERE holder = $1 AND {guard(ColdMove.RELEASE)} RETURNING queue",
    sqlite=f"""UPDATE runs SET {_FREED} WHERE lock_uuid IS NOT NULL AND {guard(ColdMove.RELEASE)}
    RETURNING queue""",
)
"""SQLite has one daemon: all locks are its own."""


def _of_queue(index: str, is_due: str, more: str = "") -> str:
    return f"""FROM runs INDEXED BY {index} WHERE state = 'COLD_QUEUED' AND is_due = {is_due}
        AND queue = $1 AND flow <> ALL ($2){more}"""


_DUE: Final = _of_queue("runs_due", "TRUE")
_NOT_DUE: Final = _of_queue("runs_later", "FALSE")
_LATER: Final = f"{_NOT_DUE} AND lock_uuid IS NULL"
_LEASED: Final = _of_queue("runs_leased", "FALSE", " AND lock_uuid IS NOT NULL")
OUTLOOK: Final = Statement(
    f"""SELECT EXISTS (SELECT 1 {_DUE}) OR EXISTS (SELECT 1 {_NOT_DUE} AND scheduled_at <= :now),
    (SELECT scheduled_at {_NOT_DUE} AND scheduled_at > :now AND scheduled_at < {FAR_MS}
        ORDER BY scheduled_at LIMIT 1)""",
    sqlite=f"""SELECT EXISTS (SELECT 1 {_DUE})
        OR EXISTS (SELECT 1 {_LATER} AND scheduled_at <= :now)
        OR EXISTS (SELECT 1 {_LEASED} AND scheduled_at <= :lease_now),
    (SELECT scheduled_at {_LATER} AND scheduled_at > :now ORDER BY scheduled_at LIMIT 1),
    (SELECT scheduled_at + :now - :lease_now {_LEASED} AND scheduled_at > :lease_now
        ORDER BY scheduled_at LIMIT 1)""",
)
"""In SQLite each clock has an index of its own."""
