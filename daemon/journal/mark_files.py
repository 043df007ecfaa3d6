"""The mark files of all chunks: appended to in groups, synced on request.

A few of them are kept open. After a failed write or sync the file is closed, and opened again for
the next attempt: the kernel may have dropped what it could not write.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from actors.ports.journal import ItemMark
from daemon.journal.ballast import Ballast
from daemon.journal.chunk import marks_name
from daemon.journal.files import Files
from daemon.journal.marks import Mark, pack_marks
from daemon.journal.reader import find_run_id

OPEN_MAX: Final = 16


class MarkFiles:
    def __init__(self, files: Files, ballast: Ballast) -> None:
        self._files = files
        self._ballast = ballast
        self._open: OrderedDict[int, int] = OrderedDict()
        self._unsynced: set[int] = set()
        self._has_new_names = False

    def append(self, marks: Sequence[ItemMark]) -> None:
        by_chunk: dict[int, list[Mark]] = {}
        for mark in marks:
            run_id = mark.run_id or find_run_id(self._files, mark.number, mark.offset)
            if run_id is not None:
                record = Mark(mark.offset, run_id, mark.first, mark.last, mark.fate, mark.note)
                by_chunk.setdefault(mark.number, []).append(record)
        for number, group in by_chunk.items():
            self._append(number, pack_marks(number, group))

    def sync(self) -> None:
        """Makes everything durable that was appended."""
        while self._unsynced:
            self._sync(next(iter(self._unsynced)))
        if self._has_new_names:
            self._files.sync_directory()
            self._has_new_names = False

    def close(self) -> None:
        """Syncs, then closes."""
        self.sync()
        while self._open:
            self._files.close(self._open.popitem()[1])

    def _append(self, number: int, records: bytes) -> None:
        fd = self._descriptor(number)
        try:
            self._ballast.help_out(lambda: self._files.append(fd, records))
        except OSError:
            self._forget(number)
            raise
        self._unsynced.add(number)

    def _sync(self, number: int) -> None:
        self._unsynced.discard(number)
        try:
            self._files.datasync(self._descriptor(number))
        except OSError:
            self._forget(number)
            raise

    def _descriptor(self, number: int) -> int:
        if number not in self._open:
            name = marks_name(number)
            self._open[number] = self._ballast.help_out(lambda: self._files.open_append(name))
            self._has_new_names = True
            if len(self._open) > OPEN_MAX:
                oldest = next(iter(self._open))
                if oldest in self._unsynced:
                    self._sync(oldest)
                self._forget(oldest)
        self._open.move_to_end(number)
        return self._open[number]

    def _forget(self, number: int) -> None:
        fd = self._open.pop(number, None)
        if fd is not None:
            self._files.close(fd)
