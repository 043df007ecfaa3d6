"""Rows and bodies of the cold tier in SQLite: how they are written, read back, and removed."""

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from actors.model.clock import retry_due_ms
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
from daemon.stores.cold.statement import Now, padded
from daemon.stores.sqlite.connection import is_corrupt


def _insert_row(db: sqlite3.Connection, new: NewRow, state: str, now: int, runs: Unpacked) -> bool:
    values = row_values(new, runs)
    if new.errors and new.due_ms:
        values["due_ms"] = retry_due_ms(new.due_ms, new.errors[-1].at_ms, now)
    if new.is_dead and not new.errors:
        values["died_at"] = now
    at = values["due_ms"] or now
    values |= {
        "state": state,
        "is_due": int(state == QUEUED and at <= now),
        "scheduled_at": at,
    }
    return bool(db.execute(_INSERT_ROW, values).rowcount)


def _insert_body(db: sqlite3.Connection, body_id: bytes, data: bytes) -> None:
    db.execute("INSERT INTO bodies (id, data) VALUES (?, ?)", (body_id, data))
    aliases = [(run_id, body_id) for run_id in listed_runs(data)]
    db.executemany("INSERT INTO aliases VALUES (?, ?) ON CONFLICT DO NOTHING", aliases)


class SqliteRows:
    """`RowTable` for the steps: many statements cost no more than one here."""

    def __init__(self, db: sqlite3.Connection, now: Now) -> None:
        self._db = db
        self._now = now

    async def insert(
        self,
        rows: Sequence[NewRow],
        runs: Unpacked,
        *,
        is_stored: bool = False,
        known_bodies: Collection[bytes] = (),
    ) -> set[bytes]:
        new: set[bytes] = set()
        there = set(known_bodies)
        there |= self._stored({row.head.run_id for row in rows} - there)
        for row in rows:
            state = STORED if is_stored else FAILED if row.is_dead else QUEUED
            if not _insert_row(self._db, row, state, self._now.wall, runs):
                continue
            new.add(row.row)
            if row.head.run_id not in there:
                there.add(row.head.run_id)
                _insert_body(self._db, row.head.run_id, row.data)
        return new

    async def shrink(self, rests: Mapping[int, int]) -> None:
        self._db.executemany(
            SHRINK,
            [(pack_bits(bits), bits.bit_count(), lowest_bit(bits), n) for n, bits in rests.items()],
        )

    async def delete(self, ns: Collection[int]) -> None:
        if ns:
            self._db.execute(DELETE_ROWS, (json.dumps(list(ns)),))

    async def drop_claimed(self, consumer: int) -> None:
        # Before the rows, which say whose the bodies are.
        self._db.execute(DROP_CLAIMED_BODIES, (consumer,))
        self._db.execute(DROP_CLAIMED, (consumer,))

    async def insert_bodies(self, bodies: Mapping[bytes, bytes]) -> None:
        there = self._stored(bodies)
        for body_id, data in bodies.items():
            if body_id not in there:
                _insert_body(self._db, body_id, data)

    async def lock_bodies(self, ids: Iterable[bytes]) -> None:
        """One thread writes."""

    async def drop_bodies(self, ids: Iterable[bytes]) -> None:
        for part in _parts(sorted(set(ids))):
            self._db.execute(DROP_BODIES.format(_marks(len(part))), part)

    async def read_bodies(self, ids: Iterable[bytes]) -> Bodies:
        found: dict[bytes, bytes] = {}
        bad: dict[bytes, str] = {}
        for part in _parts(sorted(set(ids))):
            try:
                found.update(self._read(part))
            except sqlite3.Error as error:
                if not is_corrupt(error):
                    raise
                self._read_singly(part, found, bad)
        return Bodies(found, bad)

    def _stored(self, ids: Collection[bytes]) -> set[bytes]:
        """Those of the bodies that are there."""
        return {
            body_id
            for part in _parts(sorted(ids))
            for (body_id,) in self._db.execute(SELECT_IDS.format(_marks(len(part))), part)
        }

    def _read(self, ids: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        return self._db.execute(bodies_sql(len(ids)), ids).fetchall()

    def _read_singly(
        self, ids: Sequence[bytes], found: dict[bytes, bytes], bad: dict[bytes, str]
    ) -> None:
        """Damage to one body hides no other."""
        for body_id in ids:
            try:
                found.update(self._read([body_id]))
            except sqlite3.Error as error:
                if not is_corrupt(error):
                    raise
                bad[body_id] = str(error)


AT_ONCE: Final = 1024
"""Bodies of one statement."""
SELECT_IDS: Final = "SELECT id FROM bodies WHERE id IN ({})"
SHRINK: Final = "UPDATE runs SET bits = ?, count = ?, first_item = ? WHERE n = ?"
DELETE_ROWS: Final = "DELETE FROM runs WHERE n IN (SELECT value FROM json_each(?))"
DROP_BODIES: Final = """DELETE FROM bodies WHERE id IN ({})
    AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.body_id = bodies.id)
    AND NOT EXISTS (SELECT 1 FROM history WHERE history.body_id = bodies.id)"""
_CLAIMED: Final = (
    f"FROM runs INDEXED BY runs_claimed WHERE {guard(ColdMove.ACKNOWLEDGE)} AND consumer = ?1"
)
DROP_CLAIMED_BODIES: Final = f"""DELETE FROM bodies WHERE id IN (SELECT body_id {_CLAIMED})
    AND NOT EXISTS (
        SELECT 1 FROM runs AS other WHERE other.body_id = bodies.id AND other.consumer IS NOT ?1
    ) AND NOT EXISTS (SELECT 1 FROM history WHERE history.body_id = bodies.id)"""
DROP_CLAIMED: Final = f"DELETE {_CLAIMED}"
_COLUMNS: Final = (
    "id", "body_id", "queue", "flow", "flow_type", "action", "key", "priority",
    "scheduled_at_initially", "due_ms", "first_item", "count", "size", "attempt", "created_at",
    "origin", "item_id", "died_at", "error_folded", "bits", "error_history", "headers", "write_id",
    "failure_reason", "changed_at", "state", "is_due", "scheduled_at",
)  # fmt: skip
_INSERT_ROW: Final = f"""INSERT INTO runs ({", ".join(_COLUMNS)})
    VALUES ({", ".join(f":{name}" for name in _COLUMNS)}) ON CONFLICT (id) DO NOTHING"""


def bodies_sql(count: int) -> str:
    return f"SELECT id, data FROM bodies WHERE id IN ({_marks(count)})"


def _parts(ids: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(ids), AT_ONCE):
        yield padded(ids[start : start + AT_ONCE])


def _marks(count: int) -> str:
    return ", ".join("?" * count)
