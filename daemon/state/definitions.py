"""The catalogue's file, `queues.json` in the state directory: replaced as a whole, durably.

This file has its own reserved room: a full disk must drain, and a paused queue that cannot be
resumed would prevent that.

Entries that cannot be read are kept in a second file (daemon/state/kept_file.py); the operator must
define or pause them again.
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
