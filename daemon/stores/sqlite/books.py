"""The cold tier's books: what a transaction has changed, written once at its end.

For each queue `taken` + `accepted` = delivered + dead + deleted + lost + held, always: a row is
counted in the transaction that makes it visible, and every later change takes from one side what it
gives to another. Rows that cannot be read are set aside as corrupt, and their items are lost.

Items that belong to a write are counted in its receipt as well, which exists from the moment in
which the first of them comes here until it is forgotten; after that they are counted no more.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from actors.model.books import ColdReceipt
from actors.ports.tiers import ColdTotals, FlowCount
from daemon.stores.sqlite.schema import HELD

_TOTALS: Final = (
    "taken",
    "delivered",
    "dead",
    "deleted",
    "held",
    "runs",
    "lost",
    "accepted",
    "duplicate",
)
_RECEIPT: Final = ColdReceipt._fields


class Place(NamedTuple):
    """What counters are kept for."""

    queue: str
    flow: str
    action: str


class Books:
    """The changes of one transaction."""

    def __init__(self) -> None:
        self._totals: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._flows: defaultdict[Place, Counter[str]] = defaultdict(Counter)
        self._receipts: defaultdict[bytes, Counter[str]] = defaultdict(Counter)
        self._writes_taken: set[bytes] = set()

    def take(self, place: Place, items: int, write: bytes | None, *, is_dead: bool) -> None:
        """A row is the store's own from now on."""
        self._totals[place.queue]["taken"] += items
        if write is not None:
            self._writes_taken.add(write)
        self.enter(place, items, write, is_dead=is_dead)

    def accept(self, place: Place, items: int) -> None:
        """A row that came here first is visible from now on."""
        self._totals[place.queue]["accepted"] += items
        self.enter(place, items, None, is_dead=False)

    def pass_by(self, queue: str, items: int) -> None:
        """Items that came here first, and were replaced in the same step."""
        self._totals[queue]["accepted"] += items
        self.delete(queue, items, None)

    def repeat(self, queue: str, items: int) -> None:
        """A run that was answered before."""
        self._totals[queue]["duplicate"] += items

    def decide(self, write: bytes | None, updated: int, ignored: int, conflict: int) -> None:
        """What keys had to say of items that belong to a write."""
        for name, items in (("updated", updated), ("ignored", ignored), ("conflict", conflict)):
            self._note(write, name, items)

    def enter(self, place: Place, items: int, write: bytes | None, *, is_dead: bool) -> None:
        """A row of items that were counted before, in another row."""
        if is_dead:
            self._change(place, "dead", items)
            self._note(write, "dead", items)
        else:
            self._change(place, "held", items)
            self._change(place, "runs", 1)

    def cut(self, place: Place) -> None:
        """A row that is held has become two."""
        self._change(place, "runs", 1)

    def leave(self, place: Place, items: int, *, rows_gone: int) -> None:
        """Items of rows that are held are no longer in them."""
        self._change(place, "held", -items)
        self._change(place, "runs", -rows_gone)

    def leave_dead(self, place: Place, items: int, write: bytes | None) -> None:
        self._change(place, "dead", -items)
        self._note(write, "dead", -items)

    def deliver(self, queue: str, items: int, write: bytes | None) -> None:
        self._totals[queue]["delivered"] += items
        self._note(write, "delivered", items)

    def delete(self, queue: str, items: int, write: bytes | None) -> None:
        self._totals[queue]["deleted"] += items
        self._note(write, "deleted", items)

    def lose(self, place: Place, items: int, write: bytes | None) -> None:
        """A row that is held cannot be read, and is set aside."""
        self.leave(place, items, rows_gone=1)
        self._totals[place.queue]["lost"] += items
        self._note(write, "lost", items)

    def write_off(self, queue: str, items: int) -> None:
        """Items that were handed over, and are gone with the store that had them."""
        self._totals[queue]["taken"] += items
        self._totals[queue]["lost"] += items

    def carry_over(self, queue: str, totals: ColdTotals) -> None:
        """What a damaged database counted. Items that it held, dead letters too, are lost with
        it."""
        change = self._totals[queue]
        for name in ("taken", "accepted", "delivered", "deleted", "duplicate"):
            change[name] += getattr(totals, name)
        change["lost"] += totals.lost + totals.held + totals.dead

    def write(self, db: sqlite3.Connection) -> None:
        """At the end of the transaction."""
        for queue, change in self._totals.items():
            if any(change.values()):
                db.execute(_ADD_TOTALS, (queue, *(change[name] for name in _TOTALS)))
        for place, change in self._flows.items():
            counts = change["held"], change["runs"], change["dead"]
            if any(counts):
                db.execute(_ADD_FLOW, (*place, *counts))
                db.execute(_DROP_FLOW, place)
        db.executemany(_BEGIN_RECEIPT, [(write,) for write in self._writes_taken])
        for write, change in self._receipts.items():
            if any(change.values()):
                db.execute(_ADD_RECEIPT, (*(change[name] for name in _RECEIPT), write))

    def _note(self, write: bytes | None, name: str, by: int) -> None:
        if write is not None:
            self._receipts[write][name] += by

    def _change(self, place: Place, name: str, by: int) -> None:
        self._totals[place.queue][name] += by
        self._flows[place][name] += by


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


def lose_row(db: sqlite3.Connection, books: Books, n: int, items: int) -> None:
    """Counts a row that was set aside."""
    *place, write = db.execute(
        "SELECT queue, flow, action, write_id FROM runs WHERE n = ?", (n,)
    ).fetchone()
    books.lose(Place(*place), items, write if isinstance(write, bytes) else None)


SELECT_TOTALS: Final = """SELECT queue, taken, delivered, dead, deleted, held, runs, lost,
    accepted, duplicate FROM totals"""
_ADD_TOTALS: Final = (
    f"INSERT INTO totals (queue, {', '.join(_TOTALS)}) VALUES (?{', ?' * len(_TOTALS)}) "
    f"ON CONFLICT (queue) DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in _TOTALS)
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
    f"UPDATE receipts SET {', '.join(f'{name} = {name} + ?' for name in _RECEIPT)} "
    "WHERE write_id = ?"
)
_SELECT_OLDEST: Final = f"""SELECT queue, flow, action, (
    SELECT created_at FROM runs INDEXED BY runs_oldest
    WHERE runs.queue = flows.queue AND runs.flow = flows.flow AND runs.action = flows.action
    AND {HELD} ORDER BY created_at LIMIT 1
) FROM flows WHERE items > 0"""
_SELECT_RECEIPT: Final = f"SELECT {', '.join(_RECEIPT)} FROM receipts WHERE write_id = ?"
