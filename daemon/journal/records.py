"""The record log: what is known of writes, beside the chunks, in one small file.

    crc32c of the JSON, 8 hexadecimal digits | space | JSON object | newline

Appended to and synced with the commit; written anew when it has grown, with what need be
remembered alone. After a failed write or sync the file is written anew at once, or, if that fails
too, before anything is appended: the kernel may have dropped what it could not write, and a record
that was refused must not be there at the next start.

What it cannot do: know what a damaged line said. If that was the end of a write, the write is open
again; the spooler then keeps open writes until somebody decides (`Damage.records`).

Owned by the journal; touched by its commit thread alone.
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
        """What recovery found. The file is written anew before it is appended to."""
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
        """Writes the file anew, without what has failed."""
        self._files.replace(RECORDS, b"".join(self._lines))
        self._fd = self._files.open_append(RECORDS)
        return self._fd


def read_records(files: Files, damage: Damage) -> list[Record]:
    """All whole records. What is none is damage; then the file is kept aside."""
    try:
        data = files.read_file(RECORDS)
    except FileNotFoundError:
        return []
    except OSError as error:
        # The next record replaces it: what it held is not to go with it.
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
    """The whole records of a log, and how many lines are none. A last line that was begun is what
    a crash leaves, and does not count."""
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
