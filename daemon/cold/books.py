"""The cold tier's books: what a transaction has changed, written once at its end.

For each queue `taken` = delivered + dead + deleted + held, always: a row is counted in the
transaction that makes it visible, and every later change takes from one side what it gives to
another. Rows that are set aside as corrupt are still held, and counted as `corrupt` beside.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from actors.tiers import ColdTotals, FlowCount

_TOTALS: Final = ("taken", "delivered", "dead", "deleted", "held", "runs", "corrupt")


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

    def take(self, place: Place, items: int, *, is_dead: bool) -> None:
        """A row is the store's own from now on."""
        self._totals[place.queue]["taken"] += items
        self.enter(place, items, is_dead=is_dead)

    def enter(self, place: Place, items: int, *, is_dead: bool) -> None:
        """A row of items that were counted before, in another row."""
        if is_dead:
            self._change(place, "dead", items)
        else:
            self._change(place, "held", items)
            self._change(place, "runs", 1)

    def leave(self, place: Place, items: int, *, is_row_gone: bool) -> None:
        """Items of a row that is held are no longer in it."""
        self._change(place, "held", -items)
        if is_row_gone:
            self._change(place, "runs", -1)

    def leave_dead(self, place: Place, items: int) -> None:
        self._change(place, "dead", -items)

    def deliver(self, queue: str, items: int) -> None:
        self._totals[queue]["delivered"] += items

    def delete(self, queue: str, items: int) -> None:
        self._totals[queue]["deleted"] += items

    def set_aside(self, queue: str, items: int) -> None:
        self._totals[queue]["corrupt"] += items

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

    def _change(self, place: Place, name: str, by: int) -> None:
        self._totals[place.queue][name] += by
        self._flows[place][name] += by


def read_totals(db: sqlite3.Connection) -> dict[str, ColdTotals]:
    rows = db.execute("SELECT queue, taken, delivered, dead, deleted, held, runs FROM totals")
    return {queue: ColdTotals(*counts) for queue, *counts in rows}


def read_flows(db: sqlite3.Connection) -> Sequence[FlowCount]:
    rows = db.execute("SELECT queue, flow, action, items, dead FROM flows")
    return [FlowCount(*row) for row in rows]


def read_corrupt(db: sqlite3.Connection) -> int:
    """Items in rows that were set aside."""
    items: int = db.execute("SELECT coalesce(sum(corrupt), 0) FROM totals").fetchone()[0]
    return items


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
