"""The power goes, under a whole daemon: the journal and the cold store lose what was not synced.

At the n-th step the process makes a new state directory of what is left, beside the old one, and
kills itself. From that moment on nothing gets durable: whoever comes back from a sync waits for
ever, so that nobody is told of anything that is not in the new directory.

The journal's disk is forgetful_files.py's. SQLite has no such seam, but its write-ahead log only
grows until it is copied into the database, and what a durable step has synced is a prefix of it:
what is left is that prefix and a part of what follows, cut anywhere. Database and log are two files
that are copied one after the other, so the log is never copied into the database meanwhile: not
automatically, and when the store is closed or shrunk, the power waits for the end of it.
"""

import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from daemon.stores.sqlite.connection import Database
from daemon.stores.sqlite.store import BALLAST_BYTES, SqliteCold
from tests.crash.forgetful_files import ForgetfulFiles
from tests.crash.found import COLD
from tests.crash.killer import die

T = TypeVar("T")

PLAN: Final = "power"
STEPS: Final = (
    "open_new",
    "open_write",
    "open_append",
    "open_read",
    "write",
    "append",
    "truncate",
    "allocate",
    "datasync",
    "sync",
    "rename",
    "link",
    "unlink",
    "sync_directory",
)


def remains_of(state: Path) -> Path:
    return state.with_name(f"{state.name}-after")


class Power:
    def __init__(self, plan: str, state: Path) -> None:
        """`plan` is `power:n:seed`."""
        _, steps, seed = plan.split(":")
        self._left = int(steps)
        self._rng = Random(seed)
        self._state = state
        self._lock = threading.RLock()
        self._files: PoweredFiles | None = None
        self._wal_synced = _size(state / f"{COLD}-wal")

    def make_files(self, directory: Path) -> "PoweredFiles":
        self._files = PoweredFiles(directory, self)
        return self._files

    def make_cold(self, path: Path, timeout_s: float) -> "PoweredCold":
        return PoweredCold(path, timeout_s, self)

    def under_lock(self, work: Callable[..., T], *args: Any, **named: Any) -> T:
        with self._lock:
            return work(*args, **named)

    def step(self) -> None:
        self._left -= 1
        if self._left <= 0:
            with self._lock:
                self._go()

    def cold_is_synced(self) -> None:
        """All that is in the log now is durable."""
        size = _size(self._state / f"{COLD}-wal")
        with self._lock:
            self._wal_synced = size

    def _go(self) -> None:
        after = remains_of(self._state)
        after.mkdir()
        if self._files is not None:
            self._files.make_what_is_left(after / "spool", self._rng)
        elif (self._state / "spool").exists():
            shutil.copytree(self._state / "spool", after / "spool")
        wal, name = self._state / f"{COLD}-wal", self._state / COLD
        if name.exists():
            shutil.copy(name, after)
        if wal.exists():
            data = wal.read_bytes()
            end = self._rng.choice((self._wal_synced, len(data)))
            if len(data) > self._wal_synced:
                end = self._rng.choice((end, self._rng.randrange(self._wal_synced, len(data))))
            (after / wal.name).write_bytes(data[:end])
        die()


class PoweredFiles(ForgetfulFiles):
    def __init__(self, directory: Path, power: Power) -> None:
        super().__init__(directory, 0)
        self._power = power
        # Several threads, and one disk.
        for name in STEPS:
            setattr(self, name, _locked(power, getattr(self, name)))

    def _step(self) -> None:
        self._power.step()


def _locked(power: Power, work: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **named: power.under_lock(work, *args, **named)


class PoweredCold(SqliteCold):
    def __init__(self, path: Path, timeout_s: float, power: Power) -> None:
        super().__init__(path, timeout_s)
        self._use(PoweredDatabase(path, timeout_s, power))


class PoweredDatabase(Database):
    def __init__(self, path: Path, timeout_s: float, power: Power) -> None:
        super().__init__(path, timeout_s, BALLAST_BYTES)
        self._power = power

    def _open(self) -> None:
        super()._open()
        self._power.cold_is_synced()

    def _connected(self) -> sqlite3.Connection:
        is_new = self._db is None
        db = super()._connected()
        if is_new:
            db.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
        return db

    def _shrink(self) -> None:
        self._power.under_lock(super()._shrink)

    def _close(self) -> None:
        self._power.under_lock(super()._close)

    def _transact(self, work: Callable[[sqlite3.Connection], T], is_durable: bool) -> T:
        self._power.step()
        result = super()._transact(work, is_durable)
        if not self._is_unsynced:
            self._power.cold_is_synced()
        return result


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
