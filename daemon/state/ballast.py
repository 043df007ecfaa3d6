"""The ballast: room that is given up so that work can be settled on a full disk.

Deleting from SQLite needs room too: for the log, and for the pages that the log brings to the
database when it is emptied. Twice the length of the log is always enough to get both going again.
So does a queue that is to be resumed, or paused: the file that says so is written anew.
"""

import os
from pathlib import Path


class Ballast:
    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self._is_kept = False

    def keep(self) -> None:
        """Takes the room if there is twice as much; otherwise later. Never fails."""
        if self._is_kept or not self._size:
            return
        try:
            room = os.statvfs(self._path.parent)
            if room.f_bavail * room.f_frsize < 2 * self._size:
                return
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(self._path, flags, 0o640)
            try:
                os.posix_fallocate(fd, 0, self._size)
            finally:
                os.close(fd)
        except OSError:
            # Without it the store works as well, until the disk is full.
            return
        self._is_kept = True

    def give_up(self) -> bool:
        """True: there is more room now than before."""
        if not self._is_kept:
            return False
        self._is_kept = False
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
