"""The record log: the state of writes, in one small file besides the chunks.

    crc32c of the JSON, 8 hexadecimal digits | space | JSON object | newline

It is appended to and synced with the commit. When it has grown, it is rewritten with the records
that are still needed. After a failed write or sync the file is rewritten at once, or, if that fails
too, before the next append: the kernel may have dropped what it could not write, and a refused
record must not be there at the next start.

What it cannot do: know what a damaged line said. If that was the end of a write, the write is open
again; the spooler then keeps open writes until the operator decides (`Damage.records`).

Owned by the journal; used only by its commit thread.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import structlog
from crc32c import crc32c

from actors.ports.journal import Damage, Record
from daemon.journal.ballast import Ballast
from daemon.journal.files import Files
from daemon.journal.quarantine import set_aside

log = structlog.get_logger()

RECORDS: Final = "writes.log"


class RecordLog:
    def __init__(self, files: Files, ballast: Ballast) -> None:
        self._files = files
        self._ballast = ballast
        self._lines: list[bytes] = []
        self._fd: int | None = None

    def load(self, records: Sequence[Record]) -> None:
        """Takes the records that recovery found. The file is rewritten before the first append."""
        self._lines = [_line(record) for record in records]

    def append(self, records: Sequence[Record]) -> None:
        lines = [_line(record) for record in records]
        try:
            self._ballast.help_out(lambda: self._append(b"".join(lines)))
        except OSError:
            with suppress(OSError):
                self._ballast.help_out(self._open)
            raise
        self._lines += lines

    def keep(self, records: Sequence[Record]) -> None:
        self.load(records)
        self.close()
        self._ballast.help_out(self._open)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._files.close(fd)

    def _append(self, data: bytes) -> None:
        fd = self._fd if self._fd is not None else self._open()
        try:
            self._files.append(fd, data)
            self._files.datasync(fd)
        except OSError:
            self.close()
            raise

    def _open(self) -> int:
        """Rewrites the file, without records that failed."""
        self._files.replace(RECORDS, b"".join(self._lines))
        self._fd = self._files.open_append(RECORDS)
        return self._fd


def read_records(files: Files, damage: Damage) -> list[Record]:
    """All whole records. Other lines are damage; then the file is set aside."""
    try:
        data = files.read_file(RECORDS)
    except FileNotFoundError:
        return []
    except OSError as error:
        # The next record replaces the file: its contents must be kept.
        damage.records += 1
        set_aside(files, RECORDS, damage, f"it cannot be read: {error}")
        return []
    records, damaged = parse_records(data)
    if damaged:
        damage.records += damaged
        damage.files.append(RECORDS)
        log.error("recovery.records_damaged", file=RECORDS, lines=damaged)
        try:
            files.copy_aside(RECORDS, 0, len(data), f"{RECORDS}-{crc32c(data):08x}")
        except OSError as error:
            log.warning("recovery.not_kept", file=RECORDS, error=str(error))
    return records


def parse_records(data: bytes) -> tuple[list[Record], int]:
    """The whole records of a log, and how many lines are damaged. An incomplete last line, which a
    crash leaves, does not count."""
    *lines, _begun = data.split(b"\n")
    records = [_parse(line) for line in lines]
    return [record for record in records if record is not None], records.count(None)


def _line(record: Record) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def _parse(line: bytes) -> Record | None:
    crc, _, text = line.partition(b" ")
    if crc != b"%08x" % crc32c(text):
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
