"""The one connection to the cold tier's SQLite file, in a thread of its own.

Every step is one job in that thread, and one transaction: it has happened as a whole or not at
all. Steps of several tasks follow each other in the order in which they asked. A step that was
asked for is waited for, shielded.

Durable on return are the steps that say so (WAL with `synchronous=FULL`: one fsync). The others
are on disk with the next durable step, or after `sync`, which somebody calls once a second.

This is the store's edge: sqlite3's exceptions end here. What fails is rolled back, and the next
step finds a connection that works. After an I/O error the connection is opened anew, and the
write-ahead log is copied into the database and emptied before anything else is written: after an
fsync that failed, the next one succeeds and says nothing about what the first should have written.

It cannot end a step that hangs in the kernel: a dead disk holds the thread, and whoever waits.

Pages of 4, 8, 16 and 32 KiB, rows of 1,000 items with bodies of 108 KB, 16 a transaction, million
items/s: stored and confirmed 2.0, 2.2, 3.0, 3.5; acquired and settled 6.0, 6.9, 5.8, 5.3 (means
of two runs, which differed by up to a half: no more than a hint). Rows of one item, 16 a
transaction, went at about 11,000 a second with each. 8 KiB, since small rows then write less.
`mmap` is left off: it turns a read error into a SIGBUS.
"""

import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog
import trio

from actors.ports.thread import OwnThread
from actors.ports.tiers import ColdTotals, StoreCorrupt, StoreUnavailable
from daemon.state.ballast import Ballast
from daemon.stores.sqlite import quarantine, settled_view
from daemon.stores.sqlite.books import Books
from daemon.stores.sqlite.schema import migrate

log = structlog.get_logger()

T = TypeVar("T")

PAGE_BYTES: Final = 8 * 1024
CACHE_KIB: Final = 16 * 1024
WAL_PAGES: Final = 4096
"""The log is copied into the database when it has so many pages: 32 MiB."""
SHRINK_PAGES_MIN: Final = 128
"""Less than 1 MiB is not worth giving back."""
SHRINK_PAGES: Final = 2048
"""So many free pages are given back in one step, which others wait for: 16 MiB."""
STATEMENTS_CACHED: Final = 256

DRIVER_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""The second is what becomes of SQLite's own message when it quotes damaged bytes."""
_CORRUPT: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class Database:
    def __init__(self, path: Path, timeout_s: float, ballast_bytes: int) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._ballast = Ballast(path.with_name(path.name + ".ballast"), ballast_bytes)
        self._turn = trio.Lock()
        self._thread: OwnThread | None = None
        # From here on touched in the thread alone.
        self._db: sqlite3.Connection | None = None
        self._is_suspect = False
        self._is_full_sync = True
        self._is_unsynced = False
        self.left_free_bytes = 0
        """Of the disk, by what is new: what is there must have room to be settled."""
        self.was_damaged = False
        """The database was set aside when this one was opened, and is a new one."""

    async def open(self) -> None:
        """Connects and migrates; raises CannotStart if the file is a newer forebay's."""
        async with self._turn:
            if self._thread is None:
                self._thread = OwnThread("cold")
                self._thread.start()
            try:
                await self._thread.call(self._open)
            except BaseException:
                self._thread.stop()
                self._thread = None
                raise

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `work` on one state of the database."""
        return await self._job(lambda: self._attempt(work, "BEGIN"))

    async def write(
        self,
        work: Callable[[sqlite3.Connection], T],
        *,
        is_durable: bool = True,
        is_new_work: bool = False,
    ) -> T:
        """Runs `work` as a transaction. It may be run twice: on a full disk, what is not new work
        is tried again with the ballast's room."""

        def job() -> T:
            if is_new_work:
                self._check_room()
            try:
                return self._transact(work, is_durable)
            except StoreUnavailable as error:
                if is_new_work or not _is_full(error) or not self._ballast.give_up():
                    raise
                return self._transact(work, is_durable)

        return await self._job(job)

    async def sync(self) -> None:
        """What was written is durable on return. Free if it is already."""
        await self._job(self._sync)

    async def close(self) -> None:
        """Durable on return; the database is one file again. Harmless if it is closed already."""
        with trio.CancelScope(shield=True):
            async with self._turn:
                if self._thread is None:
                    return
                thread, self._thread = self._thread, None
                try:
                    await thread.call(self._close)
                finally:
                    thread.stop()

    async def _job(self, work: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._thread is None:
            raise StoreUnavailable(f"{self._path.name} is not open")
        # Handed to the thread at once, not when the step before was heard of: with a busy loop
        # that would be milliseconds later. They are heard of in the same order.
        job = self._thread.submit(work)
        with trio.CancelScope(shield=True):
            await self._turn.acquire()
        try:
            return await job.wait()
        finally:
            self._turn.release()

    # In the thread.

    def _open(self) -> None:
        aside = quarantine.look_through(self._path)
        try:
            try:
                self._connected()
            except DRIVER_ERRORS as error:
                if not is_corrupt(error):
                    raise
                aside = quarantine.set_aside(self._path, str(error))
                self._connected()
            if aside is not None:
                self.was_damaged = True
                totals = quarantine.read_totals_of(aside)
                self._transact(partial(_carry_over, totals=totals), is_durable=True)
        except DRIVER_ERRORS as error:
            self._drop()
            raise self._translated(error) from error
        self._ballast.keep()

    def _connected(self) -> sqlite3.Connection:
        if self._db is None:
            log_path = self._path.with_name(f"{self._path.name}-wal")
            has_log = log_path.exists() and log_path.stat().st_size > 0
            _create_private(self._path)
            db = sqlite3.connect(
                self._path,
                timeout=self._timeout_s,
                isolation_level=None,
                cached_statements=STATEMENTS_CACHED,
            )
            try:
                for pragma in (
                    f"page_size = {PAGE_BYTES}",
                    # Of a new file: its free pages can be given back (`_shrink`).
                    "auto_vacuum = INCREMENTAL",
                    "journal_mode = WAL",
                    "synchronous = FULL",
                    f"cache_size = -{CACHE_KIB}",
                    f"wal_autocheckpoint = {WAL_PAGES}",
                    # Some builds overwrite what is deleted: every settled body, written once more.
                    "secure_delete = OFF",
                ):
                    db.execute(f"PRAGMA {pragma}").fetchall()
                if self._is_suspect:
                    busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                    if busy:
                        raise sqlite3.OperationalError("the log cannot be emptied: it is in use")
                migrate(db)
                settled_view.prepare(db)
            except BaseException:
                db.close()
                raise
            self._db = db
            self._is_full_sync = True
            # A process that was killed may have left a log that was never synced.
            self._is_unsynced = has_log
            self._is_suspect = False
        return self._db

    def _check_room(self) -> None:
        if self._room_bytes() < self.left_free_bytes:
            raise StoreUnavailable(f"the disk of {self._path.name} is full")

    def _room_bytes(self) -> int:
        try:
            room = os.statvfs(self._path.parent)
        except OSError as error:
            raise StoreUnavailable(f"the disk of {self._path.name}: {error}") from error
        return room.f_bavail * room.f_frsize

    def _transact(self, work: Callable[[sqlite3.Connection], T], is_durable: bool) -> T:
        db, before = self._db, 0
        if db is not None:
            before = db.total_changes
        result = self._attempt(work, "BEGIN IMMEDIATE", is_durable)
        # A commit that changes nothing syncs nothing, however durable.
        if self._db is not db or (db is not None and db.total_changes != before):
            self._is_unsynced = not is_durable
        return result

    def _attempt(
        self, work: Callable[[sqlite3.Connection], T], begin: str, is_durable: bool | None = None
    ) -> T:
        try:
            db = self._connected()
            if is_durable is not None and is_durable != self._is_full_sync:
                db.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
                self._is_full_sync = is_durable
            db.execute(begin)
            result = work(db)
            db.execute("COMMIT")
            return result
        except BaseException as error:
            self._roll_back(error)
            if isinstance(error, DRIVER_ERRORS):
                raise self._translated(error) from error
            if isinstance(error, StoreCorrupt):
                # Rows that contradict each other are damage as well, whatever SQLite thinks.
                quarantine.suspect(self._path)
            raise

    def _roll_back(self, error: BaseException) -> None:
        """Ends a transaction that failed; drops the connection if it may not be sound."""
        is_sound = not (isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_IOERR)
        if self._db is not None and self._db.in_transaction:
            try:
                self._db.execute("ROLLBACK")
            except sqlite3.Error:
                is_sound = False
        if not is_sound:
            self._drop()

    def _drop(self) -> None:
        self._is_suspect = True
        if self._db is not None:
            db, self._db = self._db, None
            with suppress(sqlite3.Error):
                db.close()

    def _sync(self) -> None:
        if self._is_unsynced:
            self._transact(lambda db: db.execute("UPDATE synced SET times = times + 1"), True)
        if self._room_bytes() < self.left_free_bytes:
            self._shrink()
        self._ballast.keep()

    def _shrink(self) -> None:
        """Gives room back to a disk that has little: pages that nothing is in, and the log."""
        try:
            db = self._connected()
            (pages,) = db.execute("PRAGMA freelist_count").fetchone()
            log_bytes = self._path.with_name(f"{self._path.name}-wal").stat().st_size
            if pages < SHRINK_PAGES_MIN and log_bytes < SHRINK_PAGES_MIN * PAGE_BYTES:
                return
            # Each step of the statement frees a page, and `execute` makes one step only.
            db.executescript(f"PRAGMA incremental_vacuum({SHRINK_PAGES})")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except (*DRIVER_ERRORS, OSError) as error:
            self._roll_back(error)
            log.warning("cold.not_shrunk", error=str(error))

    def _close(self) -> None:
        try:
            if self._is_unsynced:
                self._sync()
        finally:
            if self._db is not None:
                db, self._db = self._db, None
                with suppress(sqlite3.Error):
                    db.close()

    def _translated(
        self, error: sqlite3.Error | UnicodeDecodeError
    ) -> StoreUnavailable | StoreCorrupt:
        text = f"{self._path.name}: {error}"
        if not is_corrupt(error):
            return StoreUnavailable(text)
        quarantine.suspect(self._path)
        return StoreCorrupt(text)


def is_corrupt(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """The driver has no code for text that is none; the message is all it says."""
    if isinstance(error, UnicodeDecodeError):
        return True
    return _code(error) in _CORRUPT or str(error).startswith("Could not decode")


def _carry_over(db: sqlite3.Connection, totals: Mapping[str, ColdTotals]) -> None:
    books = Books()
    for queue, counts in totals.items():
        books.carry_over(queue, counts)
        lost = counts.held + counts.dead
        if lost:
            log.error("cold.items_lost", queue=queue, items=lost)
    books.write(db)


def _is_full(error: StoreUnavailable) -> bool:
    cause = error.__cause__
    return isinstance(cause, sqlite3.Error) and _code(cause) == sqlite3.SQLITE_FULL


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 if the error is the driver's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _create_private(path: Path) -> None:
    """The file holds payloads. SQLite gives its log and index the mode of the database, and says
    what is wrong if it cannot be opened."""
    with suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640))
