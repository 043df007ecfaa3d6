"""The file of schedules, `schedules.json` in the state directory: replaced as a whole, durably.

Entries that cannot be read are kept in a second file (daemon/state/kept_file.py). Their installed
ticks still come due.
"""

from pathlib import Path
from typing import Final

import trio

from actors.config.schedule_book import Kept, SaveKept, kept_from_json, kept_to_json
from daemon.state.kept_file import load_kept
from daemon.state.private_files import replace_private

NAME: Final = "schedules.json"


def load_schedules(directory: Path) -> Kept:
    return load_kept(directory / NAME, kept_from_json, Kept())


def schedules_saver(directory: Path) -> SaveKept:
    async def save(kept: Kept) -> None:
        text = kept_to_json(kept)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(replace_private, directory / NAME, text)

    return save
