"""The file of schedules, `schedules.json` in the state directory: replaced as a whole, durably.

A file that makes no sense is kept aside, and the daemon starts without it: what was scheduled at
run time must be said again, and the log says so. Its ticks that are installed come due.
"""

import time
from pathlib import Path
from typing import Final

import structlog
import trio

from actors.schedule_book import Kept, SaveKept, kept_from_json, kept_to_json
from daemon.errors import CannotStart
from daemon.private_files import read_private, replace_private

log = structlog.get_logger()

NAME: Final = "schedules.json"


def load_schedules(directory: Path) -> Kept:
    path = directory / NAME
    try:
        return kept_from_json(read_private(path))
    except FileNotFoundError:
        return Kept()
    except OSError as error:
        raise CannotStart(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as problem:
        aside = path.with_name(f"{NAME}.damaged-{time.time_ns():x}")
        path.rename(aside)
        log.error("cron.damaged", file=str(path), kept=str(aside), error=str(problem))
        return Kept()


def schedules_saver(directory: Path) -> SaveKept:
    async def save(kept: Kept) -> None:
        text = kept_to_json(kept)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(replace_private, directory / NAME, text)

    return save
