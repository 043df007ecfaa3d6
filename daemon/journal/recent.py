"""The ids of the newest runs, for when their chunks are gone: 16 bytes each, and a CRC-32C."""

from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from daemon.journal.files import Files
from forebay.ids import RUN_ID_BYTES

RECENT: Final = "recent"


def write_recent(files: Files, run_ids: Sequence[bytes]) -> None:
    data = b"".join(run_ids)
    files.replace(RECENT, data + crc32c(data).to_bytes(4, "little"))


def read_recent(files: Files) -> list[bytes]:
    """The ids, oldest first. ValueError if the file is damaged."""
    try:
        data = files.read_file(RECENT)
    except FileNotFoundError:
        return []
    ids, crc = data[:-4], data[-4:]
    if len(ids) % RUN_ID_BYTES or crc32c(ids).to_bytes(4, "little") != crc:
        raise ValueError("it is damaged")
    return [ids[at : at + RUN_ID_BYTES] for at in range(0, len(ids), RUN_ID_BYTES)]
