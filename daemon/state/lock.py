"""Allows one daemon per state directory: a file lock that the kernel releases when its holder ends.

The file holds the holder's process id, for people and for the error message; only the lock counts.
It is never removed: a second daemon might hold a lock on the unlinked file.
"""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from daemon.errors import CannotStart
from daemon.state.private_files import check_private_directory

LOCK_NAME: Final = "lock"
STATE_DIR_MODE: Final = 0o750


class CannotLock(CannotStart):
    """The state directory belongs to another daemon, or cannot be used."""


class StateLock:
    """Held from construction until `release`, or until the process ends, however it ends."""

    def __init__(self, state_dir: Path) -> None:
        """Creates the state directory if needed. Raises CannotStart if other users may write to
        it, and CannotLock if it cannot be used."""
        path = state_dir / LOCK_NAME
        try:
            state_dir.mkdir(mode=STATE_DIR_MODE, parents=True, exist_ok=True)
            check_private_directory(state_dir)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd: int | None = os.open(path, flags, 0o644)
        except OSError as error:
            raise CannotLock(
                f"the state directory {state_dir} cannot be used: {error.strerror}"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            holder = _read_holder(self._fd)
            self.release()
            raise CannotLock(f"the state directory {state_dir} is in use by {holder}") from None
        except OSError as error:
            self.release()
            raise CannotLock(f"{path} cannot be locked: {error.strerror}") from error

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _read_holder(fd: int) -> str:
    pid = os.pread(fd, 32, 0).strip()
    return f"the daemon with process id {int(pid)}" if pid.isdigit() else "another daemon"
