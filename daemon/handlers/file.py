"""The file handler: appends one JSON object a line, for landing zones and for looking.

Lines are whole: a line that a crash cut short is ended before the next one is written, so that
what follows can be read. The item that was cut is delivered again.
"""

import os
from functools import partial
from pathlib import Path

import trio

from actors.messages import StoredRun
from actors.ports import DeliveryFailed
from daemon.handlers.lines import run_lines


class FileDelivery:
    def __init__(self, path: Path, *, fsync: bool) -> None:
        self._path = path
        self._fsync = fsync
        self._fd: int | None = None
        self._limiter = trio.CapacityLimiter(1)

    async def deliver(self, run: StoredRun, done: int) -> None:
        try:
            await trio.to_thread.run_sync(partial(self._write, run, done), limiter=self._limiter)
        except OSError as error:
            self._close()
            raise DeliveryFailed(f"{self._path}: {error.strerror}") from error

    async def aclose(self) -> None:
        self._close()
        await trio.lowlevel.checkpoint()

    def _write(self, run: StoredRun, done: int) -> None:
        if self._fd is None:
            self._fd = self._open()
        data = run_lines(run, done)
        while data:
            data = data[os.write(self._fd, data) :]
        if self._fsync:
            os.fdatasync(self._fd)

    def _open(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            os.write(fd, b"\n")
        return fd

    def _close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)
