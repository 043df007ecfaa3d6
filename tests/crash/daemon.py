"""A real daemon whose stores kill it: `python -m tests.crash.daemon '<settings>' '<plan>'`.

The settings are JSON, as the configuration file would have them; the plan is `point:n`, a point
of killing_files.py or killing_cold.py, or a plan of powerless.py. Everything else is the daemon as
it is, but for its wall clock, which may be ahead: as if it had been away for that long.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import trio

from actors.config.settings import Settings, SocketSettings
from daemon import app as daemon_app
from daemon.app import SWITCH_INTERVAL_S
from daemon.http import app, server  # noqa: F401 - once, and not in every life that shows itself
from daemon.journal.files import Files
from daemon.process import logs
from daemon.process.listen import ListeningSocket, prepare_socket
from daemon.stores.sqlite.store import SqliteCold
from tests.crash import powerless
from tests.crash.killer import Killer
from tests.crash.killing_cold import COLD_POINTS, DOUBT, WRITE_POINTS, KillingCold
from tests.crash.killing_files import POINTS, RECORD_POINTS, KillingFiles

MakeFiles = Callable[[Path], Files]
MakeCold = Callable[[Path, float], SqliteCold]


def run(
    settings_text: str,
    plan: str,
    clock_ahead_s: int = 0,
    listening: Callable[[], object] = lambda: None,
) -> None:
    """The life of a daemon; `listening` is called when clients can connect."""
    settings = Settings.model_validate({"http": {"listen": None}} | json.loads(settings_text))
    logs.set_up(settings.log)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    make_files, make_cold = stores(plan, settings.state_dir)

    def prepare_and_tell(socket: SocketSettings) -> Callable[[], ListeningSocket]:
        open_socket = prepare_socket(socket)

        def open_and_tell() -> ListeningSocket:
            opened = open_socket()
            listening()
            return opened

        return open_and_tell

    with clock_ahead(clock_ahead_s), patch.object(daemon_app, "prepare_socket", prepare_and_tell):
        trio.run(partial(daemon_app.serve, settings, make_files=make_files, make_cold=make_cold))


def stores(plan: str, state: Path) -> tuple[MakeFiles, MakeCold]:
    if plan.startswith(f"{powerless.PLAN}:"):
        power = powerless.Power(plan, state)
        return power.make_files, power.make_cold
    killer = Killer(plan, (*POINTS, *RECORD_POINTS, *COLD_POINTS, *WRITE_POINTS, DOUBT))
    return (
        lambda directory: KillingFiles(directory, killer),
        lambda path, timeout_s: KillingCold(path, timeout_s, killer),
    )


@contextmanager
def clock_ahead(seconds: int) -> Iterator[None]:
    here_ns = time.time_ns
    with patch.object(time, "time_ns", lambda: here_ns() + seconds * 10**9):
        yield


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2])
