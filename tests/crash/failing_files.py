"""A disk that fails when it is told to, call by call and file by file."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from tests.crash.named_files import QuickFiles

Call = Literal[
    "allocate",
    "append",
    "datasync",
    "open_append",
    "open_new",
    "open_read",
    "read",
    "read_file",
    "rename",
    "sync",
    "sync_directory",
    "truncate",
    "unlink",
    "write",
]


@dataclass(slots=True)
class Fault:
    call: Call
    pattern: str
    number: int
    skip: int
    """How often it goes well before that."""
    left: int | None
    """How often it still happens; None: until the disk is mended."""


class FailingFiles(QuickFiles):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._faults: list[Fault] = []
        self.failed: list[tuple[Call, str]] = []
        """The calls that failed, and on which files."""
        self.written: list[tuple[str, int]] = []
        """The files that were written to, and at which offsets."""

    def break_down(
        self,
        call: Call,
        number: int,
        pattern: str = "*",
        times: int | None = None,
        skip: int = 0,
    ) -> None:
        """From now on the call fails, on files with such a name, with this errno."""
        self._faults.append(Fault(call, pattern, number, skip, times))

    def mend(self) -> None:
        self._faults.clear()

    def _meet(self, call: Call, name: str = "") -> None:
        for fault in self._faults:
            if fault.call == call and fnmatchcase(name, fault.pattern) and fault.left != 0:
                if fault.skip:
                    fault.skip -= 1
                    continue
                if fault.left is not None:
                    fault.left -= 1
                self.failed.append((call, name))
                raise OSError(fault.number, os.strerror(fault.number))

    def open_new(self, name: str) -> int:
        self._meet("open_new", name)
        return super().open_new(name)

    def open_append(self, name: str) -> int:
        self._meet("open_append", name)
        return super().open_append(name)

    def open_read(self, name: str) -> int:
        self._meet("open_read", name)
        return super().open_read(name)

    def read(self, fd: int, length: int, at: int) -> bytes:
        self._meet("read", self.name_of(fd))
        return super().read(fd, length, at)

    def read_file(self, name: str) -> bytes:
        self._meet("read_file", name)
        return super().read_file(name)

    def write(self, fd: int, parts: Sequence[bytes], at: int) -> None:
        self._meet("write", self.name_of(fd))
        super().write(fd, parts, at)
        self.written.append((self.name_of(fd), at))

    def append(self, fd: int, data: bytes) -> None:
        self._meet("append", self.name_of(fd))
        super().append(fd, data)

    def datasync(self, fd: int) -> None:
        self._meet("datasync", self.name_of(fd))
        super().datasync(fd)

    def sync(self, fd: int) -> None:
        self._meet("sync", self.name_of(fd))
        super().sync(fd)

    def sync_directory(self) -> None:
        self._meet("sync_directory")
        super().sync_directory()

    def truncate(self, fd: int, length: int) -> None:
        self._meet("truncate", self.name_of(fd))
        super().truncate(fd, length)

    def allocate(self, fd: int, length: int) -> None:
        self._meet("allocate", self.name_of(fd))
        super().allocate(fd, length)

    def rename(self, old: str, new: str) -> None:
        self._meet("rename", old)
        super().rename(old, new)

    def unlink(self, name: str) -> None:
        self._meet("unlink", name)
        super().unlink(name)
