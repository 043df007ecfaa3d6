"""`forebay` as a process: forked from one that has imported it, or begun anew.

`start` is for what `subprocess.Popen` would be asked, `run` for `subprocess.run`: what they give
can be waited for and killed likewise. Begun anew (`anew=True`) it costs 0.9 s of CPU more; that is
for tests of how a process begins, or of its memory.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Final, Protocol

FOREBAY: Final = "daemon.cli.main"
ROOT: Final = Path(__file__).parents[2]


class Process(Protocol):
    """What a test asks of a process, however it was started."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Forked:
    """A process that was forked for us: somebody else's child, who tells us of its end."""

    def __init__(self, told: int) -> None:
        self._told = os.fdopen(told, "rb", buffering=0)
        self.pid = int(self._line())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("forebay", timeout or 0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int, /) -> None:
        # It is not reaped before we have been told: a process id that is somebody else's by now
        # is not hit, but for the moment between the two.
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        line = self._line()
        assert line, "the zygote has died"
        self.returncode = int(line)
        self._told.close()

    def __del__(self) -> None:
        self._told.close()

    def _line(self) -> bytes:
        """Lines are written at once."""
        line = bytearray()
        while (byte := self._told.read(1)) and byte != b"\n":
            line += byte
        return bytes(line)


class Zygote:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders = ours
        command = [sys.executable, "-m", "tests.forked.zygote"]
        self._process = subprocess.Popen(command, stdin=theirs.fileno(), cwd=ROOT)
        theirs.close()
        atexit.register(self.close)

    def close(self) -> None:
        """What it has forked dies with it; so it is as well if this process is killed."""
        self._orders.close()
        self._process.wait()

    def fork(
        self, module: str, args: Sequence[str], env: Mapping[str, str], streams: Sequence[int]
    ) -> Forked:
        told, teller = os.pipe()
        order = {
            "module": module,
            "args": list(args),
            "environment": dict(env),
            "directory": os.getcwd(),
        }
        try:
            socket.send_fds(self._orders, [json.dumps(order).encode()], [*streams, teller])
        finally:
            os.close(teller)
        return Forked(told)


@cache
def zygote() -> Zygote:
    return Zygote()


def start(
    args: Sequence[str],
    env: Mapping[str, str],
    log: IO[bytes],
    *,
    module: str = FOREBAY,
    listening: socket.socket | None = None,
    anew: bool = False,
) -> Process:
    """What it says goes to `log`; it is activated by the socket `listening`, if there is one."""
    if anew:
        assert listening is None
        command = [sys.executable, "-m", module, *args]
        return subprocess.Popen(command, env=env, stdout=log, stderr=log)
    with open(os.devnull, "rb") as nothing:
        streams = [nothing.fileno(), log.fileno(), log.fileno()]
        if listening is not None:
            streams.append(listening.fileno())
        return zygote().fork(module, args, env, streams)


def run(
    args: Sequence[str], env: Mapping[str, str], stdin: bytes, timeout: float
) -> subprocess.CompletedProcess[bytes]:
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as errors,
    ):
        given.write(stdin)
        given.seek(0)
        process = zygote().fork(FOREBAY, args, env, [given.fileno(), out.fileno(), errors.fileno()])
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(list(args), code, out.read(), errors.read())
