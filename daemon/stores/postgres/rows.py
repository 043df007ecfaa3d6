"""Rows and bodies of the cold tier in PostgreSQL: how they are written, read back, and removed.

Many rows are one statement. A body is inserted if it is not there and one of its rows is new, and
goes with its last row. What is said in daemon/stores/sqlite/rows.py about rows that come back goes
here too.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from actors.model.slices import error_rows, lowest_bit
from actors.ports.tiers import NewRow
from daemon.stores.postgres.connection import Connection
from daemon.stores.postgres.text import to_text
from daemon.stores.sqlite.rows import (
    FAILED,
    QUEUED,
    STORED,
    BadRow,
    Unpacked,
    fold,
    item_id_of,
    key_of,
    listed_runs,
    pack_bits,
)
from forebay.errors import BadRun
from forebay.run import RunHead, read_head, verify

NOW: Final = "coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000)::bigint)"
"""The time: the server's, unless the first value of a statement says otherwise."""


FAR_MS: Final = 10**15
"""How long rows are leased that a shared warm queue has (daemon/stores/postgres/shared_rows.py)."""


async def insert_rows(
    con: Connection,
    rows: Sequence[NewRow],
    brought_by: bytes,
    now_ms: int | None,
    runs: Unpacked,
    *,
    is_stored: bool,
    known_bodies: Iterable[bytes] = (),
) -> set[bytes]:
    """The ids of those that are new. `is_stored`: not visible yet. ValueError as in `_values`."""
    bodies = {row.head.run_id: row.data for row in rows}
    for body_id in known_bodies:
        bodies.pop(body_id, None)
    columns = zip(*(_values(row, runs) for row in rows), strict=True)
    ids = sorted(bodies)
    inserted = await con.fetch(
        INSERT_ROWS,
        now_ms,
        brought_by,
        is_stored,
        ids,
        [bodies[body_id] for body_id in ids],
        *(list(column) for column in columns),
    )
    await _note_aliases(con, bodies)
    return {id_ for (id_,) in inserted}


async def insert_bodies(con: Connection, bodies: Mapping[bytes, bytes]) -> None:
    ids = sorted(bodies)
    await con.execute(INSERT_BODIES, ids, [bodies[body_id] for body_id in ids])
    await _note_aliases(con, bodies)


async def _note_aliases(con: Connection, bodies: Mapping[bytes, bytes]) -> None:
    """Parts of runs are found by the runs whose items they list."""
    pairs = [(run_id, body_id) for body_id, data in bodies.items() for run_id in listed_runs(data)]
    if pairs:
        run_ids, body_ids = zip(*sorted(pairs), strict=True)
        await con.execute(INSERT_ALIASES, list(run_ids), list(body_ids))


async def lock_bodies(con: Connection, ids: Iterable[bytes]) -> None:
    """To be called by whoever stores rows that need these bodies and then drops some of them: two
    that only found out at the second step would wait for each other."""
    await con.execute(LOCK_BODIES, sorted(set(ids)))


async def drop_bodies(con: Connection, ids: Iterable[bytes]) -> None:
    """Removes bodies, unless a row needs them, of runs or of history."""
    wanted = sorted(set(ids))
    if wanted:
        await con.execute("SELECT drop_bodies($1)", wanted)


class Bodies:
    """Bodies that were read together, their checksums verified as they are looked at."""

    def __init__(self, data: Mapping[bytes, bytes]) -> None:
        self._data = data
        self._good: dict[bytes, tuple[RunHead, bytes]] = {}

    def get(self, body_id: bytes) -> tuple[RunHead, bytes]:
        """BadRow if it is not what was stored."""
        if body_id not in self._good:
            self._good[body_id] = _verified(body_id, self._data.get(body_id))
        return self._good[body_id]


async def read_bodies(con: Connection, ids: Iterable[bytes]) -> Bodies:
    wanted = sorted(set(ids))
    found = await con.fetch(SELECT_BODIES, wanted) if wanted else ()
    return Bodies(dict(found))


def own_bits(packed: bytes, bits_of: RunHead) -> int:
    """BadRow if these are not items of the run."""
    bits = int.from_bytes(packed, "little")
    if not 0 < bits < 1 << bits_of.count:
        raise BadRow("its items are not its body's")
    return bits


def _verified(body_id: bytes, data: bytes | None) -> tuple[RunHead, bytes]:
    if data is None:
        raise BadRow("its body is missing")
    try:
        head = read_head(data)
        verify(head, data)
    except BadRun as error:
        raise BadRow(str(error)) from error
    if head.run_id != body_id:
        raise BadRow("its body is another's")
    return head, data


def _values(new: NewRow, runs: Unpacked) -> tuple[Any, ...]:
    """One row, in the order of `_COLUMNS`; ValueError if its items are not its run's."""
    head, count = new.head, new.bits.bit_count()
    if not 0 < new.bits < 1 << head.count:
        raise ValueError(f"a row of {count} items, of a run of {head.count}")
    if new.is_dead and count != 1:
        raise ValueError(f"a dead letter of {count} items")
    first = lowest_bit(new.bits)
    last_error = new.errors[-1] if new.errors else None
    has_key = new.is_dead or head.count == 1
    key = key_of(head, new.data, first, runs) if has_key else None
    return (
        new.row,
        head.run_id,
        new.is_dead,
        head.queue,
        to_text(head.flow),
        to_text(head.headers().get("flow_type", "")) if head.packed_headers else "",
        to_text(head.action),
        None if key is None else to_text(key),
        head.priority,
        head.due_ms or head.enqueued_ms,
        new.due_ms,
        first,
        count,
        len(new.data),
        new.attempt,
        head.enqueued_ms,
        new.origin,
        item_id_of(head, new.data, first, runs) if new.is_dead else None,
        last_error.at_ms if last_error and new.is_dead else None,
        to_text(fold(last_error.text if last_error else "")) if new.is_dead else None,
        pack_bits(new.bits),
        json.dumps(error_rows(new.errors)),
        head.packed_headers if new.is_dead else None,
        runs.write(head),
        last_error.failure_reason if last_error and new.is_dead else None,
        new.changed_ms or None,
    )


_COLUMNS: Final = {
    "id": "bytea",
    "body_id": "bytea",
    "is_dead": "boolean",
    "queue": "text",
    "flow": "text",
    "flow_type": "text",
    "action": "text",
    "key": "text",
    "priority": "smallint",
    "scheduled_at_initially": "bigint",
    "due_ms": "bigint",
    "first_item": "integer",
    "count": "integer",
    "size": "integer",
    "attempt": "integer",
    "created_at": "bigint",
    "origin": "bytea",
    "item_id": "text",
    "died_at": "bigint",
    "error_folded": "text",
    "bits": "bytea",
    "error_history": "text",
    "headers": "bytea",
    "write_id": "bytea",
    "failure_reason": "text",
    "changed_at": "bigint",
}
_PLAIN: Final = [name for name in _COLUMNS if name not in ("is_dead", "died_at")]
_ARRAYS: Final = ", ".join(
    f"${number}::{type_}[]" for number, type_ in enumerate(_COLUMNS.values(), 6)
)
INSERT_ROWS: Final = f"""WITH given AS (
        SELECT *, {NOW} AS now_ms FROM unnest({_ARRAYS})
            WITH ORDINALITY AS given ({", ".join(_COLUMNS)}, place)
    ), inserted AS (
        INSERT INTO runs (
            {", ".join(_PLAIN)}, brought_by, state, is_due, scheduled_at, died_at
        )
        SELECT {", ".join(_PLAIN)}, $2,
            CASE WHEN $3 THEN '{STORED}' WHEN is_dead THEN '{FAILED}' ELSE '{QUEUED}' END,
            NOT $3 AND NOT is_dead AND due_ms <= now_ms,
            CASE WHEN due_ms = 0 THEN now_ms ELSE due_ms END,
            CASE WHEN is_dead THEN coalesce(died_at, now_ms) END
        FROM given ORDER BY place
        ON CONFLICT (id) DO NOTHING RETURNING id, body_id
    ), brought AS (
        INSERT INTO bodies (id, data)
        SELECT body.id, body.data FROM unnest($4::bytea[], $5::bytea[]) AS body (id, data)
        WHERE body.id IN (SELECT body_id FROM inserted) ORDER BY body.id
        ON CONFLICT DO NOTHING
    ) SELECT id FROM inserted"""
INSERT_BODIES: Final = """INSERT INTO bodies (id, data)
    SELECT * FROM unnest($1::bytea[], $2::bytea[]) ON CONFLICT DO NOTHING"""
LOCK_BODIES: Final = """SELECT count(*) FROM (
    SELECT 1 FROM bodies WHERE id = ANY ($1) ORDER BY id FOR UPDATE
) AS locked"""
INSERT_ALIASES: Final = """INSERT INTO aliases (run_id, body_id)
    SELECT * FROM unnest($1::bytea[], $2::bytea[]) AS alias (run_id, body_id)
    WHERE EXISTS (SELECT 1 FROM bodies WHERE id = alias.body_id) ON CONFLICT DO NOTHING"""
SELECT_BODIES: Final = "SELECT id, data FROM bodies WHERE id = ANY ($1)"
