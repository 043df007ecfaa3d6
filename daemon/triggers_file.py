"""The file of QUEUE triggers, `triggers.json` in the state directory: replaced whole, durably.

A file that makes no sense is kept aside, and the daemon starts without it: triggers that were made
at run time must be made again, and the log says so. Jobs that they have made are ended as ever.
"""

import time
from pathlib import Path
from typing import Final

import structlog
import trio

from actors.trigger_book import KeptTriggers, SaveTriggers, kept_from_json, kept_to_json
from daemon.errors import CannotStart
from daemon.private_files import read_private, replace_private

log = structlog.get_logger()

NAME: Final = "triggers.json"


def load_triggers(directory: Path) -> KeptTriggers:
    path = directory / NAME
    try:
        return kept_from_json(read_private(path))
    except FileNotFoundError:
        return KeptTriggers()
    except OSError as error:
        raise CannotStart(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as problem:
        aside = path.with_name(f"{NAME}.damaged-{time.time_ns():x}")
        path.rename(aside)
        log.error("triggers.damaged", file=str(path), kept=str(aside), error=str(problem))
        return KeptTriggers()


def triggers_saver(directory: Path) -> SaveTriggers:
    async def save(kept: KeptTriggers) -> None:
        text = kept_to_json(kept)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(replace_private, directory / NAME, text)

    return save
