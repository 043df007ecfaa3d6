"""The catalogue's file, `queues.json` in the state directory: replaced as a whole, durably.

A disk that is full must drain, and it cannot while a queue is paused that nobody can resume: so
there is some room of its own for this file.

What of it cannot be read is kept beside it (daemon/state/kept_file.py): it must be defined or
paused again.
"""

import errno
from pathlib import Path
from typing import Final

import trio

from actors.config.catalogue import (
    Definitions,
    Save,
    definitions_from_json,
    definitions_to_json,
)
from daemon.state.ballast import Ballast
from daemon.state.kept_file import load_kept
from daemon.state.private_files import replace_private

NAME: Final = "queues.json"
BALLAST_BYTES: Final = 256 * 1024


def load_definitions(directory: Path) -> Definitions:
    return load_kept(directory / NAME, definitions_from_json, Definitions())


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
