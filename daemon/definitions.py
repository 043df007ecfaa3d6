"""The catalogue's file, `queues.json` in the state directory: replaced as a whole, durably.

A disk that is full must drain, and it cannot while a queue is paused that nobody can resume: so
there is some room of its own for this file.

A file that makes no sense is kept aside, and the daemon starts without it: what it defined and
paused must be said again, and the log says so.
"""

import errno
import time
from pathlib import Path
from typing import Final

import structlog
import trio

from actors.catalogue import (
    Definitions,
    Save,
    definitions_from_json,
    definitions_to_json,
)
from daemon.ballast import Ballast
from daemon.errors import CannotStart
from daemon.private_files import read_private, replace_private

log = structlog.get_logger()

NAME: Final = "queues.json"
BALLAST_BYTES: Final = 256 * 1024


def load_definitions(directory: Path) -> Definitions:
    path = directory / NAME
    try:
        return definitions_from_json(read_private(path))
    except FileNotFoundError:
        return Definitions()
    except OSError as error:
        raise CannotStart(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as problem:
        aside = path.with_name(f"{NAME}.damaged-{time.time_ns():x}")
        path.rename(aside)
        log.error("catalogue.damaged", file=str(path), kept=str(aside), error=str(problem))
        return Definitions()


def saver(directory: Path) -> Save:
    ballast = Ballast(directory / f"{NAME}.ballast", BALLAST_BYTES)
    ballast.keep()

    def replace(text: str) -> None:
        try:
            replace_private(directory / NAME, text)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not ballast.give_up():
                raise
            replace_private(directory / NAME, text)
        ballast.keep()

    async def save(definitions: Definitions) -> None:
        text = definitions_to_json(definitions)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(replace, text)

    return save
