"""Finds a run by its id in the indexes of the chunks.

The id is searched in the raw bytes of an index, and only an index that contains it is unpacked: a
chunk of 200,000 runs costs 2 ms, or 8 ms if it has the run. The index of the active chunk is in
memory. A chunk without an index, or with a damaged one, is skipped: the index is written when the
chunk is sealed or recovered.
"""

from collections.abc import Sequence
from contextlib import suppress

from actors.model.books import parse_account
from actors.model.runs import Place
from actors.ports.journal import Located
from daemon.journal import chunk
from daemon.journal.files import Files
from daemon.journal.index import ChunkIndex, unpack_index
from forebay.ids import RUN_ID_BYTES


def locate_run(
    files: Files, run_id: bytes, numbers: Sequence[int], in_memory: Sequence[ChunkIndex]
) -> list[Located]:
    """Every run of this id."""
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
