"""Files for a landing zone: written under a name that ends in `.part`, renamed when complete.

A reader that ignores `.part` files sees only complete files. The writer of a `.part` holds a lock
(flock) on it; an unlocked one was left by a crash. Two handlers, or two daemons on one host, may
share a directory and even a pattern: they never take each other's names.

All calls block, and run in a handler's thread, one at a time.
"""

import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from actors.config.handlers import FileHandler
from daemon.state.private_files import open_own, others_may_write

PART: Final = ".part"
FILE_MODE: Final = 0o640
NUMBERS: Final = 10_000
"""How many files may be begun per second."""
_TIME: Final = r"\d{8}T\d{6}Z-\d{4}"


@dataclass(slots=True, eq=False)
class Part:
    """A file that is being written."""

    fd: int
    path: Path
    """Its final name."""
    size: int = 0

    @property
    def part_path(self) -> Path:
        return self.path.with_name(self.path.name + PART)


class Landing:
    """The files of one pattern."""

    def __init__(
        self,
        queue: str,
        settings: FileHandler,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._path_at: Callable[[str], Path] = partial(settings.path_for, queue)
        self._fsync = settings.fsync
        self._now = now
        self._last = ("", -1)
        self.directory = self._path_at("").parent
        name = settings.path.name.replace("{queue}", queue)
        escaped = _TIME.join(map(re.escape, name.split("{time}")))
        self._left_over = re.compile(f"({escaped}){re.escape(PART)}")

    def begin(self) -> Part:
        """A new file, empty and locked, with an unused name."""
        make_directory(self.directory, fsync=self._fsync)
        stamp = f"{self._now():%Y%m%dT%H%M%SZ}"
        last_stamp, last = self._last
        for number in range(last + 1 if stamp == last_stamp else 0, NUMBERS):
            path = self._path_at(f"{stamp}-{number:04}")
            self._last = (stamp, number)
            part = self._create(path)
            if part is not None:
                return part
        raise FileExistsError(errno.EEXIST, f"{NUMBERS} files were begun in a second")

    def _create(self, path: Path) -> Part | None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        part_path = path.with_name(path.name + PART)
        try:
            fd = os.open(part_path, flags, FILE_MODE)
        except FileExistsError:
            return None
        # Another process that looks for crash leftovers may have found it before it was locked.
        if not is_taken(fd, part_path):
            os.close(fd)
            return None
        if path.exists():
            part_path.unlink()
            os.close(fd)
            return None
        if self._fsync:
            sync_directory(self.directory)
        return Part(fd, path)

    def finish(self, part: Part) -> None:
        """Gives a complete file its final name. An empty one is removed."""
        try:
            if not part.size:
                part.part_path.unlink()
                return
            if self._fsync:
                os.fsync(part.fd)
            part.part_path.rename(part.path)
            if self._fsync:
                sync_directory(self.directory)
        finally:
            os.close(part.fd)

    def left_over(self) -> Iterator[Part]:
        """Files left by crashes, locked; the caller finishes them."""
        with suppress(FileNotFoundError):
            matches = [self._left_over.fullmatch(name) for name in os.listdir(self.directory)]  # noqa: PTH208
            for match in filter(None, matches):
                part = self._take(self.directory / match[0], self.directory / match[1])
                if part is not None:
                    yield part

    def _take(self, part_path: Path, path: Path) -> Part | None:
        try:
            fd = open_own(part_path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW, FILE_MODE)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.EPERM):
                # It is gone, or another user has put it there.
                return None
            raise
        if not is_taken(fd, part_path):
            os.close(fd)
            return None
        return Part(fd, path, os.fstat(fd).st_size)


def is_taken(fd: int, path: Path) -> bool:
    """Whether this process now has the lock, and the file still has this name."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(fd), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def make_directory(directory: Path, *, fsync: bool) -> None:
    """Makes the directory and its parents, durably if wanted. Raises OSError if another user may
    have put a link in its place."""
    if directory.is_dir():
        if directory.is_symlink() and others_may_write(directory.parent):
            problem = "is a symbolic link in a directory that others may write, and is not followed"
            raise OSError(errno.ELOOP, problem, str(directory))
        return
    make_directory(directory.parent, fsync=fsync)
    directory.mkdir(exist_ok=True)
    if fsync:
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
