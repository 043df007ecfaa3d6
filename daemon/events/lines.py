"""Events as JSON lines in gzip: one object per line, without null members.

Each write is a gzip member of its own, and gzip files may have many: so a file that a crash has
cut short is whole up to its last whole member, every reader (zcat, Python, Spark) reads it, and
nothing is compressed twice.

Level 1: 1.5 µs and 54 bytes per event; level 6 takes 5.2 µs for 46 bytes. An uncompressed line has
about 370 bytes and takes 6.5 µs to make.
"""

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from actors.observers.events import Event
from daemon.handlers.file.landing import write_all

LEVEL: Final = 1
GZIP: Final = 31
"""zlib's word for a gzip header with the largest window."""
READ_BYTES: Final = 256 * 1024


class LineFormat:
    suffix = ".ndjson.gz"

    def __init__(self, everywhere: Mapping[str, str | int | float]) -> None:
        """`everywhere`: what every row has."""
        # Spliced into each line: {…} and {…} become one object.
        self._tail = "," + json.dumps(everywhere, separators=(",", ":"))[1:] + "\n"

    def begin(self, fd: int) -> "LineBody":
        return LineBody(fd, self._tail)

    def salvage(self, fd: int) -> int:
        size = whole_members(fd)
        os.ftruncate(fd, size)
        return size


class LineBody:
    def __init__(self, fd: int, tail: str) -> None:
        self._fd = fd
        self._tail = tail

    def add(self, events: Sequence[Event]) -> None:
        write_all(self._fd, member(events, self._tail))

    def end(self) -> None:
        """Every member is whole already."""

    def let_go(self) -> None:
        """The descriptor is not its own."""


def member(events: Sequence[Event], tail: str) -> bytes:
    encode = json.JSONEncoder(separators=(",", ":")).encode
    lines = [
        encode({key: value for key, value in event.row().items() if value is not None})[:-1] + tail
        for event in events
    ]
    packer = zlib.compressobj(LEVEL, wbits=GZIP)
    return packer.compress("".join(lines).encode()) + packer.flush()


def whole_members(fd: int) -> int:
    """How many bytes of a file are whole gzip members."""
    at = whole = 0
    unpacker = zlib.decompressobj(GZIP)
    while data := os.pread(fd, READ_BYTES, at):
        at += len(data)
        while data:
            try:
                unpacker.decompress(data)
            except zlib.error:
                return whole
            if not unpacker.eof:
                break
            data = unpacker.unused_data
            whole = at - len(data)
            unpacker = zlib.decompressobj(GZIP)
    return whole
