"""A process that has imported the daemon, and forks one for each order: a start costs 20 ms.

`python -m daemon.cli.main` takes 0.9 s of CPU to import what it needs, and the tests start it a few
hundred times. An order is one packet on the socket that this process has as its stdin: a JSON
object (`module`, `args`, `environment`, `directory`) and descriptors: the new process' stdin,
stdout and stderr, a socket that it listens on as with systemd's socket activation (or none), and a
pipe that is told its process id at once, and its exit code when it ends.
What comes of it is what a process of its own would be, but for its command line in /proc.
"""

import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import Any, Final, NoReturn

import daemon.app
import daemon.cli.main
import daemon.http.app
import daemon.http.server
import daemon.stores.open  # noqa: F401

ORDER_BYTES_MAX: Final = 1 << 20
PR_SET_PDEATHSIG: Final = 1


class Zygote:
    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._told: dict[int, int] = {}
        """The pipes of the processes that run, by process id."""
        self._died, wake = os.pipe2(os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Until the other end is closed; what was forked dies with this process."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._orders, selectors.EVENT_READ)
            selector.register(self._died, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._died in ready:
                    os.read(self._died, 4096)
                    self._bury()
                if self._orders in ready and not self._take():
                    return

    def _take(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._orders, ORDER_BYTES_MAX, 5)
        if not data:
            return False
        *streams, told = fds
        pid = os.fork()
        if pid == 0:
            become(json.loads(data), streams)
        for fd in streams:
            os.close(fd)
        os.write(told, f"{pid}\n".encode())
        self._told[pid] = told
        return True

    def _bury(self) -> None:
        while self._told:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            told = self._told.pop(pid)
            # The test that started it may have gone on without it.
            with suppress(BrokenPipeError):
                os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os.close(told)


def become(order: dict[str, Any], streams: list[int]) -> NoReturn:
    code = 70
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        os.closerange(len(streams), 256)
        os.chdir(order["directory"])
        os.environ.clear()
        os.environ.update(order["environment"])
        if len(streams) > 3:
            os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
        sys.argv = ["forebay", *order["args"]]
        importlib.import_module(order["module"]).main()
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    # A collection must not write to the pages that all share.
    gc.collect()
    gc.freeze()
    Zygote(socket.socket(fileno=os.dup(0))).serve()
