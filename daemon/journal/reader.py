"""Reads runs back from chunks, by their places."""

import errno
from collections.abc import Sequence
from typing import Final

from actors.model.runs import Place, StoredRun
from actors.ports.journal import Unreadable
from daemon.journal import chunk
from daemon.journal.files import Files
from daemon.journal.index import unpack_index
from forebay.errors import BadRun
from forebay.run import read_run

LASTING: Final = frozenset({errno.EIO, errno.ENOENT})
"""Errors that a retry does not fix."""


def read_runs(files: Files, places: Sequence[tuple[int, Place]]) -> list[StoredRun | Unreadable]:
    """The runs, in the requested order. A block that is damaged or gone, or that the disk cannot
    read, is unreadable; any other OSError says nothing about the runs and is raised."""
    found: list[StoredRun | Unreadable] = []
    opened: dict[int, int] = {}
    try:
        for number, place in places:
            try:
                if number not in opened:
                    opened[number] = files.open_read(chunk.chunk_name(number))
                found.append(_read_one(files, opened[number], number, place.position))
            except (OSError, BadRun) as problem:
                if isinstance(problem, OSError) and problem.errno not in LASTING:
                    raise
                found.append(_set_aside(files, number, place, str(problem)))
    finally:
        for fd in opened.values():
            files.close(fd)
    return found


def find_run_id(files: Files, number: int, offset: int) -> bytes | None:
    """The id of a run, from its block, or from the index if the block is damaged.

    None if neither knows it: then the next recovery will not find the run either.
    """
    name = chunk.chunk_name(number)
    try:
        fd = files.open_read(name)
        try:
            return _read_one(files, fd, number, number + offset).head.run_id
        finally:
            files.close(fd)
    except BadRun:
        pass
    except OSError as error:
        if error.errno not in LASTING:
            raise
    try:
        data = files.read_file(chunk.index_name(number))
        indexed = unpack_index(data, number, files.size(name))
        return indexed[0].run_id(indexed[0].offsets.index(offset)) if indexed else None
    except (FileNotFoundError, ValueError):
        return None


def _read_one(files: Files, fd: int, number: int, position: int) -> StoredRun:
    data, size = chunk.read_block(files, fd, position - number, position)
    run = read_run(data)
    return StoredRun(position, size, run.head, data)


def _set_aside(files: Files, number: int, place: Place, reason: str) -> Unreadable:
    offset = place.position - number
    try:
        aside = f"{number:016x}-{offset:08x}.bytes"
        files.copy_aside(chunk.chunk_name(number), offset, offset + place.size, aside)
    except OSError as error:
        reason = f"{reason}; not kept aside either: {error}"
    return Unreadable(place.position, reason)
