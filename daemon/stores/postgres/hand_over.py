"""Rows change their owner: stored, invisible; then confirmed, or forgotten."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from actors.model.keys import KeyRules
from actors.model.moves import ColdMove, guard
from actors.ports.tiers import NewRow, Unconfirmed
from daemon.stores.cold.books import Place
from daemon.stores.cold.offers import Arrival, admit
from daemon.stores.cold.rows import FAILED, QUEUED, Unpacked, under_own_ids, unpack_bits
from daemon.stores.cold.text import from_text
from daemon.stores.postgres.books import SharedBooks
from daemon.stores.postgres.connection import Connection
from daemon.stores.postgres.rows import FAR_MS, NOW, SELECT_BODIES, drop_bodies, insert_rows
from daemon.stores.postgres.steps import PostgresConnection


async def store(con: Connection, rows: Sequence[NewRow], daemon: bytes, now_ms: int | None) -> None:
    if rows:
        stored = dict(await con.fetch(SELECT_BODIES, sorted({row.head.run_id for row in rows})))
        own = under_own_ids(rows, stored)
        await insert_rows(con, own, daemon, now_ms, Unpacked(), is_stored=True)


async def confirm(
    con: Connection,
    rows: Mapping[bytes | None, Sequence[bytes]],
    daemon: bytes,
    rules: KeyRules,
    now_ms: int | None,
) -> set[str]:
    """The queues that have something due now. `rows`: by the epoch of a shared warm queue that they
    are about to enter; None: by none."""
    books, due = SharedBooks(), set()
    keyed: dict[str, list[Arrival]] = {}
    found: list[Sequence[Any]] = []
    for epoch, ids in rows.items():
        if ids:
            found += await con.fetch(CONFIRM, now_ms, list(ids), epoch)
    for count, is_dead, is_due, queue, flow, action, write, n, body_id, bits, attempt in found:
        place = Place(queue, from_text(flow), from_text(action))
        books.take(place, count, write, is_dead=is_dead)
        if is_due:
            due.add(queue)
        if write is not None and not is_dead and not attempt and rules(queue).policy != "off":
            keyed.setdefault(queue, []).append(Arrival(n, body_id, unpack_bits(bits), place, write))
    for queue, waiting in sorted(keyed.items()):
        # In the order in which the runs were made.
        waiting.sort(key=lambda row: (row.body_id, row.n))
        steps = PostgresConnection(con, daemon, now_ms)
        await admit(steps, queue, waiting, rules(queue), books)
    await books.record(con, daemon)
    return due


async def unconfirmed(con: Connection, daemon: bytes) -> list[Unconfirmed]:
    return [Unconfirmed(*row) for row in await con.fetch(SELECT_UNCONFIRMED, daemon)]


async def forget(con: Connection, rows: Sequence[bytes]) -> None:
    gone = await con.fetch(FORGET, list(rows))
    await drop_bodies(con, (body_id for (body_id,) in gone))


_STORED: Final = guard(ColdMove.CONFIRM, ColdMove.FORGET).replace("state", "state || ''")
"""In other words than the index `runs_stored` has, so that rows are found by their ids: a plan that
was prepared for any number of ids went through all of that index for each of them. To confirm
2,000 rows took 3.1 s where 20,000 had been confirmed since the last vacuum, and takes 0.1."""
CONFIRM: Final = f"""UPDATE runs SET
    state = CASE WHEN died_at IS NULL THEN '{QUEUED}' ELSE '{FAILED}' END,
    is_due = died_at IS NULL AND $3::bytea IS NULL AND (due_ms = 0 OR scheduled_at <= {NOW}),
    lock_uuid = $3,
    scheduled_at = CASE WHEN $3::bytea IS NULL THEN scheduled_at ELSE {NOW} + {FAR_MS} END
    WHERE id = ANY ($2) AND {_STORED}
    RETURNING count, died_at IS NOT NULL, is_due, queue, flow, action, write_id, n, body_id, bits,
        attempt"""
SELECT_UNCONFIRMED: Final = """SELECT id, origin, queue, count FROM runs
    WHERE state = 'STORED' AND brought_by = $1 ORDER BY id"""
FORGET: Final = f"DELETE FROM runs WHERE id = ANY ($1) AND {_STORED} RETURNING body_id"
