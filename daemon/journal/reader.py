"""Reads runs back from chunks, by their places, and finds places by run id."""

import errno
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from actors.model.books import parse_account
from actors.model.runs import Place, StoredRun
from actors.ports.journal import Located, Unreadable
from daemon.journal import chunk
from daemon.journal.files import Files
from daemon.journal.index import ChunkIndex, unpack_index
from forebay.errors import BadRun
from forebay.ids import RUN_ID_BYTES
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


def locate_run(
    files: Files, run_id: bytes, numbers: Sequence[int], in_memory: Sequence[ChunkIndex]
) -> list[Located]:
    """Every run of this id, from the indexes of the chunks.

    The id is searched in the raw bytes of an index, and only an index that contains it is unpacked:
    a chunk of 200,000 runs costs 2 ms, or 8 ms if it has the run. The index of the active chunk is
    in memory. A chunk without an index, or with a damaged one, is skipped: the index is written
    when the chunk is sealed or recovered.
    """
    found: list[Located] = []
    for index in in_memory:
        found += _in_index(index, run_id)
    known = {index.number for index in in_memory}
    for number in numbers:
        if number in known:
            continue
        with suppress(FileNotFoundError):
            data = files.read_file(chunk.index_name(number))
            if run_id in data:
                unpacked = unpack_index(data, number, files.size(chunk.chunk_name(number)))
                if unpacked is not None:
                    found += _in_index(unpacked[0], run_id)
    return found


def _in_index(index: ChunkIndex, run_id: bytes) -> list[Located]:
    found: list[Located] = []
    at = index.run_ids.find(run_id)
    while at >= 0:
        row, misplaced = divmod(at, RUN_ID_BYTES)
        # A run is written column by column, its id last: a run with an id is complete.
        if not misplaced:
            position = index.number + index.offsets[row]
            place = Place(position, index.sizes[row], index.counts[row])
            queue = parse_account(index.accounts[index.account_numbers[row]]).queue
            found.append(Located(place, queue, index.priorities[row]))
        at = index.run_ids.find(run_id, at + 1)
    return found
