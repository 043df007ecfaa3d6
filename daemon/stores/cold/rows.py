"""Rows and bodies of the cold tier: what both stores read, write and check in the same way.

A row of `runs` is a set of items that share a body and a state. A body is inserted if it is not
there, whichever row brings it, and goes with its last row. A row is inserted if its id is not
there.

Can a row come back that was stored, confirmed, settled and deleted? Only if `store` were called
again after `confirm`. In a hand-over the former owner stores, marks the run as handed over on its
own disk, and confirms; it may repeat the first step until the second has happened, never after it,
and a step that has begun is waited for, so that none arrives late. After a crash the owner goes
on from its marks, and what is unconfirmed is either confirmed or forgotten. So no trace of deleted
rows is kept.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from actors.model.moves import Row
from actors.model.slices import ItemError, error_rows, lowest_bit, read_error
from actors.ports.tiers import NewRow
from actors.spooler.intake import fingerprint
from daemon.stores.cold.books import Place
from forebay.errors import BadRun
from forebay.ids import RUN_ID_BYTES, format_item_id
from forebay.run import IDS, KEYS, Run, RunHead, read_head, take_items, verify
from forebay.stage_frames import write_of

STORED: Final = Row.STORED.value
QUEUED: Final = Row.QUEUED.value
FAILED: Final = Row.FAILED.value
CORRUPT: Final = Row.CORRUPT.value
FAR_MS: Final = 10**15
"""How long rows are leased that a shared warm queue has (daemon/stores/postgres/shared_rows.py)."""


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


def row_values(new: NewRow, runs: Unpacked) -> dict[str, Any]:
    """The columns of a new row, beside its state and the times that depend on the clock.

    ValueError if its items are not its run's."""
    head, count = new.head, new.bits.bit_count()
    if not 0 < new.bits < 1 << head.count:
        raise ValueError(f"a row of {count} items, of a run of {head.count}")
    if new.is_dead and count != 1:
        raise ValueError(f"a dead letter of {count} items")
    first = lowest_bit(new.bits)
    last_error = new.errors[-1] if new.errors else None
    has_key = new.is_dead or head.count == 1
    return {
        "id": new.row,
        "body_id": head.run_id,
        "queue": head.queue,
        "flow": head.flow,
        "flow_type": head.headers().get("flow_type", "") if head.packed_headers else "",
        "action": head.action,
        "key": key_of(head, new.data, first, runs) if has_key else None,
        "priority": head.priority,
        "scheduled_at_initially": head.due_ms or head.enqueued_ms,
        "due_ms": new.due_ms,
        "first_item": first,
        "count": count,
        "size": len(new.data),
        "attempt": new.attempt,
        "created_at": head.enqueued_ms,
        "origin": new.origin,
        "item_id": item_id_of(head, new.data, first, runs) if new.is_dead else None,
        "died_at": last_error.at_ms if last_error and new.is_dead else None,
        "error_folded": fold(last_error.text if last_error else "") if new.is_dead else None,
        "bits": pack_bits(new.bits),
        "error_history": json.dumps(error_rows(new.errors)),
        "headers": head.packed_headers if new.is_dead else None,
        "write_id": runs.write(head),
        "failure_reason": last_error.failure_reason if last_error and new.is_dead else None,
        "changed_at": new.changed_ms or None,
    }


def listed_runs(data: bytes) -> set[bytes]:
    """The ids of the runs whose items a run lists; none where they are its own, or unreadable."""
    head = read_head(data)
    if not head.flags & IDS:
        return set()
    try:
        return {packed[:RUN_ID_BYTES] for packed in Run(head, data).packed_ids()}
    except BadRun:
        return set()


class Bodies:
    """Bodies that were read together, each verified when it is looked at first."""

    def __init__(self, data: Mapping[bytes, bytes], bad: Mapping[bytes, str] | None = None) -> None:
        """`bad`: those that the database could not read, and why."""
        self._data = data
        self._bad = bad or {}
        self._good: dict[bytes, tuple[RunHead, bytes]] = {}

    def get(self, body_id: bytes) -> tuple[RunHead, bytes]:
        """BadRow if it is not what was stored."""
        if body_id not in self._good:
            data = self._data.get(body_id)
            if data is None:
                raise BadRow(self._bad.get(body_id, "its body is missing"))
            self._good[body_id] = checked(body_id, data), data
        return self._good[body_id]


def own_bits(packed: object, head: RunHead) -> int:
    """BadRow if these are not items of the run."""
    bits = unpack_bits(packed) if isinstance(packed, bytes) else 0
    if not 0 < bits < 1 << head.count:
        raise BadRow("its items are not its body's")
    return bits


def fitting(
    found: Sequence[Sequence[Any]], rows_max: int, bytes_max: int, *, is_begun: bool = False
) -> Sequence[Sequence[Any]]:
    """The first of them, as many as an answer has room for, and one in any case unless the answer
    has begun already. The second column is a row's size."""
    room = bytes_max
    for at, (_, size, *_) in enumerate(found):
        if (at or is_begun) and (at == rows_max or size > room):
            return found[:at]
        room -= size
    return found


def fingerprint_of(data: bytes) -> int:
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
        # The delivery reports it; here the key is only a text to show.
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


def checked(body_id: bytes, data: bytes) -> RunHead:
    try:
        head = read_head(data)
        verify(head, data)
    except (BadRun, TypeError) as error:
        raise BadRow(str(error)) from error
    if head.run_id != body_id:
        raise BadRow("its body is another's")
    return head
