"""The ballast: a file whose room is given up for what must be written on a full disk."""

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from daemon.journal.files import Files

T = TypeVar("T")

NAME: Final = "ballast"
TO_FREE: Final = "ballast-to-free"
"""Apart, for what is written so that chunks can be deleted: when the other one is used up, by marks
or by somebody else on the disk, this is the way back."""


class Ballast:
    def __init__(self, files: Files, size: int, name: str = NAME) -> None:
        self._files = files
        self._size = size
        self._name = name

    def keep(self) -> None:
        """Takes the room again, if it was given up. The caller has seen that there is enough."""
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
        """Does what must always be possible; if the disk is full, with the ballast's room."""
        try:
            return write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._files.unlink(self._name)
            return write()
