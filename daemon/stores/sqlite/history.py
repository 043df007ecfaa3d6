"""History in SQLite: rows of items that are finished, until they are forgotten by age.

Rows that end here are noted in the transaction that ends them; those of the journal are brought by
`note`. A row of history needs its body like any other row, so that a body goes with the last of
both (`drop_body`). Where a queue keeps all, the rows of a run share its body. Where it keeps
failures, a few items would keep a large run on disk for as long as they are remembered: they are
cut out into a run of their own, in which they keep their ids.

On a full disk a step is tried again with the ballast's room, and then without history (`tries`):
what is deleted must make room.

1,000 rows of 1,000 items, bodies of 135 KB, are noted in 0.7 to 1 s, 30 in a transaction; one item
cut out of each, in 0.15 to 0.2; 20,000 rows of one item in 0.4 s, 256 in a transaction. A step that
forgets 200 rows takes 10 to 40 ms with bodies of 135 KB, and usually 1 to 5 with small ones.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Literal, NamedTuple

from actors.model.finished import Keep, Keeps, keep_nothing
from actors.model.slices import HeldBy
from daemon.stores.cold.history import CUT_BYTES_MIN, Cutter
from daemon.stores.cold.rows import BadRow, pack_bits
from daemon.stores.sqlite.rows import insert_body, read_body


class Ended(NamedTuple):
    """Items of a row of `runs` that are finished."""

    n: int
    body_id: bytes
    bits: int
    size: int
    outcome: Literal["delivered", "deleted"]
    holder: HeldBy | None = None
    result: str = ""


def tries(keeps: Keeps) -> Iterator[Keeps]:
    """What is kept at a step's first try, and at further ones."""
    yield keeps
    while True:
        yield keep_nothing


def note_ended(db: sqlite3.Connection, ended: Ended, keep: Keep, now: int, cutter: Cutter) -> None:
    """A row of `runs`, or a part of it. Before the row is changed, and its body dropped."""
    body_id, bits, size = ended.body_id, ended.bits, ended.size
    if keep == "failures" and size >= CUT_BYTES_MIN:
        with suppress(BadRow):
            head, data, bits = cutter.part(*read_body(db, body_id), bits)
            if head.run_id != body_id:
                body_id, size = head.run_id, len(data)
                insert_body(db, body_id, data)
    db.execute(
        NOTE_ENDED,
        {
            "n": ended.n,
            "body": body_id,
            "count": bits.bit_count(),
            "size": size,
            "tried": int(ended.outcome == "delivered"),
            "outcome": ended.outcome,
            "now": now,
            "bits": pack_bits(bits),
            "by": ended.holder and ended.holder.by,
            "since": ended.holder and ended.holder.since_ms,
            "result": ended.result or None,
        },
    )


def note_claimed(db: sqlite3.Connection, consumer: int, keep: Keep, now: int) -> None:
    """The rows of a claim that is acknowledged, however many, in one statement."""
    if keep != "none":
        db.execute(NOTE_CLAIMED if keep == "all" else NOTE_CLAIMED_FAILURES, (consumer, now))


_COLUMNS: Final = """body_id, queue, flow, action, priority, count, size, attempt, outcome,
    created_at, finished_at, bits, error_history, locked_by, locked_at, result,
    job_id"""
NOTE_ENDED: Final = f"""INSERT INTO history ({_COLUMNS})
    SELECT :body, queue, flow, action, priority, :count, :size, attempt + :tried, :outcome,
    created_at, :now, :bits, error_history, :by, :since, :result, job_id
    FROM runs WHERE n = :n"""
NOTE_CLAIMED: Final = f"""INSERT INTO history ({_COLUMNS})
    SELECT body_id, queue, flow, action, priority, count, size, attempt + 1, 'delivered',
    created_at, ?2, bits, error_history, (SELECT name FROM consumers WHERE n = ?1), NULL, NULL,
    job_id FROM runs INDEXED BY runs_claimed
    WHERE state = 'CLAIMED' AND consumer = ?1"""
NOTE_CLAIMED_FAILURES: Final = f"{NOTE_CLAIMED} AND (attempt > 0 OR error_history <> '[]')"
