"""`forebay` in a hurry: its wall clock, and the one it has PostgreSQL go by, run 100 times as fast,
and schedules are looked after as often as that asks for.

All processes with the same `FOREBAY_TEST_SINCE_MS` have the same time. Only what is said in
moments is hurried (when a tick is due, leases in the cold store); how long the daemon waits, and
leases in warm, are not.
"""

import os
import time
from types import SimpleNamespace
from typing import Final

import actors.cron.look_ahead
import actors.model.clock
from daemon.cli import main as forebay
from daemon.stores.postgres.store import PostgresCold

SPEED: Final = 100
REFRESH_S: Final = 0.03
SINCE: Final = "FOREBAY_TEST_SINCE_MS"


def hurried_ns() -> int:
    since_ns = int(os.environ[SINCE]) * 1_000_000
    return since_ns + (time.time_ns() - since_ns) * SPEED


def main() -> None:
    # The functions stay what they are: all that imported them have them by now.
    hurried = SimpleNamespace(time_ns=hurried_ns, monotonic_ns=time.monotonic_ns)
    vars(actors.model.clock)["time"] = hurried
    actors.cron.look_ahead.refresh_s = lambda ticks: REFRESH_S
    defaults = PostgresCold.__init__.__kwdefaults__
    assert defaults is not None
    defaults["now_ms"] = actors.model.clock.wall_ms
    forebay.main()


if __name__ == "__main__":
    main()
