"""The ballast: a file that is deleted to make room for essential writes on a full disk."""

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from daemon.journal.files import Files

T = TypeVar("T")

NAME: Final = "ballast"
TO_FREE: Final = "ballast-to-free"
"""A separate file for the writes that allow chunks to be deleted: it still helps when the other one
is used up, by marks or by other users of the disk."""


class Ballast:
    def __init__(self, files: Files, size: int, name: str = NAME) -> None:
        self._files = files
        self._size = size
        self._name = name

    def keep(self) -> None:
        """Restores the ballast if it was deleted. The caller has checked that there is room."""
        with suppress(FileNotFoundError):
            if self._files.size(self._name) == self._size:
                return
        fd = self._files.open_new(self._name)
        try:
            self._files.allocate(fd, self._size)
        except OSError:
            self._files.unlink(self._name)
            raise
        finally:
            self._files.close(fd)

    def help_out(self, write: Callable[[], T]) -> T:
        """Performs an essential write; if the disk is full, deletes the ballast for it."""
        try:
            return write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._files.unlink(self._name)
            return write()
