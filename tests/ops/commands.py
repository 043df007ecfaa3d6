"""Runs the real `forebay`, as a user would: a daemon in the background, commands beside it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay import ForebayError, connect
from tests import forked

FOREBAY = [sys.executable, "-m", "daemon.cli.main"]
HANG_S = 60
"""Nothing is measured by it: a command that hangs should fail the test."""
LOOK_S = 0.02
"""Between two looks at a daemon, which has better to do than to be looked at."""
PARTS = ("spooled", "scheduled", "warm", "cold", "running")


class Host:
    """A state directory, a socket, a configuration, and the daemon that may run on them."""

    def __init__(self, directory: Path, config: dict[str, Any] | None = None) -> None:
        self.directory = directory
        self.socket = directory / "f.sock"
        self.state_dir = directory / "state"
        self.config = directory / "forebay.yaml"
        settings = {"spool": {"chunk_size": "4Mi", "min_free_bytes": 0, "spare_chunks": 0}}
        limits = {"socket": {"max_run_bytes": "1Mi"}, "http": {"listen": None}}
        self.config.write_text(json.dumps({**settings, **limits, **(config or {})}))
        self.daemon: forked.Process | None = None

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if "FOREBAY" not in name}
        return clean | {
            "FOREBAY_CONFIG": str(self.config),
            "FOREBAY_SOCKET": str(self.socket),
            "FOREBAY_STATE_DIR": str(self.state_dir),
            "COLUMNS": "200",
        }

    def command(self, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return forked.run(args, self.environment, stdin, HANG_S)

    def ok(self, *args: str, stdin: bytes = b"") -> str:
        done = self.command(*args, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def start(self, *, anew: bool = False) -> None:
        """Starts the daemon and returns when it serves."""
        with open(self.directory / "daemon.log", "ab") as log:
            self.daemon = forked.start(["run"], self.environment, log, anew=anew)
        while not self._serves():
            if self.daemon.poll() is not None:
                raise AssertionError((self.directory / "daemon.log").read_text())

    def _serves(self) -> bool:
        try:
            with connect(self.socket, wait=1) as client:
                client.ping()
        except ForebayError:
            return False
        return True

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.daemon is not None
        self.daemon.send_signal(number)
        code = self.daemon.wait(HANG_S)
        self.daemon = None
        return code

    def books(self, queue: str | None = None) -> dict[str, int]:
        """What is not 0, without the parts of `held`: items move while a test looks."""
        stats = json.loads(self.ok("stats", "--json"))
        found: dict[str, int] = stats["daemon"] if queue is None else stats["queues"][queue]
        assert found["held"] == sum(found[part] for part in PARTS)
        return {name: count for name, count in found.items() if count and name not in PARTS}

    def log(self) -> list[dict[str, Any]]:
        lines = (self.directory / "daemon.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@contextmanager
def running(host: Host) -> Iterator[Host]:
    try:
        host.start()
        yield host
    finally:
        if host.daemon is not None:
            host.daemon.kill()
            host.daemon.wait()
