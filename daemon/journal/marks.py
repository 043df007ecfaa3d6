"""Marks: what happened to a chunk's items, appended to the chunk's mark file.

    u32 crc32c | u16 length | u8 fate | u8 0 | u32 offset | 16s run id | u16 first | u16 last

The CRC covers the chunk's number and the record after the CRC. A record names the run as well as
its offset, and one that does not fit the run found there is ignored.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from actors.messages import Fate

_RECORD = struct.Struct("<HBBI16sHH")
_CRC = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")
RECORD_BYTES: Final = _CRC.size + _RECORD.size


@dataclass(frozen=True, slots=True)
class Mark:
    """The items `first` to `last` (exclusive) of the run at `offset` met `fate`."""

    offset: int
    run_id: bytes
    first: int
    last: int
    fate: Fate


def pack_marks(number: int, marks: Iterable[Mark]) -> bytes:
    """The records of one chunk, ready to append."""
    seed = crc32c(_NUMBER.pack(number))
    parts = []
    for mark in marks:
        record = _RECORD.pack(
            RECORD_BYTES, mark.fate, 0, mark.offset, mark.run_id, mark.first, mark.last
        )
        parts += [_CRC.pack(crc32c(record, seed)), record]
    return b"".join(parts)


def unpack_marks(number: int, data: bytes) -> tuple[list[Mark], int]:
    """Every whole record, and how many bytes belong to none."""
    seed = crc32c(_NUMBER.pack(number))
    fates = set(Fate)
    view = memoryview(data)
    marks = []
    lost = 0
    at = 0
    while at + RECORD_BYTES <= len(data):
        record = view[at + _CRC.size : at + RECORD_BYTES]
        (crc,) = _CRC.unpack_from(data, at)
        length, fate, _, offset, run_id, first, last = _RECORD.unpack(record)
        if length != RECORD_BYTES or fate not in fates or crc32c(record, seed) != crc:
            lost += 1
            at += 1
            continue
        marks.append(Mark(offset, run_id, first, last, Fate(fate)))
        at += RECORD_BYTES
    return marks, lost + len(data) - at
