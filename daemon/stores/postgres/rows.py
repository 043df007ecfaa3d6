"""Rows and bodies of the cold tier in PostgreSQL: how they are written, read back, and removed.

Many rows are one statement. A body is inserted if it is not there and one of its rows is new, and
goes with its last row.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from actors.model.moves import ColdMove, guard
from actors.model.slices import lowest_bit
from actors.ports.tiers import NewRow
from daemon.stores.cold.rows import (
    FAILED,
    QUEUED,
    STORED,
    Bodies,
    Unpacked,
    listed_runs,
    pack_bits,
    row_values,
)
from daemon.stores.cold.text import to_text
from daemon.stores.postgres.connection import Connection

NOW: Final = "coalesce($1::bigint, (extract(epoch FROM statement_timestamp()) * 1000)::bigint)"
"""The time: the server's, unless the first value of a statement says otherwise."""


class PostgresRows:
    """`RowTable` for the steps."""

    def __init__(self, con: Connection, daemon: bytes, now_ms: int | None) -> None:
        self._con = con
        self._daemon = daemon
        self._now_ms = now_ms

    async def insert(
        self,
        rows: Sequence[NewRow],
        runs: Unpacked,
        *,
        is_stored: bool = False,
        known_bodies: Collection[bytes] = (),
    ) -> set[bytes]:
        if not rows:
            return set()
        bodies = {row.head.run_id: row.data for row in rows}
        for body_id in known_bodies:
            bodies.pop(body_id, None)
        values = [row_values(row, runs) | {"is_dead": row.is_dead} for row in rows]
        ids = sorted(bodies)
        inserted = await self._con.fetch(
            INSERT_ROWS,
            self._now_ms,
            self._daemon,
            is_stored,
            ids,
            [bodies[body_id] for body_id in ids],
            *(_column(name, values) for name in _COLUMNS),
        )
        await _note_aliases(self._con, bodies)
        return {id_ for (id_,) in inserted}

    async def shrink(self, rests: Mapping[int, int]) -> None:
        if rests:
            await self._con.execute(
                SHRINK,
                list(rests),
                [pack_bits(bits) for bits in rests.values()],
                [bits.bit_count() for bits in rests.values()],
                [lowest_bit(bits) for bits in rests.values()],
            )

    async def delete(self, ns: Collection[int]) -> None:
        if ns:
            await self._con.execute("DELETE FROM runs WHERE n = ANY ($1)", list(ns))

    async def drop_claimed(self, consumer: int) -> None:
        gone = await self._con.fetch(DROP_CLAIMED, consumer)
        await self.drop_bodies(body_id for (body_id,) in gone)

    async def insert_bodies(self, bodies: Mapping[bytes, bytes]) -> None:
        if bodies:
            ids = sorted(bodies)
            await self._con.execute(INSERT_BODIES, ids, [bodies[body_id] for body_id in ids])
            await _note_aliases(self._con, bodies)

    async def lock_bodies(self, ids: Iterable[bytes]) -> None:
        await self._con.execute(LOCK_BODIES, sorted(set(ids)))

    async def drop_bodies(self, ids: Iterable[bytes]) -> None:
        wanted = sorted(set(ids))
        if wanted:
            await self._con.execute("SELECT drop_bodies($1)", wanted)

    async def read_bodies(self, ids: Iterable[bytes]) -> Bodies:
        wanted = sorted(set(ids))
        return Bodies(dict(await self._con.fetch(SELECT_BODIES, wanted) if wanted else ()))


async def _note_aliases(con: Connection, bodies: Mapping[bytes, bytes]) -> None:
    """Parts of runs are found by the runs whose items they list."""
    pairs = [(run_id, body_id) for body_id, data in bodies.items() for run_id in listed_runs(data)]
    if pairs:
        run_ids, body_ids = zip(*sorted(pairs), strict=True)
        await con.execute(INSERT_ALIASES, list(run_ids), list(body_ids))


def _column(name: str, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    column = [row[name] for row in rows]
    if _COLUMNS[name] != "text":
        return column
    return [value if value is None else to_text(value) for value in column]


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
DROP_CLAIMED: Final = f"""DELETE FROM runs
    WHERE {guard(ColdMove.ACKNOWLEDGE)} AND consumer = $1 RETURNING body_id"""
SELECT_BODIES: Final = "SELECT id, data FROM bodies WHERE id = ANY ($1)"
SHRINK: Final = """UPDATE runs SET bits = rest.bits, count = rest.count, first_item = rest.first
    FROM unnest($1::bigint[], $2::bytea[], $3::integer[], $4::integer[])
        AS rest (n, bits, count, first)
    WHERE runs.n = rest.n"""
