"""A real daemon in a process of its own, with a state directory that is removed afterwards.

State lies under ./.bench, on the disk of the clone; sockets lie in a short temporary directory,
since a socket's path has at most 107 bytes. The daemon's log is JSON lines in `daemon.log`.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import yaml

import forebay
from bench.sync_trace import SyncTrace

ROOT: Final = Path(__file__).resolve().parent.parent
START_S: Final = 60.0
STOP_S: Final = 60.0
POLL_S: Final = 0.002
QUIET_S: Final = 120.0

HOLDING: Final = "bench"
"""A queue without workers and consumers."""
DRAINED: Final = "drained"
"""A queue whose items are discarded as they come."""
QUEUES: Final = {
    HOLDING: {"handler": {"type": "pull"}},
    DRAINED: {"handler": {"type": "null"}},
}


CHUNKS_PER_S: Final = 14
"""Default chunks of 64 MiB: no producer here has filled more in a second."""
SPARE_CHUNKS_MAX: Final = 64


def spare_chunks_for(seconds: float) -> int:
    """How many chunks must be written ahead so that a round does not use them up."""
    return min(SPARE_CHUNKS_MAX, 4 + math.ceil(seconds * CHUNKS_PER_S))


@dataclass(frozen=True, slots=True)
class Places:
    """Where one benchmark's files lie."""

    state: Path
    sockets: Path


@contextmanager
def places(name: str) -> Iterator[Places]:
    """Directories for `name`: one on the disk under test, a short one for sockets."""
    work = ROOT / ".bench"
    work.mkdir(exist_ok=True)
    state = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=work))
    sockets = Path(tempfile.mkdtemp(prefix="forebay-"))
    try:
        yield Places(state, sockets)
    finally:
        shutil.rmtree(state, ignore_errors=True)
        shutil.rmtree(sockets, ignore_errors=True)
        if not any(work.iterdir()):
            work.rmdir()


@dataclass(slots=True)
class Daemon:
    """Started by `start` or as a context manager; may be stopped or killed and started again."""

    places: Places
    spool: Mapping[str, Any] = field(default_factory=dict)
    queues: Mapping[str, Any] = field(default_factory=lambda: QUEUES)
    events: Mapping[str, Any] = field(default_factory=dict)
    http_listen: str | None = None
    is_traced: bool = False
    """Its writes and syncs are recorded in `trace`."""
    trace: SyncTrace | None = None
    started_at: float = 0.0
    ready_s: float = 0.0
    """From the start of the process to the log line that it is ready."""
    _process: subprocess.Popen[bytes] | None = None
    _log: IO[bytes] | None = None
    _log_from: int = 0

    @property
    def socket(self) -> Path:
        return self.places.sockets / "forebay.sock"

    @property
    def state_dir(self) -> Path:
        return self.places.state / "state"

    @property
    def spool_dir(self) -> Path:
        return self.state_dir / "spool"

    @property
    def http_address(self) -> str:
        """Where it serves HTTP, if it does."""
        return (self.state_dir / "http.address").read_text().strip()

    @property
    def log_path(self) -> Path:
        return self.places.state / "daemon.log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        config = self.places.state / "forebay.yaml"
        config.write_text(yaml.safe_dump(self._settings()))
        command = [sys.executable, "-m", "daemon.cli.main"]
        if self.is_traced:
            self.trace = SyncTrace(self.places.sockets / "syncs")
            command = [sys.executable, "-m", "bench.sync_trace", str(self.trace.path)]
        self._log = self.log_path.open("ab")
        self._log_from = self._log.tell()
        self.started_at = time.monotonic()
        self._process = subprocess.Popen(
            [*command, "run", "--config", str(config)],
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            cwd=ROOT,
            env=_environment(),
        )
        self._wait_until_ready()
        return self

    def stop(self) -> None:
        """Drains and seals."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As a crash does it."""
        self._end(signal.SIGKILL)

    def connect(self, timeout: float = 60.0) -> forebay.Client:
        return forebay.connect(self.socket, timeout)

    def stats(self) -> dict[str, Any]:
        with self.connect() as client:
            return client.stats()

    def wait_until_quiet(self) -> None:
        """Until what can be delivered is delivered, and the chunks written ahead are there, as
        they are in steady state. So no contender is disturbed by the work of the one before."""
        spares = int(self.spool.get("spare_chunks", 2))
        deadline = time.monotonic() + QUIET_S
        while True:
            stats = self.stats()
            drained = stats["queues"].get(DRAINED, {"held": 0})
            if stats["spool"]["spare_chunks"] >= spares and not drained["held"]:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"the daemon did not come to rest in {QUIET_S:.0f} s")
            time.sleep(0.05)

    def memory_bytes(self, what: str = "VmRSS") -> int:
        """Of /proc/PID/status."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == what:
                return int(value.split()[0]) * 1024
        raise RuntimeError(f"no {what} in /proc/{self.pid}/status")

    def logged(self, event: str) -> dict[str, Any] | None:
        """The last line of this event since the last start."""
        found = None
        with self.log_path.open("rb") as log:
            log.seek(self._log_from)
            for line in log:
                if line.endswith(b"\n") and event.encode() in line:
                    entry = json.loads(line)
                    found = entry if entry["event"] == event else found
        return found

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.kill()

    def _settings(self) -> dict[str, Any]:
        return {
            "socket": {"path": str(self.socket)},
            "state_dir": str(self.state_dir),
            "http": {"listen": self.http_listen},
            "spool": dict(self.spool),
            "queues": dict(self.queues),
            "events": dict(self.events),
            "log": {"format": "json"},
        }

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        while self.logged("daemon.ready") is None:
            if self._process.poll() is not None:
                raise RuntimeError(f"the daemon did not start:\n{self.log_path.read_text()}")
            if time.monotonic() - self.started_at > START_S:
                self.kill()
                raise RuntimeError(f"the daemon was not ready after {START_S:.0f} s")
            time.sleep(POLL_S)
        self.ready_s = time.monotonic() - self.started_at

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise RuntimeError(f"the daemon did not stop in {STOP_S:.0f} s") from None
        finally:
            self._process = None
            if self._log is not None:
                self._log.close()
            if self.trace is not None:
                self.trace.close()
                self.trace = None


def _environment() -> dict[str, str]:
    """This process's, without what would change the daemon's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
