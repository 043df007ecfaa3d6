"""A real daemon whose stores kill it: `python -m tests.crash.daemon '<settings>' '<plan>'`.

The settings are JSON, as the configuration file would have them; the plan is `point:n`, a point
of killing_files.py or killing_cold.py. Everything else is the daemon as it is, but for its wall
clock, which may be ahead: to the daemon it is as if it had been away for that long.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import trio

from actors.settings import Settings
from daemon import logs
from daemon.app import SWITCH_INTERVAL_S, serve
from daemon.cold.sqlite import SqliteCold
from daemon.journal.files import Files
from tests.crash.killer import Killer
from tests.crash.killing_cold import COLD_POINTS, KillingCold
from tests.crash.killing_files import POINTS, KillingFiles


def run(
    settings_text: str,
    plan: str,
    clock_ahead_s: int = 0,
    listening: Callable[[], object] = lambda: None,
) -> None:
    """The life of a daemon; `listening` is called when clients can connect."""
    settings = Settings.model_validate(json.loads(settings_text))
    logs.set_up(settings.log)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    killer = Killer(plan, (*POINTS, *COLD_POINTS))

    def make_files(directory: Path) -> Files:
        return KillingFiles(directory, killer)

    def make_cold(path: Path, timeout_s: float) -> SqliteCold:
        # The daemon opens its socket first, and its stores after that.
        listening()
        return KillingCold(path, timeout_s, killer)

    with clock_ahead(clock_ahead_s):
        trio.run(partial(serve, settings, make_files=make_files, make_cold=make_cold))


def clock_ahead(seconds: int) -> "patch[Callable[[], int]]":
    here_ns = time.time_ns
    return patch.object(time, "time_ns", lambda: here_ns() + seconds * 10**9)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2])
