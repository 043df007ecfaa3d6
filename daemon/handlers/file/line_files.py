"""Writes JSON lines to one growing file, or to rolled files.

All calls block, and run in the file handler's thread, one at a time. After an `OSError` the next
call can try again.
"""

import math
import os
from pathlib import Path
from typing import Final, Protocol

from daemon.handlers.file.landing import (
    FILE_MODE,
    Landing,
    Part,
    make_directory,
    sync_directory,
    write_all,
)
from daemon.state.private_files import open_own

TAIL_BYTES: Final = 64 * 1024


class Lines(Protocol):
    def write(self, data: bytes, now_s: float) -> None:
        """Writes whole lines; on return they are on disk if `fsync` is set."""

    def close(self) -> None: ...


class GrowingFile:
    """One file. If a crash or a full disk cut a line short, it is ended before the next one."""

    def __init__(self, path: Path, *, fsync: bool) -> None:
        self._path = path
        self._fsync = fsync
        self._fd: int | None = None

    def write(self, data: bytes, now_s: float) -> None:
        try:
            if self._fd is None:
                self._fd = self._open()
            write_all(self._fd, data)
            if self._fsync:
                os.fdatasync(self._fd)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def _open(self) -> int:
        make_directory(self._path.parent, fsync=self._fsync)
        fd = open_own(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, FILE_MODE)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                write_all(fd, b"\n")
            if self._fsync:
                sync_directory(self._path.parent)
        except OSError:
            os.close(fd)
            raise
        return fd


class RolledFiles:
    """Begins a new file when the last one is large enough or old enough.

    A batch that cannot be written completely is removed again, so that files hold whole batches. A
    crash can leave a part of a batch, whose items are delivered again. A file that cannot be
    finished is left as after a crash, and `attend` finishes it.
    """

    def __init__(self, landing: Landing, *, bytes_max: int, age_max_s: float, fsync: bool) -> None:
        self._landing = landing
        self._bytes_max = bytes_max
        self._age_max_s = age_max_s
        self._fsync = fsync
        self._part: Part | None = None
        self._old_s = math.inf
        self.has_left = True
        """Whether there may be unfinished files that are no longer written to."""

    @property
    def due_s(self) -> float:
        """When `attend` is next due."""
        return -math.inf if self.has_left else self._old_s

    def attend(self, now_s: float) -> None:
        """Finishes the file if it is old enough, and files that were left."""
        if now_s >= self._old_s:
            self.close()
        if self.has_left:
            for part in self._landing.left_over():
                part.size = whole_lines(part.fd, part.size)
                os.ftruncate(part.fd, part.size)
                self._landing.finish(part)
            self.has_left = False

    def write(self, data: bytes, now_s: float) -> None:
        if now_s >= self._old_s:
            self.close()
        if self._part is None:
            self._part = self._landing.begin()
            self._old_s = now_s + self._age_max_s if self._age_max_s else math.inf
        part = self._part
        try:
            write_all(part.fd, data)
            if self._fsync:
                os.fdatasync(part.fd)
        except OSError:
            self._end_before(part)
            raise
        part.size += len(data)
        if 0 < self._bytes_max <= part.size:
            self.close()

    def close(self) -> None:
        """Finishes the current file; if that fails, it is finished later."""
        if self._part is not None:
            part, self._part = self._part, None
            self._old_s = math.inf
            try:
                self._landing.finish(part)
            except OSError:
                self.has_left = True

    def _end_before(self, part: Part) -> None:
        """Cuts a file back to its last good state.

        After a failed sync, the rest of its contents cannot be trusted.
        """
        try:
            os.ftruncate(part.fd, part.size)
        except OSError:
            self._part = None
            self._old_s = math.inf
            self.has_left = True
            os.close(part.fd)
        else:
            self.close()


def whole_lines(fd: int, size: int) -> int:
    """How many of a file's bytes are whole lines."""
    end = size
    while end:
        start = max(0, end - TAIL_BYTES)
        at = os.pread(fd, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0
