"""A disk that knows which descriptor is which file, for those that act on some files only."""

from contextlib import suppress
from pathlib import Path

from daemon.journal.files import Files


class NamedFiles(Files):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._names: dict[int, str] = {}

    def name_of(self, fd: int) -> str:
        """The name under which it was opened, or to which it was renamed since."""
        return self._names[fd]

    def let_go(self) -> None:
        """Closes what is open, as the end of a process does."""
        while self._names:
            with suppress(OSError):
                super().close(self._names.popitem()[0])

    def open_new(self, name: str) -> int:
        return self._remember(super().open_new(name), name)

    def open_write(self, name: str) -> int:
        return self._remember(super().open_write(name), name)

    def open_append(self, name: str) -> int:
        return self._remember(super().open_append(name), name)

    def open_read(self, name: str) -> int:
        return self._remember(super().open_read(name), name)

    def close(self, fd: int) -> None:
        del self._names[fd]
        super().close(fd)

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        for fd, name in list(self._names.items()):
            if name == old:
                self._names[fd] = new

    def _remember(self, fd: int, name: str) -> int:
        self._names[fd] = name
        return fd


class QuickFiles(NamedFiles):
    """A disk without syncs, for tests in which the machine stays on."""

    def datasync(self, fd: int) -> None:
        pass

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self) -> None:
        pass
