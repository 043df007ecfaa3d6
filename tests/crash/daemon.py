"""A real daemon on a disk that kills it: `python -m tests.crash.daemon '<settings>' '<plan>'`.

The settings are JSON, as the configuration file would have them; the plan is `point:n`, a point
of killing_files.py. Everything else is the daemon as it is.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from actors.settings import Settings
from daemon import logs
from daemon.app import SWITCH_INTERVAL_S, serve
from daemon.journal.files import Files
from tests.crash.killing_files import KillingFiles


def run(settings_text: str, plan: str, listening: Callable[[], object] = lambda: None) -> None:
    """The life of a daemon; `listening` is called when clients can connect."""
    settings = Settings.model_validate(json.loads(settings_text))
    logs.set_up(settings.log)
    sys.setswitchinterval(SWITCH_INTERVAL_S)

    def make_files(directory: Path) -> Files:
        # The daemon opens its socket first, and its journal after that.
        listening()
        return KillingFiles(directory, plan)

    trio.run(partial(serve, settings, make_files=make_files))


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2])
