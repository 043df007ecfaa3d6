"""Lines on their way to a client that may be too busy sending to read them.

What the client has not taken waits in memory, and past `MEMORY_BYTES` in a file without a name, so
that a client which reads nothing before it has sent everything (most do) does not come to a halt,
and a stream of any length costs no memory. Past `FILE_BYTES_MAX` whoever adds lines waits.

One task adds and one takes. Cancelled, either may be called again; closing lets the file go.
"""

import tempfile
from collections import deque
from pathlib import Path
from typing import IO, Final

import trio

MEMORY_BYTES: Final = 1024 * 1024
FILE_BYTES_MAX: Final = 1024 * 1024 * 1024
READ_BYTES: Final = 256 * 1024


class AnswerLog:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._read_at = self._written = 0
        self._is_over = False
        self._news = trio.Event()
        self._room = trio.Event()
        self._turn = trio.Lock()

    async def add(self, line: bytes) -> None:
        """Returns when there is room for another."""
        self._lines.append(line)
        self._bytes += len(line)
        self._tell()
        if self._bytes > MEMORY_BYTES:
            await self._spill()
        while self._written - self._read_at > FILE_BYTES_MAX:
            self._room = trio.Event()
            await self._room.wait()

    def end(self) -> None:
        """Nothing more is added."""
        self._is_over = True
        self._tell()

    async def take(self) -> bytes:
        """The next lines, once there are some; empty: that was all."""
        while True:
            async with self._turn:
                if self._read_at < self._written:
                    data = await trio.to_thread.run_sync(self._read)
                    self._room.set()
                    return data
                if self._lines:
                    data = b"".join(self._lines)
                    self._lines.clear()
                    self._bytes = 0
                    return data
            if self._is_over:
                return b""
            self._news = trio.Event()
            await self._news.wait()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _tell(self) -> None:
        self._news.set()

    async def _spill(self) -> None:
        """All that waits in memory comes after what is in the file."""
        async with self._turn:
            data = b"".join(self._lines)
            self._lines.clear()
            self._bytes = 0
            if data:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(self._write, data)

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
