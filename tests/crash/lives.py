"""Daemons as a test sees them: started from the zygote, killed, waited for."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]


class Zygote:
    """The process that forks the daemons; a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._life: Life | None = None

    def start(
        self, settings: dict[str, Any], plan: str, log: Path, clock_ahead_s: int = 0
    ) -> "Life":
        """A daemon that can be connected to, or that has died before it came that far."""
        assert self._process.stdin is not None
        if self._life is not None:
            # What a test that failed has left.
            self._life.end()
        order = {
            "settings": json.dumps(settings),
            "plan": plan,
            "log": str(log),
            "clock_ahead_s": str(clock_ahead_s),
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self._life = Life(self, self.answer()["pid"], log)
        return self._life

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the zygote has died"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A daemon that still lives dies with it.
        self._process.kill()
        self._process.communicate()


class Life:
    """One daemon process, from its start to its end."""

    def __init__(self, zygote: Zygote, pid: int, log: Path) -> None:
        self._zygote = zygote
        self._pid = pid
        self._log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        self._status: int | None = None
        # Now it listens, or has died before it came that far.
        zygote.answer()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self._pid, number)

    def wait(self) -> int:
        """The exit code when it has ended; less than 0: the signal."""
        if self._status is None:
            self._status = self._zygote.answer()["status"]
        return self._status

    def end(self) -> None:
        if self._status is None:
            with suppress(ProcessLookupError):
                self.kill()
            self.wait()

    def events(self) -> list[dict[str, Any]]:
        """What it has logged."""
        lines = self._log.read_bytes()[self._log_start :].splitlines()
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def log_text(self) -> str:
        return self._log.read_bytes()[self._log_start :].decode(errors="replace")
