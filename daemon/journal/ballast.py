"""The ballast: a file whose room is given up for what must be written on a full disk."""

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from daemon.journal.files import Files

T = TypeVar("T")

NAME: Final = "ballast"


class Ballast:
    def __init__(self, files: Files, size: int) -> None:
        self._files = files
        self._size = size

    def keep(self) -> None:
        """Takes the room again, if it was given up. The caller has seen that there is enough."""
        with suppress(FileNotFoundError):
            if self._files.size(NAME) == self._size:
                return
        fd = self._files.open_new(NAME)
        try:
            self._files.allocate(fd, self._size)
        except OSError:
            self._files.unlink(NAME)
            raise
        finally:
            self._files.close(fd)

    def help_out(self, write: Callable[[], T]) -> T:
        """Does what must always be possible; if the disk is full, with the ballast's room."""
        try:
            return write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._files.unlink(NAME)
            return write()
