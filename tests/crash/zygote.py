"""A process that has imported everything and forks a daemon for each order: a start costs 10 ms.

Orders come on stdin and answers go to stdout, a JSON object a line. To an order (`settings`,
`plan`, `clock_ahead_s`, `log`) it answers three times: the daemon's process id at once, whether it
`listens` when that is known, and its exit `status` when it has ended. One daemon at a time.
"""

import ctypes
import json
import os
import signal
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Final

from tests.crash import daemon, flaky

PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    _die_with_parent()
    for line in sys.stdin:
        _run_one(json.loads(line))


def _run_one(order: dict[str, str]) -> None:
    told, teller = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        _become_daemon(order, teller)
    os.close(teller)
    _say({"pid": pid})
    # Nothing comes through the pipe if its other end died.
    _say({"listens": bool(os.read(told, 1))})
    os.close(told)
    _, status = os.waitpid(pid, 0)
    _say({"status": os.waitstatus_to_exitcode(status)})


def _become_daemon(order: dict[str, str], teller: int) -> None:
    status = 1
    try:
        _die_with_parent()
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 2)
        os.dup2(log, 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        flaky.tell(Path(order["log"]).with_name(flaky.NAME))
        ahead_s = int(order["clock_ahead_s"])
        daemon.run(order["settings"], order["plan"], ahead_s, partial(os.write, teller, b"."))
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _say(answer: dict[str, int]) -> None:
    print(json.dumps(answer), flush=True)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
