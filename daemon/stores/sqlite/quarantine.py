"""Sets a damaged database aside as a whole; the daemon starts with a new one.

SQLite finds damage where it reads, which may be long after the start. A store that finds any marks
the file as suspect, with a second file beside it, and the daemon ends. The next start checks the
whole database. If only indexes are damaged, they are rebuilt. Otherwise the database and its log
move to `quarantine/`, and the log says so. The new database takes over the totals of the old one,
and counts the items that the old one held as lost. If the totals cannot be read either, the items
that the journal has handed over count as lost (`account_for_missing`).

A crash halfway is harmless: the marker names the target, and the next start moves the remaining
files. SQLite would apply a log that was left beside a new database to that database.

What it cannot do: rescue good rows (`sqlite3 FILE .recover` can), or find damage that SQLite does
not find: its pages have no checksums, but the runs in them do.
"""

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import structlog

from actors.ports.tiers import ColdQueue, ColdTotals
from actors.spooler.client import SpoolerClient
from actors.spooler.messages import Inquire
from daemon.errors import CannotStart
from daemon.stores.sqlite.books import read_totals

log = structlog.get_logger()

QUARANTINE: Final = "quarantine"
_FILES: Final = ("-wal", "-shm", "")
"""The database last: as long as it is there, the rest belongs to it."""


def suspect(path: Path) -> None:
    """Marks the database for a check at the next start, if the disk allows it."""
    with suppress(OSError):
        _marker(path).touch()


def look_through(path: Path) -> Path | None:
    """Checks a suspect database before it is opened, and sets it aside if it is damaged. Returns
    where it was moved to; None if it stays."""
    try:
        aside = _marker(path).read_text()
    except FileNotFoundError:
        return None
    if aside:
        # It was being moved when the daemon ended.
        return _move(path, path.parent / QUARANTINE / aside)
    problem = _problem(path)
    if problem is None and _looked(path).exists():
        problem = "damage was found again, but not by SQLite's own check"
    if problem is None:
        _marker(path).rename(_looked(path))
        log.warning("cold.looked_through", file=path.name, found="nothing")
        return None
    return set_aside(path, problem)


def set_aside(path: Path, why: str) -> Path:
    """Moves the database and its log into the quarantine, and returns where it is then. Raises
    CannotStart if that is not possible."""
    name = f"{path.name}-{time.time_ns():x}"
    try:
        with _marker(path).open("w") as marker:
            marker.write(name)
            marker.flush()
            os.fsync(marker.fileno())
        aside = _move(path, path.parent / QUARANTINE / name)
    except OSError as error:
        raise CannotStart(
            f"{path} is damaged ({why}), and cannot be set aside: {error.strerror}"
        ) from error
    log.error("cold.set_aside", file=path.name, kept=f"{QUARANTINE}/{name}", why=why)
    return aside


def read_totals_of(path: Path) -> dict[str, ColdTotals]:
    """The totals of a database that was set aside, for the queues whose totals are consistent."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            found = read_totals(db)
    except (sqlite3.Error, UnicodeDecodeError, TypeError) as error:
        log.warning("cold.totals_unreadable", file=path.name, error=str(error))
        return {}
    return {queue: totals for queue, totals in found.items() if _is_consistent(queue, totals)}


def _is_consistent(queue: object, totals: ColdTotals) -> bool:
    counts = (
        totals.delivered,
        totals.dead,
        totals.deleted,
        totals.lost,
        totals.held,
        totals.taken,
        totals.accepted,
        totals.duplicate,
    )
    if not isinstance(queue, str) or not all(type(n) is int and n >= 0 for n in counts):
        return False
    return totals.taken + totals.accepted == sum(counts[:5])


def _move(path: Path, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for suffix in _FILES:
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(directory / (path.name + suffix))
    for changed in (directory, directory.parent, path.parent):
        _sync(changed)
    _looked(path).unlink(missing_ok=True)
    _marker(path).unlink()
    return directory / path.name


def _problem(path: Path) -> str | None:
    """What is wrong with a database; None if nothing is, or if it was repaired."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            found = _first_finding(db)
            if found is not None:
                db.execute("REINDEX")
                if _first_finding(db) is None:
                    log.warning("cold.reindexed", file=path.name, found=found)
                    return None
            return found
    except sqlite3.Error as error:
        return str(error)


def _first_finding(db: sqlite3.Connection) -> str | None:
    (finding,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    return None if finding == "ok" else str(finding)


def _marker(path: Path) -> Path:
    return path.with_name(path.name + ".suspect")


def _looked(path: Path) -> Path:
    """Exists if a check has found nothing: a second one would not either."""
    return path.with_name(path.name + ".looked")


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


async def account_for_missing(cold: ColdQueue, spooler: SpoolerClient) -> None:
    """Compares the cold store with what the journal has handed over to it, and reports the rest.

    Call it at the start, when the hand-overs of the last process are finished and none has begun.
    Missing items are counted as lost if the database was damaged and set aside. Otherwise they stay
    in the books as held, and an error in the log says so: the file was removed or replaced by an
    old copy, or another store is configured, and they may come back with the right one.
    """
    totals = await cold.totals()
    report = await spooler.ask(Inquire())
    given = {name: entry["handed_over"] for name, entry in report["queues"].items()}
    missing = {
        queue: items - (totals[queue].taken if queue in totals else 0)
        for queue, items in given.items()
    }
    missing = {queue: items for queue, items in missing.items() if items > 0}
    if missing:
        event = "cold.items_lost" if await cold.write_off(missing) else "cold.items_missing"
        for queue, items in missing.items():
            log.error(event, queue=queue, items=items)
