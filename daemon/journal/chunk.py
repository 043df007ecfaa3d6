"""Chunk files: their names, their head, and how one is made.

A chunk's number is the journal position at which it starts; its file is named by the number's
16 hex digits. The number also stands in the head and wins over the name.

    8s "FBCHUNK1" | u64 number | u64 capacity | u64 previous end | u64 created ms | u32 crc32c

Chunks are written in full before they are used and reused when nothing in them is live:
overwriting such a file syncs 2 to 4 times as fast as growing one. A spare's new head is durable
before the file gets its new name, and the name before the first block.
"""

import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from daemon.journal import block
from daemon.journal.files import COPY_BYTES, Files
from forebay.errors import BadRun

HEAD_BYTES: Final = 64
SUFFIX: Final = ".chunk"
INDEX_SUFFIX: Final = ".index"
DRAFT_SUFFIX: Final = ".draft"
MARKS_SUFFIX: Final = ".marks"
SPARE_PREFIX: Final = "spare-"
NUMBER_MAX: Final = 2**62

_MAGIC = b"FBCHUNK1"
_HEAD = struct.Struct("<8sQQQQ")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class ChunkHead:
    number: int
    capacity: int
    previous_end: int
    """Unless 0: the chunk before this one failed, and its bytes after this position are void."""
    created_ms: int

    def pack(self) -> bytes:
        fields = _HEAD.pack(_MAGIC, self.number, self.capacity, self.previous_end, self.created_ms)
        return (fields + _CRC.pack(crc32c(fields))).ljust(HEAD_BYTES, b"\0")


def read_chunk_head(data: bytes) -> ChunkHead | None:
    # The zeros at the end reveal bytes that were lost or inserted before the first block.
    if len(data) < HEAD_BYTES or any(data[_HEAD.size + _CRC.size : HEAD_BYTES]):
        return None
    magic, number, capacity, previous_end, created_ms = _HEAD.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    if magic != _MAGIC or crc32c(data[: _HEAD.size]) != crc or number >= NUMBER_MAX:
        return None
    return ChunkHead(number, capacity, previous_end, created_ms)


def read_start(files: Files, name: str) -> bytes:
    """The bytes in which the head should be."""
    fd = files.open_read(name)
    try:
        return files.read(fd, HEAD_BYTES, 0)
    finally:
        files.close(fd)


def read_head_of(files: Files, name: str) -> ChunkHead | None:
    return read_chunk_head(read_start(files, name))


def read_block(files: Files, fd: int, offset: int, position: int) -> tuple[bytes, int]:
    """The run in the block at `offset`, and the block's size. Raises BadRun if it is damaged."""
    data = files.read(fd, block.HEAD_BYTES, offset)
    head = block.read_block_head(data, position, position + NUMBER_MAX)
    if head is None or head.position != position:
        raise BadRun("no block stands there any more")
    body = files.read(fd, head.body_bytes, offset + block.HEAD_BYTES)
    if len(body) != head.body_bytes or not block.block_is_whole(head, body):
        raise BadRun("the block's checksum does not match")
    return block.open_body(head, body), head.size


def chunk_name(number: int) -> str:
    return f"{number:016x}{SUFFIX}"


def index_name(number: int) -> str:
    return f"{number:016x}{INDEX_SUFFIX}"


def draft_name(number: int) -> str:
    return f"{number:016x}{DRAFT_SUFFIX}"


def follower_names(number: int) -> tuple[str, ...]:
    """The files that may accompany a chunk. All are removed with it."""
    return index_name(number), draft_name(number), marks_name(number)


def marks_name(number: int) -> str:
    return f"{number:016x}{MARKS_SUFFIX}"


def spare_name(number: int) -> str:
    return f"{SPARE_PREFIX}{number:016x}"


def number_in(name: str, suffix: str) -> int | None:
    """The number in a file's name; None if the name is of another kind."""
    stem = name.removesuffix(suffix)
    if stem == name or len(stem) != 16:
        return None
    try:
        number = int(stem, 16)
    except ValueError:
        return None
    return number if number < NUMBER_MAX and stem == f"{number:016x}" else None


def write_spare(files: Files, name: str, capacity: int) -> None:
    """Writes a file of zeros in full, under a temporary name until it is on disk."""
    temporary = name + ".tmp"
    fd = files.open_new(temporary)
    try:
        zeros = bytes(min(COPY_BYTES, capacity))
        for at in range(0, capacity, len(zeros)):
            files.write(fd, [zeros[: capacity - at]], at)
        files.sync(fd)
    except OSError:
        files.unlink(temporary)
        raise
    finally:
        files.close(fd)
    files.rename(temporary, name)


def start_chunk(files: Files, spare: str, number: int, capacity: int, previous_end: int = 0) -> int:
    """Turns a spare into the chunk `number`; returns its descriptor once all of that is durable.

    A spare with which that fails is removed, so that a failing disk is not filled with them.
    """
    fd = files.open_write(spare)
    try:
        head = ChunkHead(number, capacity, previous_end, time.time_ns() // 1_000_000)
        files.write(fd, [head.pack()], 0)
        files.datasync(fd)
        files.rename(spare, chunk_name(number))
        files.sync_directory()
    except OSError:
        files.close(fd)
        with suppress(OSError):
            files.unlink(spare)
        raise
    return fd
