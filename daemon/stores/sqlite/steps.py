"""Runs the steps of the cold store on SQLite: in the connection's thread, one transaction each."""

import sqlite3
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar

from actors.model.finished import Keeps
from actors.ports.tiers import RowOutcome, StoreUnavailable
from daemon.stores.cold.books import Books
from daemon.stores.cold.connection import Room, RunAgain, Step, drive
from daemon.stores.cold.statement import Now, Statement
from daemon.stores.sqlite import due
from daemon.stores.sqlite.books import record
from daemon.stores.sqlite.connection import Database
from daemon.stores.sqlite.delivered import settle_delivered
from daemon.stores.sqlite.keys import SqliteKeys
from daemon.stores.sqlite.rows import SqliteRows

T = TypeVar("T")

RUNS_MAX: Final = 3
"""How often a step is run that asks for it. Nothing else writes: the second run knows all."""


class SqliteConnection:
    """`Connection` for the steps: nothing here ever waits."""

    daemon = b""

    def __init__(self, db: sqlite3.Connection, now: Now, *, makes_room: bool) -> None:
        self._db = db
        self._now = now
        self.makes_room = makes_room
        self.rows = SqliteRows(db, now)
        self.keys = SqliteKeys(db, now)
        self.jobs: set[bytes] = set()

    async def fetch(self, statement: Statement, *values: Any) -> Sequence[Sequence[Any]]:
        return self._db.execute(*statement.sqlite(values, self._now)).fetchall()

    async def first(self, statement: Statement, *values: Any) -> Sequence[Any] | None:
        row: Sequence[Any] | None = self._db.execute(
            *statement.sqlite(values, self._now)
        ).fetchone()
        return row

    async def execute(self, statement: Statement, *values: Any) -> int:
        return self._db.execute(*statement.sqlite(values, self._now)).rowcount

    async def each(self, statement: Statement, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            bound = [statement.bound(row, self._now) for row in rows]
            self._db.executemany(statement.for_each, bound)

    async def pick(self, queue: str, except_flows: Collection[str], room: Room) -> list[int] | None:
        return due.pick(self._db, queue, except_flows, room, self._now)

    async def now(self) -> int:
        return self._now.wall

    async def record(self, books: Books) -> None:
        self.jobs |= record(self._db, books)

    async def settle_delivered(
        self, outcomes: Sequence[RowOutcome], keeps: Keeps
    ) -> list[bool] | None:
        return settle_delivered(self._db, outcomes, keeps)

    def wake(self, queue: str) -> None:
        """No other daemon has this database."""


class SqliteSteps:
    """The cold store's `Database`."""

    def __init__(self, db: Database, now: Callable[[], Now]) -> None:
        self._db = db
        self._now = now

    async def read(self, step: Step[T]) -> T:
        now = self._now()
        return await self._db.read(lambda db: _carried_out(step, db, now, makes_room=False))

    async def write(
        self,
        step: Step[T],
        *,
        is_durable: bool = True,
        is_new_work: bool = False,
        may_fill_disk: bool = False,
        is_repeatable: bool = True,
    ) -> T:
        now, runs = self._now(), 0
        needs_room = is_new_work and not may_fill_disk
        is_full = False

        def work(db: sqlite3.Connection) -> T:
            nonlocal is_full
            # Within one job it is run again only where the disk was full.
            makes_room, is_full = is_full, True
            return _carried_out(step, db, now, makes_room=makes_room)

        while True:
            is_full, runs = False, runs + 1
            try:
                return await self._db.write(work, is_durable=is_durable, is_new_work=needs_room)
            except RunAgain as error:
                if runs == RUNS_MAX:
                    raise StoreUnavailable(str(error)) from error

    async def sync(self) -> None:
        await self._db.sync()


def _carried_out(step: Step[T], db: sqlite3.Connection, now: Now, *, makes_room: bool) -> T:
    return drive(step(SqliteConnection(db, now, makes_room=makes_room)))
