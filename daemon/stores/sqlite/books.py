"""The books of the cold tier in SQLite: one row of counters per queue, flow and receipt.

What is counted, and when, is daemon/stores/cold/books.py's.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

from actors.model.books import ColdReceipt
from actors.ports.tiers import ColdTotals, FlowCount
from daemon.stores.cold.books import RECEIPT, TOTALS
from daemon.stores.cold.books import Books as ColdBooks
from daemon.stores.sqlite.schema import HELD


class Books(ColdBooks):
    """The changes of one transaction."""

    def write(self, db: sqlite3.Connection) -> None:
        """At the end of the transaction."""
        record(db, self)


def record(db: sqlite3.Connection, books: ColdBooks) -> set[bytes]:
    """At the end of the transaction. Returns the jobs of triggers whose receipts have changed."""
    for queue, change in books.totals.items():
        if any(change.values()):
            db.execute(_ADD_TOTALS, (queue, *(change[name] for name in TOTALS)))
    for place, change in books.flows.items():
        counts = change["held"], change["runs"], change["dead"]
        if any(counts):
            db.execute(_ADD_FLOW, (*place, *counts))
            db.execute(_DROP_FLOW, place)
    db.executemany(_BEGIN_RECEIPT, [(write,) for write in books.writes_taken])
    jobs = set()
    for write, change in books.receipts.items():
        if any(change.values()):
            db.execute(_ADD_RECEIPT, (*(change[name] for name in RECEIPT), write))
            if db.execute(_IS_JOB, (write,)).fetchone():
                jobs.add(write)
    return jobs


def read_totals(db: sqlite3.Connection) -> dict[str, ColdTotals]:
    rows = db.execute(SELECT_TOTALS)
    return {queue: ColdTotals(*(*counts, counts[0])) for queue, *counts in rows}


def read_flows(db: sqlite3.Connection) -> Sequence[FlowCount]:
    rows = db.execute("SELECT queue, flow, action, items, dead FROM flows")
    return [FlowCount(*row) for row in rows]


def read_oldest(db: sqlite3.Connection) -> dict[tuple[str, str, str], int]:
    """One look into the index for each flow that holds anything."""
    rows = db.execute(_SELECT_OLDEST)
    return {(queue, flow, action): at for queue, flow, action, at in rows if at is not None}


def read_receipt(db: sqlite3.Connection, write: bytes) -> ColdReceipt:
    row = db.execute(_SELECT_RECEIPT, (write,)).fetchone()
    return ColdReceipt() if row is None else ColdReceipt(*row)


def forget_receipts(db: sqlite3.Connection, writes: Sequence[bytes]) -> None:
    db.executemany("DELETE FROM receipts WHERE write_id = ?", [(write,) for write in writes])


SELECT_TOTALS: Final = """SELECT queue, taken, delivered, dead, deleted, held, runs, lost,
    accepted, duplicate FROM totals"""
_ADD_TOTALS: Final = (
    f"INSERT INTO totals (queue, {', '.join(TOTALS)}) VALUES (?{', ?' * len(TOTALS)}) "
    f"ON CONFLICT (queue) DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in TOTALS)
)
_ADD_FLOW: Final = (
    "INSERT INTO flows (queue, flow, action, items, runs, dead) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (queue, flow, action) DO UPDATE SET items = items + excluded.items, "
    "runs = runs + excluded.runs, dead = dead + excluded.dead"
)
# A flow that has nothing here any more is forgotten: names of flows are the users', and many.
_DROP_FLOW: Final = (
    "DELETE FROM flows WHERE queue = ? AND flow = ? AND action = ? "
    "AND items = 0 AND runs = 0 AND dead = 0"
)
_BEGIN_RECEIPT: Final = (
    "INSERT INTO receipts (write_id, delivered, dead, deleted) VALUES (?, 0, 0, 0) "
    "ON CONFLICT DO NOTHING"
)
_ADD_RECEIPT: Final = (
    f"UPDATE receipts SET {', '.join(f'{name} = {name} + ?' for name in RECEIPT)} "
    "WHERE write_id = ?"
)
_IS_JOB: Final = "SELECT 1 FROM trigger_jobs WHERE run_id = ?"
_SELECT_OLDEST: Final = f"""SELECT queue, flow, action, (
    SELECT created_at FROM runs INDEXED BY runs_oldest
    WHERE runs.queue = flows.queue AND runs.flow = flows.flow AND runs.action = flows.action
    AND {HELD} ORDER BY created_at LIMIT 1
) FROM flows WHERE items > 0"""
_SELECT_RECEIPT: Final = f"SELECT {', '.join(RECEIPT)} FROM receipts WHERE write_id = ?"
