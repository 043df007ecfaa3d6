"""The log of a SQLite store that a killed process has left."""

import shutil
import sqlite3
from pathlib import Path

from daemon.stores.sqlite.connection import Database


def times_synced(path: Path) -> int:
    db = sqlite3.connect(path)
    try:
        ((times,),) = db.execute("SELECT times FROM synced").fetchall()
    finally:
        db.close()
    return int(times)


async def test_a_log_that_was_left_is_synced_before_anything_relies_on_it(tmp_path: Path) -> None:
    """It may have been written and not synced, and the power may go next."""
    old, new = tmp_path / "old.sqlite", tmp_path / "new.sqlite"
    killed = Database(old, 60, 0)
    await killed.open()
    await killed.write(lambda db: db.execute("UPDATE synced SET times = 10"), is_durable=False)
    shutil.copy(old, new)
    shutil.copy(tmp_path / "old.sqlite-wal", tmp_path / "new.sqlite-wal")
    await killed.close()

    restarted = Database(new, 60, 0)
    await restarted.open()
    await restarted.sync()
    await restarted.sync()
    await restarted.close()
    assert times_synced(new) == 11
