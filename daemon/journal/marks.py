"""Marks: what happened to a chunk's items, appended to the chunk's mark file.

    u32 crc32c | u16 length | u8 fate | u8 reason | u32 offset | 16s run id | u16 first | u16 last
    of a retry, after that: u16 attempt | u64 due_ms | u64 at_ms | the error's text

The reason is that of a retry's failure, 1 for business; otherwise, and for any other number, it is
the application's.

The length is that of the whole record, the CRC covers the chunk's number and what follows the
CRC. A record names the run as well as its offset, and one that does not fit the run found there
is ignored.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from actors.model.failures import RetryNote
from actors.model.runs import Fate
from actors.model.slices import ERROR_TEXT_MAX, cut_text

_RECORD = struct.Struct("<HBBI16sHH")
_NOTE = struct.Struct("<HQQ")
_CRC = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")
RECORD_BYTES: Final = _CRC.size + _RECORD.size
NOTED_BYTES: Final = RECORD_BYTES + _NOTE.size
"""A retry's record, before the text."""
RECORD_BYTES_MAX: Final = NOTED_BYTES + 4 * ERROR_TEXT_MAX


@dataclass(frozen=True, slots=True)
class Mark:
    """The items `first` to `last` (exclusive) of the run at `offset` met `fate`."""

    offset: int
    run_id: bytes
    first: int
    last: int
    fate: Fate
    note: RetryNote | None = None


def pack_marks(number: int, marks: Iterable[Mark]) -> bytes:
    """The records of one chunk, ready to append."""
    seed = crc32c(_NUMBER.pack(number))
    parts = []
    for mark in marks:
        note = b"" if mark.note is None else _pack_note(mark.note)
        length = RECORD_BYTES + len(note)
        reason = int(mark.note is not None and mark.note.failure_reason == "business")
        where = (mark.offset, mark.run_id, mark.first, mark.last)
        record = _RECORD.pack(length, mark.fate, reason, *where) + note
        parts += [_CRC.pack(crc32c(record, seed)), record]
    return b"".join(parts)


def unpack_marks(number: int, data: bytes) -> tuple[list[Mark], int]:
    """Every whole record, and how many bytes belong to no record."""
    seed = crc32c(_NUMBER.pack(number))
    view = memoryview(data)
    marks = []
    lost = 0
    at = 0
    while at + RECORD_BYTES <= len(data):
        found = _RECORD.unpack_from(data, at + _CRC.size)
        length, fate, reason, offset, run_id, first, last = found
        record = view[at + _CRC.size : at + length]
        (crc,) = _CRC.unpack_from(data, at)
        if not _fits(length, fate, len(data) - at) or crc32c(record, seed) != crc:
            lost += 1
            at += 1
            continue
        note = None
        if fate == Fate.RETRY:
            note = _unpack_note(view[at + RECORD_BYTES : at + length], reason)
        marks.append(Mark(offset, run_id, first, last, Fate(fate), note))
        at += length
    return marks, lost + len(data) - at


def _fits(length: int, fate: int, room: int) -> bool:
    """Whether a record may be that long."""
    if fate == Fate.RETRY:
        return NOTED_BYTES <= length <= min(room, RECORD_BYTES_MAX)
    return fate in _FATES and length == RECORD_BYTES


_FATES: Final = frozenset(Fate)


def _pack_note(note: RetryNote) -> bytes:
    text = cut_text(note.text).encode(errors="replace")
    return _NOTE.pack(note.attempt, note.due_ms, note.at_ms) + text


def _unpack_note(data: memoryview, reason: int) -> RetryNote:
    attempt, due_ms, at_ms = _NOTE.unpack_from(data)
    text = bytes(data[_NOTE.size :]).decode(errors="replace")
    return RetryNote(attempt, due_ms, at_ms, text, "business" if reason == 1 else "application")
