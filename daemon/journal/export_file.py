"""The file that `forebay spool export` writes and `forebay spool import` reads (docs/formats.md).

    8s "FBEXPRT1", then frames:
    u32 length | u8 kind | 3 bytes 0 | u32 crc32c | body

The CRC covers the frame's offset in the file, length, kind and body, so that a frame that was cut
out or put elsewhere is noticed. The first frame is the head, the last one the end: a file without
an end was truncated. In between stands a run in each frame, behind what a run has no place for.

A file is written beside its name and renamed when all of it is on disk: under its name there is
a whole file or none.
"""

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from crc32c import crc32c

from daemon.journal.files import sync_path
from forebay.errors import BadRun, ForebayError
from forebay.limits import FRAME_BODY_BYTES_MAX
from forebay.run import Run, read_run

MAGIC: Final = b"FBEXPRT1"
VERSION: Final = 1
_FRAME: Final = struct.Struct("<IB3xI")
_SEED: Final = struct.Struct("<QIB")
_ABOUT: Final = struct.Struct("<I")


class Kind(IntEnum):
    HEAD = 1
    RUN = 2
    STAGED = 3
    """A run that was staged, and not published, when it was exported."""
    END = 4


_KINDS: Final = frozenset(int(kind) for kind in Kind)


class DamagedExport(ForebayError):
    """The file is not, or not any more, what was exported. Nothing of it is used."""

    def __init__(self, path: Path, offset: int, why: str) -> None:
        super().__init__(f"{path}: damaged at byte {offset}: {why}")
        self.offset = offset


@dataclass(slots=True)
class Counts:
    """What is in a file."""

    runs: int = 0
    items: int = 0
    staged_runs: int = 0
    staged_items: int = 0
    unreadable_items: int = 0
    """Not in it: the journal holds them, and their runs cannot be read."""

    def add(self, items: int, *, is_staged: bool) -> None:
        if is_staged:
            self.staged_runs += 1
            self.staged_items += items
        else:
            self.runs += 1
            self.items += items

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


class Exported(NamedTuple):
    """A run of the file."""

    offset: int
    run: Run
    is_staged: bool
    about: dict[str, Any]


class ExportWriter:
    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        """FileExistsError if there is something of that name."""
        if path.exists():
            raise FileExistsError(17, os.strerror(17), str(path))
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._file: BinaryIO = self._part.open("wb")
        os.fchmod(self._file.fileno(), 0o600)
        self.counts = Counts()
        self._at = self._file.write(MAGIC)
        self._write(Kind.HEAD, _json({"version": VERSION} | about))

    def add(self, run: bytes, items: int, about: dict[str, Any], *, is_staged: bool) -> None:
        packed = _json(about)
        kind = Kind.STAGED if is_staged else Kind.RUN
        self._write(kind, _ABOUT.pack(len(packed)) + packed + run)
        self.counts.add(items, is_staged=is_staged)

    def finish(self) -> None:
        """The file is whole, durable, and has its name."""
        self._write(Kind.END, _json(self.counts.as_dict()))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._part.rename(self._path)
        sync_path(self._path.absolute().parent)

    def abandon(self) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)

    def _write(self, kind: Kind, body: bytes) -> None:
        crc = _checksum(self._at, kind, body)
        self._at += self._file.write(_FRAME.pack(len(body), kind, crc))
        self._at += self._file.write(body)


@dataclass(slots=True)
class ExportReader:
    """Read from the start each time that it is iterated over; `head` and `counts` are known when
    all of it was read once."""

    path: Path
    head: dict[str, Any] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)

    def check(self) -> None:
        """Reads all of it. DamagedExport says where it is not whole."""
        for _ in self:
            pass

    def __iter__(self) -> Iterator[Exported]:
        counts = Counts()
        with self.path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise DamagedExport(self.path, 0, "it is no export of a spool")
            at, kind, body = self._frame(file)
            self.head = self._object(at, body, kind is Kind.HEAD)
            if self.head.get("version") != VERSION:
                raise DamagedExport(self.path, at, f"version {self.head.get('version')}")
            while True:
                at, kind, body = self._frame(file)
                if kind is Kind.END:
                    break
                exported = self._run(at, kind, body)
                counts.add(exported.run.head.count, is_staged=exported.is_staged)
                yield exported
            told = self._object(at, body, True)
            counts.unreadable_items = told.get("unreadable_items", 0)
            if counts.as_dict() != told:
                raise DamagedExport(self.path, at, "it has other runs than its end says")
            if file.read(1):
                raise DamagedExport(self.path, file.tell() - 1, "something follows its end")
        self.counts = counts

    def _frame(self, file: BinaryIO) -> tuple[int, Kind, bytes]:
        at = file.tell()
        packed = file.read(_FRAME.size)
        if len(packed) < _FRAME.size:
            raise DamagedExport(self.path, at, "it ends too soon")
        length, number, crc = _FRAME.unpack(packed)
        if length > FRAME_BODY_BYTES_MAX or number not in _KINDS:
            raise DamagedExport(self.path, at, "no frame begins here")
        kind = Kind(number)
        body = file.read(length)
        if len(body) < length:
            raise DamagedExport(self.path, at, "it ends too soon")
        if _checksum(at, kind, body) != crc:
            raise DamagedExport(self.path, at, "a checksum does not match")
        return at, kind, body

    def _run(self, at: int, kind: Kind, body: bytes) -> Exported:
        if kind is Kind.HEAD or len(body) < _ABOUT.size:
            raise DamagedExport(self.path, at, "a run should be here")
        (length,) = _ABOUT.unpack_from(body)
        start = _ABOUT.size + length
        about = self._object(at, body[_ABOUT.size : start], True)
        try:
            run = read_run(body[start:])
        except BadRun as problem:
            raise DamagedExport(self.path, at, str(problem)) from problem
        return Exported(at, run, kind is Kind.STAGED, about)

    def _object(self, at: int, data: bytes, is_expected: bool) -> dict[str, Any]:
        try:
            content = json.loads(data) if is_expected else None
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise DamagedExport(self.path, at, "what stands here makes no sense")
        return content


def _checksum(at: int, kind: Kind, body: bytes) -> int:
    return int(crc32c(body, crc32c(_SEED.pack(at, len(body), kind))))


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
