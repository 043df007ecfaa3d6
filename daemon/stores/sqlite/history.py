"""History of claims in SQLite; all other history is in daemon/stores/cold/history.py.

On a full disk a step is tried again with the ballast's room, and then without history (`tries`):
what is deleted must make room.
"""

import sqlite3
from collections.abc import Iterator
from typing import Final

from actors.model.finished import Keep, Keeps, keep_nothing


def tries(keeps: Keeps) -> Iterator[Keeps]:
    """What is kept at a step's first try, and at further ones."""
    yield keeps
    while True:
        yield keep_nothing


def note_claimed(db: sqlite3.Connection, consumer: int, keep: Keep, now: int) -> None:
    """The rows of a claim that is acknowledged, however many, in one statement."""
    if keep != "none":
        db.execute(NOTE_CLAIMED if keep == "all" else NOTE_CLAIMED_FAILURES, (consumer, now))


_COLUMNS: Final = """body_id, queue, flow, action, priority, count, size, attempt, outcome,
    created_at, finished_at, bits, error_history, locked_by, locked_at, result,
    job_id"""
NOTE_CLAIMED: Final = f"""INSERT INTO history ({_COLUMNS})
    SELECT body_id, queue, flow, action, priority, count, size, attempt + 1, 'delivered',
    created_at, ?2, bits, error_history, (SELECT name FROM consumers WHERE n = ?1), NULL, NULL,
    job_id FROM runs INDEXED BY runs_claimed
    WHERE state = 'CLAIMED' AND consumer = ?1"""
NOTE_CLAIMED_FAILURES: Final = f"{NOTE_CLAIMED} AND (attempt > 0 OR error_history <> '[]')"
