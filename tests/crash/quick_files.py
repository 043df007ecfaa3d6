"""A disk without syncs, for tests in which the machine stays on."""

from contextlib import suppress
from pathlib import Path

from daemon.journal.files import Files


class QuickFiles(Files):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._opened: set[int] = set()

    def datasync(self, fd: int) -> None:
        pass

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self) -> None:
        pass

    def open_new(self, name: str) -> int:
        return self._remember(super().open_new(name))

    def open_write(self, name: str) -> int:
        return self._remember(super().open_write(name))

    def open_append(self, name: str) -> int:
        return self._remember(super().open_append(name))

    def close(self, fd: int) -> None:
        self._opened.discard(fd)
        super().close(fd)

    def let_go(self) -> None:
        """Closes what is open, as the end of a process does."""
        while self._opened:
            with suppress(OSError):
                super().close(self._opened.pop())

    def _remember(self, fd: int) -> int:
        self._opened.add(fd)
        return fd
