"""Rows and bodies of the cold tier: how they are written, read back, and removed.

A body is inserted if it is not there, whichever row brings it, and goes with its last row. A row
is inserted if its id is not there.

Can a row come back that was stored, confirmed, settled and deleted? Only if `store` were called
again after `confirm`. In a hand-over the former owner stores, marks the run as handed over on its
own disk, and confirms; it may repeat the first step until the second has happened, never after it,
and a step that has begun is waited for, so that none arrives late. After a crash the owner goes
on from its marks, and what is unconfirmed is either confirmed or forgotten. So no trace of deleted
rows is kept.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from actors.model.clock import retry_due_ms
from actors.model.moves import Row
from actors.model.slices import ItemError, error_rows, lowest_bit, read_error
from actors.ports.tiers import ColdRow, NewRow
from actors.spooler.intake import fingerprint
from daemon.stores.sqlite.books import Place
from daemon.stores.sqlite.connection import is_corrupt
from forebay.errors import BadRun
from forebay.ids import RUN_ID_BYTES, format_item_id
from forebay.run import IDS, KEYS, Run, RunHead, read_head, take_items, verify
from forebay.stage_frames import write_of

STORED: Final = Row.STORED.value
QUEUED: Final = Row.QUEUED.value
FAILED: Final = Row.FAILED.value
CORRUPT: Final = Row.CORRUPT.value


class BadRow(Exception):
    """What is stored for a row makes no sense."""


class Unpacked:
    """The runs that one step unpacks, each once: a thousand dead letters may share a body."""

    def __init__(self) -> None:
        self._runs: dict[bytes, Run] = {}
        self._writes: dict[bytes, bytes | None] = {}

    def run(self, head: RunHead, data: bytes) -> Run:
        if head.run_id not in self._runs:
            self._runs[head.run_id] = Run(head, data)
        return self._runs[head.run_id]

    def get(self, run_id: bytes) -> Run | None:
        return self._runs.get(run_id)

    def write(self, head: RunHead) -> bytes | None:
        """The write that a run belongs to."""
        if not head.packed_headers:
            return None
        if head.run_id not in self._writes:
            self._writes[head.run_id] = write_of(head)
        return self._writes[head.run_id]


def insert_row(db: sqlite3.Connection, new: NewRow, state: str, now: int, runs: Unpacked) -> bool:
    """False: there is a row with this id already."""
    head, count, due_ms = new.head, new.bits.bit_count(), new.due_ms
    if not 0 < new.bits < 1 << head.count:
        raise ValueError(f"a row of {count} items, of a run of {head.count}")
    if new.is_dead and count != 1:
        raise ValueError(f"a dead letter of {count} items")
    first = lowest_bit(new.bits)
    last_error = new.errors[-1] if new.errors else None
    if last_error and due_ms:
        due_ms = retry_due_ms(due_ms, last_error.at_ms, now)
    at = due_ms or now
    is_row_new = db.execute(
        _INSERT_ROW,
        (
            new.row,
            head.run_id,
            state,
            int(state == QUEUED and at <= now),
            head.queue,
            head.flow,
            head.headers().get("flow_type", "") if head.packed_headers else "",
            head.action,
            key_of(head, new.data, first, runs) if new.is_dead or head.count == 1 else None,
            head.priority,
            at,
            head.due_ms or head.enqueued_ms,
            due_ms,
            first,
            count,
            len(new.data),
            new.attempt,
            head.enqueued_ms,
            new.origin,
            item_id_of(head, new.data, first, runs) if new.is_dead else None,
            (last_error.at_ms if last_error else now) if new.is_dead else None,
            fold(last_error.text if last_error else "") if new.is_dead else None,
            pack_bits(new.bits),
            json.dumps(error_rows(new.errors)),
            head.packed_headers if new.is_dead else None,
            runs.write(head),
            last_error.failure_reason if last_error and new.is_dead else None,
            new.changed_ms or None,
        ),
    ).rowcount
    if not is_row_new:
        return False
    insert_body(db, head.run_id, new.data)
    return True


def insert_body(db: sqlite3.Connection, body_id: bytes, data: bytes) -> None:
    # Looked up first: a body that is there need not be handed to SQLite only to be refused.
    if not db.execute("SELECT 1 FROM bodies WHERE id = ?", (body_id,)).fetchone():
        db.execute("INSERT INTO bodies (id, data) VALUES (?, ?)", (body_id, data))
        aliases = [(run_id, body_id) for run_id in listed_runs(data)]
        db.executemany("INSERT INTO aliases VALUES (?, ?) ON CONFLICT DO NOTHING", aliases)


def listed_runs(data: bytes) -> set[bytes]:
    """The ids of the runs whose items a run lists; none where they are its own, or unreadable."""
    head = read_head(data)
    if not head.flags & IDS:
        return set()
    try:
        return {packed[:RUN_ID_BYTES] for packed in Run(head, data).packed_ids()}
    except BadRun:
        return set()


def delete_row(db: sqlite3.Connection, n: int) -> None:
    """The caller also drops the body."""
    db.execute("DELETE FROM runs WHERE n = ?", (n,))


def drop_body(db: sqlite3.Connection, body_id: bytes) -> None:
    """Removes a body, unless a row needs it, of runs or of history."""
    db.execute(DROP_BODY, (body_id,))


def read_body(db: sqlite3.Connection, body_id: bytes) -> tuple[RunHead, bytes]:
    """The body, its checksum verified; BadRow if it is not what was stored."""
    found = read_bodies(db, [body_id])
    if body_id not in found:
        raise BadRow("its body is missing")
    return found[body_id]


def read_bodies(
    db: sqlite3.Connection, body_ids: Sequence[bytes]
) -> dict[bytes, tuple[RunHead, bytes]]:
    """Those that are there, verified; BadRow if one of them is not what was stored."""
    found = {}
    try:
        for body_id, data in db.execute(bodies_sql(len(body_ids)), body_ids):
            found[body_id] = _checked(body_id, data), data
    except sqlite3.Error as error:
        if is_corrupt(error):
            raise BadRow(str(error)) from error
        raise
    return found


def _checked(body_id: bytes, data: bytes) -> RunHead:
    try:
        head = read_head(data)
        verify(head, data)
    except (BadRun, TypeError) as error:
        raise BadRow(str(error)) from error
    if head.run_id != body_id:
        raise BadRow("its body is another's")
    return head


class LeasedRow(NamedTuple):
    """What is stored for a row that was acquired, as it was found."""

    id: bytes
    bits: object
    attempt: int
    due_ms: int
    error_history: bytes

    def of(self, head: RunHead, data: bytes) -> ColdRow:
        """The row, of this body; BadRow if it makes no sense."""
        bits = unpack_bits(self.bits) if isinstance(self.bits, bytes) else 0
        if not 0 < bits < 1 << head.count:
            raise BadRow("its items are not its body's")
        errors = read_errors(self.error_history)
        return ColdRow(self.id, head, data, bits, self.attempt, self.due_ms, errors)


def content_of(data: bytes) -> int:
    """The fingerprint of a body; one that no run has if the body is damaged."""
    try:
        return fingerprint(read_head(data), data)
    except BadRun:
        return -1


def under_own_ids(rows: Sequence[NewRow], bodies: Mapping[bytes, bytes]) -> list[NewRow]:
    """The rows, each on a body of its own run.

    Where another run's body has a run's id already, because a client has used the id twice, the
    run gets a new id. Its items keep theirs. `bodies`: those that are stored, by their ids.
    """
    known = dict(bodies)
    found: list[NewRow] = []
    for row in rows:
        if known.setdefault(row.head.run_id, row.data) != row.data:
            # A run that cannot be unpacked stays as it is, and is set aside.
            with suppress(BadRun):
                data = take_items(Run(row.head, row.data), range(row.head.count))
                row = replace(row, head=read_head(data), data=data)
        found.append(row)
    return found


def place_of(head: RunHead) -> Place:
    return Place(head.queue, head.flow, head.action)


def pack_bits(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def unpack_bits(packed: bytes) -> int:
    return int.from_bytes(packed, "little")


def read_errors(history: bytes) -> tuple[ItemError, ...]:
    try:
        return tuple(map(read_error, json.loads(history)))
    except (ValueError, TypeError) as error:
        raise BadRow(f"its error history: {error}") from error


def fold(text: str) -> str:
    """For a search that ignores case, in this and in any other store."""
    return text.casefold().encode(errors="replace").decode()


def key_of(head: RunHead, data: bytes, index: int, runs: Unpacked) -> str | None:
    if not head.flags & KEYS:
        return None
    try:
        key = runs.run(head, data).keys(index, index + 1)[0]
    except BadRun:
        # Whoever delivers the item will say so; here it is only a text to be shown.
        return None
    return key.decode(errors="replace") or None


def item_id_of(head: RunHead, data: bytes, index: int, runs: Unpacked) -> str:
    if head.flags & IDS:
        try:
            return runs.run(head, data).item_ids(index, index + 1)[0]
        except BadRun:
            pass
    return format_item_id(head.run_id, index)


_OF_LETTERS: Final = """SELECT 1 FROM aliases AS own WHERE own.body_id = runs.body_id AND (
        EXISTS (SELECT 1 FROM history AS past
            WHERE past.body_id = own.run_id AND past.outcome = 'deleted')
        OR EXISTS (SELECT 1 FROM runs AS letter
            WHERE letter.body_id = own.run_id AND letter.state = 'FAILED')
        OR EXISTS (SELECT 1 FROM aliases AS part JOIN history AS past
            ON past.body_id = part.body_id
            WHERE part.run_id = own.run_id AND past.outcome = 'deleted')
        OR EXISTS (SELECT 1 FROM aliases AS part JOIN runs AS letter
            ON letter.body_id = part.body_id
            WHERE part.run_id = own.run_id AND letter.state = 'FAILED'))"""
HAS_FAILED: Final = f"(attempt > 0 OR error_history <> '[]' OR EXISTS ({_OF_LETTERS}))"
"""Of a row of `runs`: its items have failed before, or were dead letters and were pushed again."""
DROP_BODY: Final = """DELETE FROM bodies WHERE id = ?1
    AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.body_id = ?1)
    AND NOT EXISTS (SELECT 1 FROM history WHERE history.body_id = ?1)"""
_INSERT_ROW: Final = """INSERT INTO runs (
    id, body_id, state, is_due, queue, flow, flow_type, action, key, priority, scheduled_at,
    scheduled_at_initially, due_ms, first_item, count, size, attempt, created_at, origin, item_id,
    died_at, error_folded, bits, error_history, headers, write_id, failure_reason, changed_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING"""


def bodies_sql(count: int) -> str:
    return f"SELECT id, data FROM bodies WHERE id IN ({', '.join('?' * count)})"
