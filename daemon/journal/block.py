"""Blocks: how a run is framed in a chunk, and how blocks are found again in damaged bytes.

    u32 magic | u32 crc32c | u64 word | u64 position | body

The word holds the body's length on disk (bits 0-61), whether the run was staged (bit 62: the body
begins with the 16 bytes of its stage's id) and whether Snappy was applied to the run here (bit 63).
The position is the chunk's number plus the block's offset in the
file: positions are never used twice, so a block of the file's former life is not taken for a new
one. The CRC covers word, position and body. Because the position is written as well as covered,
a block that was moved by inserted or lost bytes is still known for what it is.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from actors.spooler.intake import fingerprint
from forebay.errors import BadRun
from forebay.limits import FRAME_BODY_BYTES_MAX, WRITE_ID_BYTES
from forebay.run import RunHead, read_head
from forebay.snappy import decompress, raw_length

MAGIC: Final = 0x314B4246
"""FBK1"""
MAGIC_BYTES: Final = MAGIC.to_bytes(4, "little")
SNAPPY_BIT: Final = 1 << 63
STAGED_BIT: Final = 1 << 62
LENGTH_MASK: Final = (1 << 62) - 1
BODY_BYTES_MAX: Final = FRAME_BODY_BYTES_MAX
CHUNK_BYTES_MAX: Final = 1 << 32
"""No block is further from its chunk's number."""

_HEAD = struct.Struct("<IIQQ")
_COVERED = struct.Struct("<QQ")
HEAD_BYTES: Final = _HEAD.size


@dataclass(frozen=True, slots=True)
class Block:
    """A block whose checksum holds, and where it lies."""

    offset: int
    """Where it was found in the file."""
    position: int
    """Where it belongs."""
    size: int
    """Head and body."""
    head: RunHead
    fingerprint: int
    """Of the run (actors/spooler/intake.py)."""
    stage: bytes = b""
    """Empty if the run was pushed, not staged."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes between blocks, or before the first one, that belong to no block."""

    start: int
    end: int


def frame(body: bytes, position: int, *, snappy: bool, stage: bytes = b"") -> bytes:
    """The bytes before this body: the block's head, and its stage."""
    word = len(stage) + len(body) | (SNAPPY_BIT if snappy else 0) | (STAGED_BIT if stage else 0)
    crc = crc32c(body, crc32c(stage, crc32c(_COVERED.pack(word, position))))
    return _HEAD.pack(MAGIC, crc, word, position) + stage


@dataclass(frozen=True, slots=True)
class BlockHead:
    crc: int
    word: int
    position: int

    @property
    def body_bytes(self) -> int:
        return self.word & LENGTH_MASK

    @property
    def size(self) -> int:
        return HEAD_BYTES + self.body_bytes

    @property
    def stage_bytes(self) -> int:
        return WRITE_ID_BYTES if self.word & STAGED_BIT else 0


def read_block_head(data: bytes | memoryview, first: int, last: int) -> BlockHead | None:
    """The head at the start of `data`, if it is sane and its position lies in [first, last)."""
    if len(data) < HEAD_BYTES:
        return None
    magic, crc, word, position = _HEAD.unpack_from(data)
    if magic != MAGIC or not first <= position < last:
        return None
    head = BlockHead(crc, word, position)
    if not head.stage_bytes <= head.body_bytes <= min(BODY_BYTES_MAX, last - position - HEAD_BYTES):
        return None
    return head


def block_is_whole(head: BlockHead, body: bytes | memoryview) -> bool:
    return crc32c(body, crc32c(_COVERED.pack(head.word, head.position))) == head.crc


def open_body(head: BlockHead, body: bytes | memoryview) -> bytes:
    """The run in a whole block. Raises BadRun if it holds none."""
    view = memoryview(body)[head.stage_bytes :]
    if not head.word & SNAPPY_BIT:
        return bytes(view)
    length = raw_length(view)
    if length > BODY_BYTES_MAX:
        raise BadRun(f"a block of {length} bytes is over the limit of {BODY_BYTES_MAX}")
    return bytes(decompress(view, length))


Read = Callable[[int, int], bytes]
"""(length, offset) to bytes: fewer at the end of the file only."""


class Scanner:
    """Finds every whole block of a chunk, even between damaged bytes.

    Iterating gives blocks and gaps in the order of the file. Reads through a window, so that
    memory stays bounded for chunks of any size.
    """

    WINDOW_BYTES: Final = 4 * 1024 * 1024

    def __init__(self, read: Read, number: int, size: int, start: int) -> None:
        self._read = read
        self._first = number
        self._size = size
        self._last = number + max(size, CHUNK_BYTES_MAX)
        self._window = b""
        self._window_at = 0
        self.at = start
        """Where the next block is expected; after the last one, where the chunk's tail begins."""
        self.torn_bytes = 0
        """After the last block: the length of a block of this life that was begun, or 0."""

    def __iter__(self) -> Iterator[Block | Gap]:
        while True:
            block = self._block_at(self.at)
            if block is None:
                block = self._search(self.at)
                if block is None:
                    break
                yield Gap(self.at, block.offset)
            self.at = block.offset + block.size
            yield block
        head = read_block_head(self._bytes(self.at, HEAD_BYTES), self._first, self._last)
        if head is not None and head.position == self._first + self.at:
            self.torn_bytes = min(head.size, self._size - self.at)

    def _search(self, at: int) -> Block | None:
        """The first whole block after `at`."""
        at += 1
        while at + HEAD_BYTES <= self._size:
            data = self._bytes(at, self.WINDOW_BYTES)
            found = data.find(MAGIC_BYTES)
            while found >= 0:
                block = self._block_at(at + found)
                if block is not None:
                    return block
                found = data.find(MAGIC_BYTES, found + 1)
            at += max(1, len(data) - len(MAGIC_BYTES) + 1)
        return None

    def _block_at(self, at: int) -> Block | None:
        head = read_block_head(self._bytes(at, HEAD_BYTES), self._first, self._last)
        if head is None or at + head.size > self._size:
            return None
        body = self._bytes(at + HEAD_BYTES, head.body_bytes)
        if len(body) != head.body_bytes or not block_is_whole(head, body):
            return None
        try:
            run = open_body(head, body)
            stage = body[: head.stage_bytes]
            run_head = read_head(run)
            content = fingerprint(run_head, run)
            return Block(at, head.position, head.size, run_head, content, stage)
        except BadRun:
            return None

    def _bytes(self, at: int, length: int) -> bytes:
        start = at - self._window_at
        if start < 0 or start + length > len(self._window):
            self._window = self._read(max(length, self.WINDOW_BYTES), at)
            self._window_at = at
            start = 0
        return self._window[start : start + length]
