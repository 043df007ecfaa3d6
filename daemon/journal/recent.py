"""The newest runs, for when their chunks are gone: 16 bytes of id and 4 of fingerprint each, and a
CRC-32C."""

from collections.abc import Mapping
from struct import Struct
from typing import Final

from crc32c import crc32c

from daemon.journal.files import Files

RECENT: Final = "recent"
_ENTRY: Final = Struct("<16sI")


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
