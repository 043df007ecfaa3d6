"""The file of QUEUE triggers, `triggers.json` in the state directory: replaced whole, durably.

Entries that cannot be read are kept in a second file (daemon/state/kept_file.py). Jobs that their
triggers have made still end normally.
"""

from pathlib import Path
from typing import Final

import trio

from actors.config.trigger_book import KeptTriggers, SaveTriggers, kept_from_json, kept_to_json
from daemon.state.kept_file import load_kept
from daemon.state.private_files import replace_private

NAME: Final = "triggers.json"


def load_triggers(directory: Path) -> KeptTriggers:
    return load_kept(directory / NAME, kept_from_json, KeptTriggers())


def triggers_saver(directory: Path) -> SaveTriggers:
    async def save(kept: KeptTriggers) -> None:
        text = kept_to_json(kept)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(replace_private, directory / NAME, text)

    return save
