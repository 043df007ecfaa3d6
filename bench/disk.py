"""What the disk itself gives: pwritev and fdatasync into a file that is already written in full.

The limit that forebay is measured against. The file is overwritten from its start to its end and
from its start again, as recycled chunks are.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from forebay.wire import Buffer

MIB: Final = 1024 * 1024
FILE_BYTES: Final = 256 * MIB


class WrittenFile:
    """A file of `size` bytes that is on disk in full, and a place in it to write next."""

    def __init__(self, path: Path, size: int = FILE_BYTES) -> None:
        self._size = size
        self._at = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        zeros = bytes(MIB)
        for at in range(0, size, MIB):
            os.pwrite(self._fd, zeros[: size - at], at)
        os.fsync(self._fd)

    def write(self, parts: Sequence[Buffer]) -> None:
        """Makes these durable, behind what was written last."""
        size = sum(map(len, parts))
        if self._at + size > self._size:
            self._at = 0
        os.pwritev(self._fd, parts, self._at)
        os.fdatasync(self._fd)
        self._at += size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)


def replay(file: WrittenFile, group_bytes: Sequence[int], seconds: float) -> float:
    """Bytes a second when groups of these sizes are written; for `seconds` or once over all."""
    data = memoryview(os.urandom(max(group_bytes)))
    written = 0
    started = time.perf_counter()
    for size in group_bytes:
        file.write([data[:size]])
        written += size
        if time.perf_counter() - started >= seconds:
            break
    return written / (time.perf_counter() - started)
