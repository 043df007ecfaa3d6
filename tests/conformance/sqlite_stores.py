"""SQLite for the suites: a file in a directory, and clocks that the test moves."""

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from daemon.stores.cold.dead import ColdDeadLetters
from daemon.stores.cold.statement import Now, Statement
from daemon.stores.sqlite.store import SqliteCold
from tests.conformance.cold_stores import START_MS

T = TypeVar("T")

TIMEOUT_S = 60.0


def without_newest(db: sqlite3.Connection) -> None:
    """Takes away what the versions after the one with `receipts.corrupt` have brought."""
    for table in ("totals", "receipts"):
        db.execute(f"ALTER TABLE {table} RENAME COLUMN lost TO corrupt")
    db.execute("DROP TRIGGER runs_state")
    db.execute("DROP TRIGGER bodies_gone")
    db.execute("ALTER TABLE runs DROP COLUMN job_id")
    for table in (
        "trigger_jobs",
        "trigger_leases",
        "ticks",
        "attempts",
        "keys",
        "homes",
        "offered",
        "aliases",
    ):
        db.execute(f"DROP TABLE {table}")
    for table in ("writes", "stages", "versions", "journal_receipts"):
        db.execute(f"DROP TABLE {table}")
    for column in ("accepted", "duplicate"):
        db.execute(f"ALTER TABLE totals DROP COLUMN {column}")
    for column in ("updated", "ignored", "conflict"):
        db.execute(f"ALTER TABLE receipts DROP COLUMN {column}")
    for column in ("failure_reason", "changed_at"):
        db.execute(f"ALTER TABLE runs DROP COLUMN {column}")
    for column in ("locked_by", "locked_at", "result", "job_id"):
        db.execute(f"ALTER TABLE history DROP COLUMN {column}")
    db.execute("DROP INDEX runs_oldest")


class SqliteStores:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lives = 0
        self._now_ms = START_MS
        self._steady_ms = START_MS
        self.cold = self._make()

    @property
    def path(self) -> Path:
        return self._directory / str(self._lives) / "cold.db"

    @property
    def dead(self) -> ColdDeadLetters:
        return self.cold.dead_letters

    def now_ms(self) -> int:
        return self._now_ms

    def steady_ms(self) -> int:
        return self._steady_ms

    def advance(self, ms: int) -> None:
        self._now_ms += ms
        self._steady_ms += ms

    def step(self, ms: int) -> None:
        self._now_ms += ms

    async def reopen(self) -> None:
        await self.cold.close()
        self.cold = self._make()
        await self.cold.open()

    async def crash(self) -> None:
        """The files as they are at this moment are what a killed process leaves."""
        left, dying = self.path, self.cold
        self._lives += 1
        self.cold = self._make()
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{left}{suffix}", f"{self.path}{suffix}")
        await dying.close()
        await self.cold.open()

    async def release_all(self) -> None:
        await self.cold.release_all()

    async def damage_body(self, run_id: bytes) -> None:
        def damage(db: sqlite3.Connection) -> None:
            (data,) = db.execute("SELECT data FROM bodies WHERE id = ?", (run_id,)).fetchone()
            at = len(data) - 2
            damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            db.execute("UPDATE bodies SET data = ? WHERE id = ?", (damaged, run_id))

        self.beside(damage)

    async def bodies(self) -> set[bytes]:
        return self.beside(lambda db: {id_ for (id_,) in db.execute("SELECT id FROM bodies")})

    def beside(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `work` on a connection of its own, as somebody with a shell would."""
        db = sqlite3.connect(self.path, isolation_level=None, timeout=TIMEOUT_S)
        try:
            return work(db)
        finally:
            db.close()

    def plan(self, statement: Statement, *values: Any) -> list[str]:
        """What SQLite does for a statement of the steps, step by step."""
        text, bound = statement.sqlite(values, Now(START_MS, START_MS))
        return self.beside(
            lambda db: [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {text}", bound)]
        )

    def _make(self) -> SqliteCold:
        self.path.parent.mkdir(exist_ok=True)
        return SqliteCold(
            self.path, TIMEOUT_S, self.now_ms, ballast_bytes=0, lease_ms=self.steady_ms
        )
