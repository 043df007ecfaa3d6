"""The cold tier in SQLite: the `ColdQueue` of a daemon that is alone.

Owns one file in WAL mode, and what was confirmed in it. Every method is one transaction in the
connection's thread (daemon/stores/sqlite/connection.py). Durable on return: `store`, `confirm`,
`forget`, `claim`, `drop_stream`, every change of dead letters, and `settle` where items move to
other rows or the caller asks for it. Within a second, given that somebody calls `sync`: `acquire`,
`renew`, `release`, `note_history`, and any other `settle`; losing one of these can only deliver
again, and the books go back with it.

Leases run on a clock of this process that nobody sets (actors/model/clock.py), and so mean nothing
to the next life: `release_all` comes after `open` and before anything else. What is due goes by the
wall clock; when that is set back, what was found due before stays due.

What it can't do: serve two daemons, or give disk space back (what is deleted is used again).
"""

import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from actors.model.books import ColdReceipt
from actors.model.clock import Clock, lease_clock, wall_ms
from actors.ports.tiers import (
    ColdTotals,
    FlowCount,
)
from daemon.stores.cold.statement import Now
from daemon.stores.cold.store import ColdStore
from daemon.stores.sqlite import due
from daemon.stores.sqlite.books import (
    Books,
    forget_receipts,
    read_flows,
    read_oldest,
    read_receipt,
    read_totals,
)
from daemon.stores.sqlite.connection import PAGE_BYTES, WAL_PAGES, Database
from daemon.stores.sqlite.steps import SqliteSteps

BALLAST_BYTES: Final = 2 * WAL_PAGES * PAGE_BYTES


class SqliteCold(ColdStore):
    def __init__(
        self,
        path: Path,
        timeout_s: float,
        now_ms: Clock = wall_ms,
        ballast_bytes: int = BALLAST_BYTES,
        lease_ms: Clock | None = None,
    ) -> None:
        """`lease_ms` is the clock of leases; None: the steady one, or `now_ms` if it was given."""
        self._now_ms = now_ms
        self._lease_ms = lease_clock(now_ms, lease_ms)
        self._use(Database(path, timeout_s, ballast_bytes))

    def _use(self, db: Database) -> None:
        self._db = db
        super().__init__(SqliteSteps(db, self._now))

    async def open(self) -> None:
        await self._db.open()

    def leave_free(self, left_free_bytes: int) -> None:
        """Overflow is refused where it would take the last of the disk."""
        self._db.left_free_bytes = left_free_bytes

    async def totals(self) -> Mapping[str, ColdTotals]:
        return await self._db.read(read_totals)

    async def flows(self) -> Sequence[FlowCount]:
        return await self._db.read(read_flows)

    async def oldest(self) -> Mapping[tuple[str, str, str], int]:
        return await self._db.read(read_oldest)

    async def receipt(self, write: bytes) -> ColdReceipt:
        return await self._db.read(lambda db: read_receipt(db, write))

    async def forget_receipts(self, writes: Sequence[bytes]) -> None:
        await self._db.write(lambda db: forget_receipts(db, writes), is_durable=False)

    async def put_off_anew(self) -> None:
        await self._db.write(partial(due.put_off_anew, now=self._now_ms()))

    async def write_off(self, missing: Mapping[str, int]) -> bool:
        if not self._db.was_damaged:
            return False
        await self._db.write(partial(_write_off, missing=missing))
        return True

    async def sync(self) -> None:
        """Everything so far is durable on return; to be called about once a second."""
        await self._db.sync()

    async def close(self) -> None:
        await self._db.close()

    def _now(self) -> Now:
        return Now(self._now_ms(), self._lease_ms())


def _write_off(db: sqlite3.Connection, missing: Mapping[str, int]) -> None:
    books = Books()
    for queue, items in missing.items():
        books.write_off(queue, items)
    books.write(db)
