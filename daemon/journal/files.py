"""Every disk operation of the journal, so that a test can fail or kill at each of them.

All calls block; they run on the spooler's threads. A path is a name inside the spool directory.
Nothing here retries or hides an error: the caller decides what a failure means.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from daemon.state.private_files import PRIVATE_MODE, check_private_directory

IOV_MAX = 1024
COPY_BYTES = 1024 * 1024
_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW


class Files:
    """One directory, and the system calls on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def create_directory(self) -> None:
        """Makes the directory and its quarantine, durably, readable only by their owner. Raises
        CannotStart if other users may write to it."""
        if not self.directory.exists():
            self.directory.mkdir(mode=0o700, parents=True)
            sync_path(self.directory.parent)
        check_private_directory(self.directory)
        quarantine = self.path("quarantine")
        if quarantine.exists() and not quarantine.is_dir():
            quarantine.rename(self.path(f"quarantine-{time.time_ns():x}"))
        quarantine.mkdir(mode=0o700, exist_ok=True)

    def path(self, name: str) -> Path:
        return self.directory / name

    def names(self) -> list[str]:
        """Of the files; links are not followed."""
        entries = os.scandir(self.directory)
        return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))

    def size(self, name: str) -> int:
        return os.stat(self.path(name)).st_size

    def open_new(self, name: str) -> int:
        return os.open(self.path(name), os.O_RDWR | os.O_CREAT | os.O_TRUNC | _SAFE, PRIVATE_MODE)

    def open_write(self, name: str) -> int:
        return os.open(self.path(name), os.O_RDWR | _SAFE)

    def open_append(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _SAFE
        return os.open(self.path(name), flags, PRIVATE_MODE)

    def open_read(self, name: str) -> int:
        return os.open(self.path(name), os.O_RDONLY | _SAFE)

    def close(self, fd: int) -> None:
        os.close(fd)

    def read(self, fd: int, length: int, at: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the file only."""
        data = os.pread(fd, length, at)
        while data and len(data) < length:
            more = os.pread(fd, length - len(data), at + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, fd: int, parts: Sequence[bytes], at: int) -> None:
        """Writes all of the parts, one after the other, at `at`."""
        for start in range(0, len(parts), IOV_MAX):
            batch = parts[start : start + IOV_MAX]
            length = sum(map(len, batch))
            written = os.pwritev(fd, batch, at)
            if written < length:
                rest = b"".join(batch)
                while written < length:
                    written += os.pwrite(fd, rest[written:], at + written)
            at += length

    def append(self, fd: int, data: bytes) -> None:
        """Appends all of `data`."""
        while data:
            data = data[os.write(fd, data) :]

    def datasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def sync_directory(self) -> None:
        sync_path(self.directory)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def allocate(self, fd: int, length: int) -> None:
        """Reserves room; the file gets its full size at once."""
        os.posix_fallocate(fd, 0, length)

    def rename(self, old: str, new: str) -> None:
        os.rename(self.path(old), self.path(new))

    def link(self, old: str, new: str) -> None:
        """A second name for a file."""
        os.link(self.path(old), self.path(new))

    def unlink(self, name: str) -> None:
        """Removes a file; one that is gone already is fine."""
        self.path(name).unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """The free bytes of the file system for an unprivileged process."""
        stats = os.statvfs(self.directory)
        return stats.f_bavail * stats.f_frsize

    def read_file(self, name: str) -> bytes:
        return self.path(name).read_bytes()

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Writes a whole file so that a crash leaves the old one or the new one."""
        temporary = name + ".tmp"
        fd = self.open_new(temporary)
        try:
            self.write(fd, [data], 0)
            if durable:
                self.datasync(fd)
        finally:
            self.close(fd)
        self.rename(temporary, name)
        if durable:
            self.sync_directory()

    def copy_aside(self, name: str, start: int, end: int, aside: str) -> None:
        """Copies a part of a file into the quarantine."""
        source = self.open_read(name)
        try:
            target = self.open_new(f"quarantine/{aside}")
            try:
                at = start
                while at < end:
                    data = self.read(source, min(COPY_BYTES, end - at), at)
                    if not data:
                        break
                    self.write(target, [data], at - start)
                    at += len(data)
                self.datasync(target)
            finally:
                self.close(target)
        finally:
            self.close(source)


def sync_path(directory: Path) -> None:
    """Makes the names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
