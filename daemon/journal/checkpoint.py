"""Small files beside the chunks: `spool.meta`, the checkpoint, and the newest run ids.

`spool.meta` is a hint that is replaced every second.

The checkpoint is written before a chunk is freed. It has the totals of all freed chunks and names
those that are about to be freed (`absorbed`), so that a crash in between counts nothing twice.
Two generations are kept; if one is damaged, the other, which is balanced as well, is used.

`recent` has the ids and fingerprints of the newest runs, for when their chunks are gone: 16 + 4
bytes each, and a CRC-32C at the end.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

import msgspec
from crc32c import crc32c

from actors.model.books import Books, parse_books
from daemon.journal.chunk import NUMBER_MAX
from daemon.journal.files import Files

_encode = msgspec.json.Encoder().encode

META: Final = "spool.meta"
META_VERSION: Final = 1
CHECKPOINT: Final = "checkpoint"
CHECKPOINT_OLD: Final = "checkpoint.old"
RECENT: Final = "recent"
_ENTRY: Final = Struct("<16sI")


@dataclass(frozen=True, slots=True)
class Meta:
    """The reader's and writer's positions: a hint that shows damage at the tail."""

    reader_offset: int
    writer_offset: int
    entry_count: int
    total_bytes: int

    def write(self, files: Files) -> None:
        content = {
            "version": META_VERSION,
            "reader_offset": self.reader_offset,
            "writer_offset": self.writer_offset,
            "entry_count": self.entry_count,
            "total_bytes": self.total_bytes,
        }
        files.replace(META, json.dumps(content).encode() + b"\n", durable=False)


def read_meta(files: Files) -> Meta | None:
    """The meta file; None if it is missing or invalid."""
    content = _json_object(_read(files, META))
    if content is None or content.get("version") != META_VERSION:
        return None
    numbers: list[int] = []
    for name in ("reader_offset", "writer_offset", "entry_count", "total_bytes"):
        number = content.get(name)
        if not isinstance(number, int) or not 0 <= number < NUMBER_MAX:
            return None
        numbers.append(number)
    return Meta(*numbers)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    sequence: int = 0
    next_number: int = 0
    """No chunk has had this number or a higher one."""
    absorbed: Sequence[int] = ()
    base: Books = field(default_factory=dict)

    def write(self, files: Files) -> None:
        content = {
            "sequence": self.sequence,
            "next_number": self.next_number,
            "absorbed": list(self.absorbed),
            "base": self.base,
        }
        text = _encode(content)
        if CHECKPOINT in files.names():
            files.rename(CHECKPOINT, CHECKPOINT_OLD)
        files.replace(CHECKPOINT, b"%s\n%08x\n" % (text, crc32c(text)))


def read_checkpoint(files: Files) -> tuple[Checkpoint, list[str]]:
    """The newest whole checkpoint, or an empty one, and the names of damaged files."""
    best = Checkpoint()
    damaged = []
    for name in (CHECKPOINT, CHECKPOINT_OLD):
        data = _read(files, name)
        if data is None:
            continue
        found = _parse_checkpoint(data)
        if found is None:
            damaged.append(name)
        elif found.sequence > best.sequence:
            best = found
    return best, damaged


def _parse_checkpoint(data: bytes) -> Checkpoint | None:
    text, _, crc = data.removesuffix(b"\n").rpartition(b"\n")
    if crc != b"%08x" % crc32c(text):
        return None
    content = _json_object(text)
    if content is None:
        return None
    try:
        return Checkpoint(
            sequence=int(content["sequence"]),
            next_number=int(content["next_number"]),
            absorbed=[int(number) for number in content["absorbed"]],
            base=parse_books(content["base"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _read(files: Files, name: str) -> bytes | None:
    """None if the file does not exist; empty, which is invalid, if it cannot be read."""
    try:
        return files.read_file(name)
    except FileNotFoundError:
        return None
    except OSError:
        return b""


def _json_object(data: bytes | None) -> dict[str, Any] | None:
    try:
        content = json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def write_recent(files: Files, runs: Mapping[bytes, int]) -> None:
    data = b"".join([_ENTRY.pack(run_id, content) for run_id, content in runs.items()])
    files.replace(RECENT, data + crc32c(data).to_bytes(4, "little"))


def read_recent(files: Files) -> dict[bytes, int]:
    """Ids and fingerprints, oldest first. ValueError if the file is damaged."""
    try:
        data = files.read_file(RECENT)
    except FileNotFoundError:
        return {}
    entries, crc = data[:-4], data[-4:]
    if len(entries) % _ENTRY.size or crc32c(entries).to_bytes(4, "little") != crc:
        raise ValueError("it is damaged")
    return dict(_ENTRY.iter_unpack(entries))
