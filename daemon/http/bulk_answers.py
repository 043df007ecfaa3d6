"""Buffers answer lines for a client that may be too busy sending to read them.

Unread lines wait in memory, and beyond `MEMORY_BYTES` in an unnamed file. So a client that reads
nothing before it has sent everything (most do) is not blocked, and a stream of any length needs
little memory. A file takes at most `FILE_BYTES_MAX`, and the files of all streams together at most
`FILES_BYTES_MAX`. If there is no room, or the disk is low, the task that adds lines waits for the
client to read. A client that then reads nothing for `STALL_S` is cut off (`Stalled`), so that it
does not keep the room from other streams.

One task adds and one takes. After a cancel, either may be called again; `close` releases the file.
"""

import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

import trio

MEMORY_BYTES: Final = 1024 * 1024
FILE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Enough for the answers to about 3 million lines."""
FILES_BYTES_MAX: Final = 1024 * 1024 * 1024
READ_BYTES: Final = 256 * 1024
STALL_S: Final = 60.0


class Stalled(Exception):
    """The client does not read and the buffer is full, or the disk failed."""


class AnswerRoom:
    """The room that the files of all streams share."""

    def __init__(self, bytes_max: int = FILES_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        self._changed = trio.Event()

    def has(self, size: int) -> bool:
        return self.bytes + size <= self._bytes_max

    def take(self, size: int) -> None:
        self.bytes += size

    def give(self, size: int) -> None:
        self.bytes -= size
        self.tell()

    def tell(self) -> None:
        """Wakes the tasks that wait for room."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self) -> None:
        await self._changed.wait()


OF_ALL: Final = AnswerRoom()
"""Of this process."""


class AnswerLog:
    def __init__(
        self,
        directory: Path,
        disk_is_low: Callable[[], bool] = lambda: False,
        room: AnswerRoom = OF_ALL,
    ) -> None:
        self._directory = directory
        self._disk_is_low = disk_is_low
        self._room = room
        self._takes = 0
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._read_at = self._written = 0
        self._held = 0
        """Its part of the shared room."""
        self._is_over = False
        self._news = trio.Event()
        self._turn = trio.Lock()

    async def add(self, line: bytes) -> None:
        """Returns when there is room for another line. Raises Stalled if none becomes free."""
        self._lines.append(line)
        self._bytes += len(line)
        self._tell()
        while self._bytes > MEMORY_BYTES and not await self._spill():
            takes = self._takes
            with trio.move_on_after(STALL_S) as patience:
                while self._takes == takes and not self._may_spill():
                    await self._room.wait()
            if patience.cancelled_caught:
                raise Stalled

    def end(self) -> None:
        """Nothing more is added."""
        self._is_over = True
        self._tell()

    async def take(self) -> bytes:
        """Waits for the next lines; empty at the end."""
        while True:
            async with self._turn:
                if self._read_at < self._written:
                    with trio.CancelScope(shield=True):
                        data = await trio.to_thread.run_sync(self._read)
                    self._taken()
                    return data
                if self._lines:
                    data = b"".join(self._lines)
                    self._lines.clear()
                    self._bytes = 0
                    self._taken()
                    return data
            if self._is_over:
                return b""
            self._news = trio.Event()
            await self._news.wait()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._room.give(self._held)
        self._held = 0

    def _tell(self) -> None:
        self._news.set()

    def _taken(self) -> None:
        """Notes that lines were taken; empties the file when all of it was taken."""
        self._takes += 1
        over, self._held = self._held - self._written, self._written
        self._room.give(over)

    def _may_spill(self) -> bool:
        """Whether lines in memory may move to the file, as far as is known."""
        if self._disk_is_low() or self._written + self._bytes > FILE_BYTES_MAX:
            return False
        return self._room.has(self._bytes)

    async def _spill(self) -> bool:
        """Appends the lines in memory to the file, if there is room."""
        async with self._turn:
            if not self._may_spill():
                return False
            data = b"".join(self._lines)
            self._lines.clear()
            self._bytes = 0
            if data:
                self._room.take(len(data))
                self._held += len(data)
                try:
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(self._write, data)
                except OSError as problem:
                    raise Stalled from problem
            return True

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115
        self._file.seek(self._written)
        self._file.write(data)
        self._written += len(data)

    def _read(self) -> bytes:
        assert self._file is not None
        self._file.seek(self._read_at)
        data = self._file.read(min(READ_BYTES, self._written - self._read_at))
        self._read_at += len(data)
        if self._read_at == self._written:
            self._file.truncate(0)
            self._read_at = self._written = 0
        return data
