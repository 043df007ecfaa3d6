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
from tests.eventually import eventually_sync

FOREBAY = [sys.executable, "-m", "daemon.cli.main"]
HANG_S = 60
"""Nothing is measured by it: a command that hangs should fail the test."""
LOOK_S = 0.02
"""Between two looks at a daemon, which has better to do than to be looked at."""
PATIENT = dict.fromkeys(("hello_timeout", "frame_timeout", "write_timeout"), "1h")
"""Of the socket: a machine that is busy is no client that is slow."""
PARTS = ("spooled", "scheduled", "warm", "cold", "running")


class DaemonEnded(Exception):
    """A daemon ended that should serve; its log."""


class Host:
    """A state directory, a socket, a configuration, and the daemon that may run on them."""

    def __init__(self, directory: Path, config: dict[str, Any] | None = None) -> None:
        self.directory = directory
        self.socket = directory / "f.sock"
        self.state_dir = directory / "state"
        self.config = directory / "forebay.yaml"
        settings = {"spool": {"chunk_size": "4Mi", "min_free_bytes": 0, "spare_chunks": 0}}
        limits = {"socket": {"max_run_bytes": "1Mi", **PATIENT}, "http": {"listen": None}}
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
        eventually_sync(self._serves_or_ended, "the daemon serves")

    def _serves_or_ended(self) -> bool:
        if self.daemon is None or self.daemon.poll() is not None:
            raise DaemonEnded((self.directory / "daemon.log").read_text()[-4000:])
        return self._serves()

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
        with connect(self.socket, wait=HANG_S) as client:
            stats = client.stats()
        found: dict[str, int] = stats["daemon"] if queue is None else stats["queues"].get(queue, {})
        if found.get("held", 0) != sum(found.get(part, 0) for part in PARTS):
            raise ValueError(f"`held` is not the sum of its parts: {found}")
        return {name: count for name, count in found.items() if count and name not in PARTS}

    def until_books(self, wanted: dict[str, int], queue: str | None = None) -> None:
        """Waits until `books` are exactly these: they follow an answer, some by a second."""

        def agree() -> None:
            found = self.books(queue)
            assert found == wanted, f"{queue or 'all queues'}: {found}, not {wanted}"

        eventually_sync(agree)

    def until_counts(self, queue: str, **wanted: int) -> None:
        """Waits until these figures of a queue are so, as `cold=3`; of others nothing is said."""

        def agree() -> None:
            with connect(self.socket, wait=HANG_S) as client:
                found = client.stats()["queues"].get(queue, {})
            there = {name: found.get(name, 0) for name in wanted}
            assert there == wanted, f"{queue}: {found}, not {wanted}"

        eventually_sync(agree)

    def log(self, start: int = 0) -> list[dict[str, Any]]:
        """The whole lines from byte `start` on; the last one may be half written."""
        lines = (self.directory / "daemon.log").read_bytes()[start:].splitlines(keepends=True)
        whole = (line for line in lines if line.startswith(b"{") and line.endswith(b"\n"))
        return [json.loads(line) for line in whole]

    def until_logged(self, event: str, after: int = 0) -> None:
        """Waits for a line of this event among those after the first `after`."""

        def logged() -> None:
            said = [entry["event"] for entry in self.log()[after:]]
            assert event in said, f"no {event} in {said}"

        eventually_sync(logged)


@contextmanager
def running(host: Host) -> Iterator[Host]:
    try:
        host.start()
        yield host
    finally:
        if host.daemon is not None:
            host.daemon.kill()
            host.daemon.wait()
