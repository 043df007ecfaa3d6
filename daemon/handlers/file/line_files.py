"""Where JSON lines go: one file that grows for ever, or a new one now and then.

All of it blocks, and runs in the file handler's thread, one call at a time. An `OSError` leaves
everything so that the next call can try again.
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
        """Whole lines; on disk on return, if that is wanted."""

    def close(self) -> None: ...


class GrowingFile:
    """One file. A line that a crash or a full disk has cut short is ended before the next one."""

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
    """A new file when there are enough bytes in the last one, or when it is old enough.

    What cannot be written as a whole is taken back, so that files hold whole batches; a crash can
    leave a part of one, whose items are delivered again. A file that cannot be finished is left
    as a crash would leave it, and `attend` finishes it.
    """

    def __init__(self, landing: Landing, *, bytes_max: int, age_max_s: float, fsync: bool) -> None:
        self._landing = landing
        self._bytes_max = bytes_max
        self._age_max_s = age_max_s
        self._fsync = fsync
        self._part: Part | None = None
        self._old_s = math.inf
        self.has_left = True
        """Whether there may be files to finish that are not written to any more."""

    @property
    def due_s(self) -> float:
        """When there will be something to attend to."""
        return -math.inf if self.has_left else self._old_s

    def attend(self, now_s: float) -> None:
        """Finishes what is old enough, and what was left."""
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
        """Finishes the file that is being written, now or later."""
        if self._part is not None:
            part, self._part = self._part, None
            self._old_s = math.inf
            try:
                self._landing.finish(part)
            except OSError:
                self.has_left = True

    def _end_before(self, part: Part) -> None:
        """Ends a file with what was good before.

        After a sync that failed, nothing that the file would say of itself can be trusted.
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
