"""What a daemon really writes and syncs: `python -m bench.sync_trace FILE run --config …` is
`forebay run` with `os.pwritev`, `os.fdatasync` and `os.fsync` wrapped.

Each fdatasync becomes a record of 8 bytes in a shared mapping: how many bytes pwritev had put
into that file before it. The reader sees records as they come. Costs a microsecond a sync. Marks
are written by other calls: their syncs are records of 0 bytes.
"""

import mmap
import os
import struct
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

RECORDS_MAX: Final = 2**20
CHUNK_HEAD_BYTES: Final = 64
"""A sync of so little makes a chunk's head durable; every group of runs is larger."""

_RECORD: Final = struct.Struct("<Q")
_FILE_BYTES: Final = (1 + RECORDS_MAX) * _RECORD.size
"""The number of records, then the records."""


@dataclass(frozen=True, slots=True)
class Syncs:
    """The fdatasyncs of a stretch of time."""

    count: int
    group_bytes: list[int]
    """Of those that made runs durable, in order."""


class SyncTrace:
    def __init__(self, path: Path) -> None:
        """Opens a trace, or creates an empty one."""
        self.path = path
        self._lock = threading.Lock()
        with path.open("a+b") as file:
            file.truncate(_FILE_BYTES)
            self._map = mmap.mmap(file.fileno(), _FILE_BYTES)

    def close(self) -> None:
        self._map.close()

    def mark(self) -> int:
        """How many records there are: where a stretch begins."""
        return self._read(0)

    def since(self, mark: int) -> Syncs:
        records = [self._read(1 + order) for order in range(mark, self.mark())]
        return Syncs(len(records), [size for size in records if size > CHUNK_HEAD_BYTES])

    def add(self, size: int) -> None:
        """Records that come after the last place are not kept."""
        with self._lock:
            order = self.mark()
            if order < RECORDS_MAX:
                _RECORD.pack_into(self._map, (1 + order) * _RECORD.size, size)
                _RECORD.pack_into(self._map, 0, order + 1)

    def _read(self, place: int) -> int:
        (value,) = _RECORD.unpack_from(self._map, place * _RECORD.size)
        return int(value)


def record_syncs(trace: SyncTrace) -> None:
    """From now on this process's fdatasyncs are recorded."""
    pwritev, fdatasync, fsync = os.pwritev, os.fdatasync, os.fsync
    unsynced: dict[int, int] = {}

    def counted_pwritev(fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        written = pwritev(fd, buffers, offset, flags)
        unsynced[fd] = unsynced.get(fd, 0) + written
        return written

    def counted_fdatasync(fd: int) -> None:
        fdatasync(fd)
        trace.add(unsynced.pop(fd, 0))

    def uncounted_fsync(fd: int) -> None:
        fsync(fd)
        unsynced.pop(fd, None)

    os.pwritev = counted_pwritev  # type: ignore[assignment]
    os.fdatasync = counted_fdatasync  # type: ignore[assignment]
    os.fsync = uncounted_fsync  # type: ignore[assignment]


def main() -> None:
    record_syncs(SyncTrace(Path(sys.argv.pop(1))))
    from daemon.cli.main import main as forebay

    forebay()


if __name__ == "__main__":
    main()
