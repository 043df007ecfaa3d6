"""The head of a run: everything that is needed to move a run without touching its body.

The daemon checks every run it receives with `read_head` and `verify`. docs/formats.md describes
every byte. Whatever the input, both raise `BadRun` and nothing else, and they allocate nothing
before they have checked the length.

The head ends with the run's headers: pairs of texts that travel with the run and that only its
handlers read.

A run's checksum is CRC-32C where the package `crc32c` is installed, and zlib's CRC-32 where it is
not; a flag says which. So a client with the standard library alone stays usable: CRC-32C in pure
Python manages about 10 MB/s, zlib's CRC-32 about 1 GB/s and the package 21 GB/s. The daemon always
has the package and reads both.
"""

import re
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from forebay.column import Buffer, offsets_bytes
from forebay.errors import BadRun
from forebay.limits import (
    HEADER_NAME_BYTES_MAX,
    HEADER_VALUE_BYTES_MAX,
    HEADERS_BYTES_MAX,
    QUEUE_BYTES_MAX,
    RUN_HEAD_FIXED_BYTES,
    RUN_ITEMS_MAX,
    RUN_RAW_BYTES_MAX,
    SNAPPY_RATIO_MAX,
    TIME_MS_MAX,
)
from forebay.snappy import raw_length

Checksum = Callable[[Buffer, int], int]

crc32: Final[Checksum] = zlib.crc32

try:
    from crc32c import crc32c as _crc32c
except ImportError:
    crc32c: Checksum | None = None
else:
    crc32c = _crc32c

MAGIC: Final = b"FBRN"
VERSION: Final = 1

SNAPPY: Final = 1
KEYS: Final = 2
IDS: Final = 4
CRC32: Final = 8
"""The checksum is CRC-32 (zlib's), not CRC-32C."""
FLAGS_KNOWN: Final = SNAPPY | KEYS | IDS | CRC32

FIXED: Final = struct.Struct("<4sBBHII16sQQIHBBBBH")
"""The part of the head that every run has."""
CHECKSUM_AT: Final = 8
CHECKSUM_END: Final = 12
_COUNT_AT: Final = 6
_HEADER_LENGTHS = struct.Struct("<BH")
_QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

assert FIXED.size == RUN_HEAD_FIXED_BYTES


@dataclass(frozen=True, slots=True)
class RunHead:
    """What is known of a run without touching its body."""

    run_id: bytes
    queue: str
    flow: str
    action: str
    priority: int
    due_ms: int
    """Not to be delivered before this moment; 0: at once."""
    enqueued_ms: int
    attempt: int
    count: int
    flags: int
    checksum: int
    head_bytes: int
    body_bytes: int
    """The body as stored."""
    raw_bytes: int
    """The body before compression."""
    packed_headers: bytes

    @property
    def size(self) -> int:
        """The length of the whole run."""
        return self.head_bytes + self.body_bytes

    def headers(self) -> dict[str, str]:
        return unpack_headers(self.packed_headers)


def read_head(data: Buffer, *, raw_bytes_max: int = RUN_RAW_BYTES_MAX) -> RunHead:
    """Reads a run's head. `data` is the whole run, no byte more or less."""
    if len(data) < RUN_HEAD_FIXED_BYTES:
        raise BadRun(f"{len(data)} bytes are too few for a run")
    (
        magic,
        version,
        flags,
        count,
        crc,
        body_bytes,
        run_id,
        due_ms,
        enqueued_ms,
        raw_bytes,
        attempt,
        priority,
        queue_len,
        flow_len,
        action_len,
        headers_len,
    ) = FIXED.unpack_from(data)
    if magic != MAGIC:
        raise BadRun("no run starts here")
    if version != VERSION:
        raise BadRun(f"run version {version} is not known")
    if flags & ~FLAGS_KNOWN:
        raise BadRun(f"run flags {flags:#04x} are not known")
    if not 1 <= count <= RUN_ITEMS_MAX:
        raise BadRun(f"a run has 1 to {RUN_ITEMS_MAX} items, not {count}")
    if raw_bytes > raw_bytes_max:
        raise BadRun(f"a body of {raw_bytes} bytes is over the limit of {raw_bytes_max}")
    if not flags & SNAPPY and raw_bytes != body_bytes:
        raise BadRun("an uncompressed body has two lengths")
    if raw_bytes > body_bytes * SNAPPY_RATIO_MAX:
        raise BadRun(f"{body_bytes} bytes of Snappy cannot hold {raw_bytes}")
    if raw_bytes < column_count(flags) * offsets_bytes(count):
        raise BadRun(f"a body of {raw_bytes} bytes is too short for {count} items")
    if max(due_ms, enqueued_ms) > TIME_MS_MAX:
        raise BadRun("a time lies too far in the future")
    if headers_len > HEADERS_BYTES_MAX:
        raise BadRun(f"headers of {headers_len} bytes are over the limit of {HEADERS_BYTES_MAX}")
    head_bytes = RUN_HEAD_FIXED_BYTES + queue_len + flow_len + action_len + headers_len
    if len(data) != head_bytes + body_bytes:
        raise BadRun(f"a run of {head_bytes + body_bytes} bytes comes in {len(data)}")
    text = bytes(data[RUN_HEAD_FIXED_BYTES:head_bytes])
    flow_at = queue_len
    action_at = flow_at + flow_len
    headers_at = action_at + action_len
    try:
        queue = text[:flow_at].decode()
        flow = text[flow_at:action_at].decode()
        action = text[action_at:headers_at].decode()
    except UnicodeDecodeError as error:
        raise BadRun("queue, flow and action are not UTF-8") from error
    check_queue_name(queue)
    packed_headers = text[headers_at:]
    if packed_headers:
        unpack_headers(packed_headers)
    return RunHead(
        run_id=run_id,
        queue=queue,
        flow=flow,
        action=action,
        priority=priority,
        due_ms=due_ms,
        enqueued_ms=enqueued_ms,
        attempt=attempt,
        count=count,
        flags=flags,
        checksum=crc,
        head_bytes=head_bytes,
        body_bytes=body_bytes,
        raw_bytes=raw_bytes,
        packed_headers=packed_headers,
    )


def column_count(flags: int) -> int:
    """How many columns the body of a run with these flags has."""
    return 1 + bool(flags & KEYS) + bool(flags & IDS)


def read_count(data: Buffer) -> int:
    """How many items a run has; the caller knows that the bytes are a run."""
    return int.from_bytes(data[_COUNT_AT:CHECKSUM_AT], "little")


def verify(head: RunHead, data: Buffer) -> None:
    """Checks the run's checksum, and that a compressed body claims the length the head gives."""
    if head.flags & CRC32:
        algorithm = crc32
    elif crc32c is not None:
        algorithm = crc32c
    else:
        raise BadRun("the run carries a CRC-32C, and the package crc32c is not installed")
    if _sum(algorithm, data) != head.checksum:
        raise BadRun("the checksum does not match")
    if head.flags & SNAPPY:
        body = memoryview(data)[head.head_bytes : head.size]
        if raw_length(body) != head.raw_bytes:
            raise BadRun("the compressed body and the header disagree about the length")


def check_queue_name(queue: str) -> None:
    if not _QUEUE_NAME.fullmatch(queue) or len(queue) > QUEUE_BYTES_MAX:
        raise BadRun(
            f"{queue!r} is not a valid queue name: 1 to {QUEUE_BYTES_MAX} letters, digits, '.', "
            "'_' or '-', starting with a letter or digit"
        )


def pack_headers(headers: Mapping[str, str]) -> bytes:
    parts = []
    for name, value in headers.items():
        name_text = short_text("header's name", name, HEADER_NAME_BYTES_MAX)
        value_text = short_text("header's value", value, HEADER_VALUE_BYTES_MAX)
        if not name_text:
            raise BadRun("a header has no name")
        parts += [_HEADER_LENGTHS.pack(len(name_text), len(value_text)), name_text, value_text]
    packed = b"".join(parts)
    if len(packed) > HEADERS_BYTES_MAX:
        raise BadRun(f"headers of {len(packed)} bytes are over the limit of {HEADERS_BYTES_MAX}")
    return packed


def unpack_headers(packed: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    at = 0
    while at < len(packed):
        if at + _HEADER_LENGTHS.size > len(packed):
            raise BadRun("the headers end inside a length")
        name_len, value_len = _HEADER_LENGTHS.unpack_from(packed, at)
        value_at = at + _HEADER_LENGTHS.size + name_len
        end = value_at + value_len
        if not name_len or value_len > HEADER_VALUE_BYTES_MAX or end > len(packed):
            raise BadRun("a header's length is wrong")
        try:
            name = packed[value_at - name_len : value_at].decode()
            value = packed[value_at:end].decode()
        except UnicodeDecodeError as error:
            raise BadRun("a header is not UTF-8") from error
        if name in headers:
            raise BadRun(f"the header {name!r} is given twice")
        headers[name] = value
        at = end
    return headers


def short_text(what: str, text: str, bytes_max: int) -> bytes:
    """The text in UTF-8; BadRun if it is too long or cannot be encoded."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise BadRun(f"a {what} cannot be written as UTF-8") from error
    if len(encoded) > bytes_max:
        raise BadRun(f"a {what} has at most {bytes_max} bytes, not {len(encoded)}")
    return encoded


def _sum(algorithm: Checksum, data: Buffer) -> int:
    """The checksum of everything but the checksum."""
    view = memoryview(data)
    return algorithm(view[CHECKSUM_END:], algorithm(view[:CHECKSUM_AT], 0))
