"""The ballast: a file that is deleted on a full disk, so that work can still be settled.

Deleting from SQLite needs room too: for the log, and for the pages that a checkpoint copies from
the log to the database. Twice the length of the log is always enough for both. Pausing or resuming
a queue also needs room, because its file is rewritten.
"""

import os
from pathlib import Path


class Ballast:
    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self._is_kept = False

    def keep(self) -> None:
        """Creates the file if twice its size is free; otherwise a later call does. Never fails."""
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
            # The store works without it until the disk is full.
            return
        self._is_kept = True

    def give_up(self) -> bool:
        """True if this freed room."""
        if not self._is_kept:
            return False
        self._is_kept = False
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
