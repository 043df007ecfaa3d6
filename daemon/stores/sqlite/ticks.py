"""Ticks of schedules in SQLite: the marks, and what is installed and deleted with them.

One transaction for all schedules that are looked after at once. Ticks are items of keyed pushes
(daemon/stores/sqlite/offers.py), decided on by a rule of their own.
"""

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Final

from actors.model.clock import Clock
from actors.model.keys import Phase
from actors.ports.ticks import (
    TICK_RULE,
    Marks,
    Tick,
    TickChange,
    TickMark,
    TickOutcome,
    key_span,
)
from daemon.stores.sqlite import keys, offers
from daemon.stores.sqlite.books import Books
from daemon.stores.sqlite.connection import Database
from forebay.keyed import KeyOutcome


class SqliteTicks:
    """Made by SqliteCold, whose connection it shares."""

    def __init__(self, db: Database, now_ms: Clock) -> None:
        self._db = db
        self._now_ms = now_ms

    async def marks(self) -> Marks:
        rows = await self._db.read(lambda db: db.execute(SELECT_MARKS).fetchall())
        return Marks(self._now_ms(), {name: TickMark(*rest) for name, *rest in rows})

    async def change(self, changes: Sequence[TickChange]) -> list[TickOutcome]:
        is_new_work = any(change.offers for change in changes)
        work = partial(_change, changes=changes, now=self._now_ms())
        return await self._db.write(work, is_new_work=is_new_work)

    async def phases(self, ticks: Sequence[Tick]) -> list[Phase | None]:
        return await self._db.read(partial(_phases, ticks=ticks))


def _change(db: sqlite3.Connection, changes: Sequence[TickChange], now: int) -> list[TickOutcome]:
    return [_change_one(db, change, now) for change in changes]


def _change_one(db: sqlite3.Connection, change: TickChange, now: int) -> TickOutcome:
    found = db.execute(SELECT_MARK, (change.name,)).fetchone()
    if (None if found is None else TickMark(*found)) != change.before:
        return TickOutcome(is_done=False)
    dropped = installed = 0
    if change.before is not None and change.drop is not None:
        first, last = key_span(change.name, change.before, change.drop)
        dropped = _drop(db, change.before.queue, first, last)
    after = change.mark_after(dropped)
    if after is None:
        db.execute(DELETE_MARK, (change.name,))
    else:
        db.execute(PUT_MARK, (change.name, *after))
    if change.offers:
        answers = offers.offer(db, change.offers, lambda _: TICK_RULE, now)
        installed = sum(outcomes.count(KeyOutcome.CREATED) for outcomes in answers)
    return TickOutcome(True, dropped, installed)


def _phases(db: sqlite3.Connection, ticks: Sequence[Tick]) -> list[Phase | None]:
    found: dict[Tick, Phase] = {}
    for queue in {tick.queue for tick in ticks}:
        wanted = [tick.key for tick in ticks if tick.queue == queue]
        for key, held in keys.find(db, queue, wanted, with_rows=True).items():
            found[Tick(queue, key)] = held.holder.phase
    return [found.get(tick) for tick in ticks]


def _drop(db: sqlite3.Connection, queue: str, first: bytes, last: bytes) -> int:
    wanted = [key for (key,) in db.execute(SELECT_SPAN, (queue, first, last)).fetchall()]
    held = keys.find(db, queue, wanted, with_rows=True)
    waiting = [one for one in held.values() if one.holder.phase == "waiting"]
    if waiting:
        books = Books()
        keys.void(db, waiting, books)
        books.write(db)
        keys.release(db, waiting)
    return len(waiting)


_COLUMNS: Final = ", ".join(TickMark._fields)
SELECT_MARKS: Final = f"SELECT name, {_COLUMNS} FROM ticks"
SELECT_MARK: Final = f"SELECT {_COLUMNS} FROM ticks WHERE name = ?"
PUT_MARK: Final = f"""INSERT OR REPLACE INTO ticks (name, {_COLUMNS})
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
DELETE_MARK: Final = "DELETE FROM ticks WHERE name = ?"
SELECT_SPAN: Final = "SELECT key FROM keys WHERE queue = ? AND key > ? AND key <= ?"
