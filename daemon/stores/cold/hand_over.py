"""Rows change their owner: stored, invisible; then confirmed, or forgotten."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from actors.model.keys import KeyRules
from actors.model.moves import ColdMove, guard
from actors.ports.tiers import NewRow, Unconfirmed
from daemon.stores.cold.books import Books, Place
from daemon.stores.cold.connection import Connection
from daemon.stores.cold.offers import Arrival, admit
from daemon.stores.cold.rows import (
    FAILED,
    FAR_MS,
    QUEUED,
    Unpacked,
    under_own_ids,
    unpack_bits,
)
from daemon.stores.cold.statement import Statement

AT_ONCE: Final = 4096
"""Rows of one statement: after a crash there may be very many."""


async def store(con: Connection, rows: Sequence[NewRow]) -> None:
    """Rows that are there stay as they are."""
    ids = sorted({row.head.run_id for row in rows})
    stored: dict[bytes, bytes] = {}
    for part in _parts(ids):
        for body_id, data in await con.fetch(SELECT_BODIES, part):
            stored[body_id] = data
    own = under_own_ids(rows, stored)
    await con.rows.insert(own, Unpacked(), is_stored=True, known_bodies=stored)


async def confirm(
    con: Connection, rows: Mapping[bytes | None, Sequence[bytes]], rules: KeyRules
) -> None:
    """Makes rows visible. `rows`: by the epoch of a shared warm queue that they are about to enter;
    None: by none."""
    books = Books()
    keyed: dict[str, list[Arrival]] = {}
    found: list[Sequence[Any]] = []
    for epoch, ids in rows.items():
        for part in _parts(ids):
            found += await con.fetch(CONFIRM, part, epoch)
    for count, is_dead, is_due, queue, flow, action, write, n, body_id, bits, attempt in found:
        place = Place(queue, flow, action)
        books.take(place, count, write, is_dead=bool(is_dead))
        if is_due:
            con.wake(queue)
        if write is not None and not is_dead and not attempt and rules(queue).policy != "off":
            keyed.setdefault(queue, []).append(Arrival(n, body_id, unpack_bits(bits), place, write))
    for queue, arrivals in sorted(keyed.items()):
        # In the order in which the runs were made.
        arrivals.sort(key=lambda row: (row.body_id, row.n))
        await admit(con, queue, arrivals, rules(queue), books)
    await con.record(books)


async def unconfirmed(con: Connection) -> list[Unconfirmed]:
    """Rows that this daemon has stored and not confirmed."""
    return [Unconfirmed(*row) for row in await con.fetch(SELECT_UNCONFIRMED, con.daemon)]


async def forget(con: Connection, rows: Sequence[bytes]) -> None:
    """Rows that were not confirmed are gone."""
    for part in _parts(rows):
        gone = await con.fetch(FORGET, part)
        await con.rows.drop_bodies(body_id for (body_id,) in gone)


def _parts(ids: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(ids), AT_ONCE):
        yield ids[start : start + AT_ONCE]


SELECT_BODIES: Final = Statement("SELECT id, data FROM bodies WHERE id = ANY ($1)")
_STORED: Final = guard(ColdMove.CONFIRM, ColdMove.FORGET).replace("state", "state || ''")
"""In other words than the index `runs_stored` has, so that rows are found by their ids: a plan of
PostgreSQL that was prepared for any number of ids went through all of that index for each of them.
To confirm 2,000 rows took 3.1 s where 20,000 had been confirmed since the last vacuum, and takes
0.1."""
_VISIBLE: Final = f"""UPDATE runs SET
    state = CASE WHEN died_at IS NULL THEN '{QUEUED}' ELSE '{FAILED}' END"""
_CONFIRMED: Final = f"""WHERE id = ANY ($1) AND {_STORED}
    RETURNING count, died_at IS NOT NULL, is_due, queue, flow, action, write_id, n, body_id, bits,
        attempt"""
# No daemons share SQLite's rows, so that they enter no shared warm queue.
CONFIRM: Final = Statement(
    f"""{_VISIBLE},
    is_due = died_at IS NULL AND $2::bytea IS NULL AND (due_ms = 0 OR scheduled_at <= :now),
    lock_uuid = $2::bytea,
    scheduled_at = CASE WHEN $2::bytea IS NULL THEN scheduled_at ELSE :now + {FAR_MS} END
    {_CONFIRMED}""",
    sqlite=f"""{_VISIBLE},
    is_due = died_at IS NULL AND (due_ms = 0 OR scheduled_at <= :now)
    {_CONFIRMED}""",
)
SELECT_UNCONFIRMED: Final = Statement(
    """SELECT id, origin, queue, count FROM runs
    WHERE state = 'STORED' AND brought_by = $1 ORDER BY id""",
    sqlite="""SELECT id, origin, queue, count FROM runs INDEXED BY runs_stored
    WHERE state = 'STORED' AND $1 IS NOT NULL ORDER BY id""",
)
FORGET: Final = Statement(f"DELETE FROM runs WHERE id = ANY ($1) AND {_STORED} RETURNING body_id")
