"""Takes stock of a spool's directory, sorted by kind of file.

A file that cannot be read stays where it is; an invalid one goes to the quarantine.
"""

from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from actors.ports.journal import Damage
from daemon.journal import ballast, chunk
from daemon.journal.checkpoint import (
    CHECKPOINT,
    CHECKPOINT_OLD,
    META,
    RECENT,
    Checkpoint,
)
from daemon.journal.files import Files
from daemon.journal.index import ChunkIndex, unpack_index
from daemon.journal.quarantine import set_aside
from daemon.journal.records import RECORDS

log = structlog.get_logger()


KNOWN_FILES = frozenset(
    {META, CHECKPOINT, CHECKPOINT_OLD, RECENT, RECORDS, ballast.NAME, ballast.TO_FREE}
)


@dataclass(slots=True)
class Inventory:
    """The files of the directory, by kind."""

    chunks: dict[int, chunk.ChunkHead | None] = field(default_factory=dict)
    followers: list[tuple[str, int]] = field(default_factory=list)
    """Indexes, drafts and marks, with the numbers of their chunks."""
    spares: list[str] = field(default_factory=list)
    highest: int = 0
    """Higher than the number of any file."""


def take_inventory(files: Files, chunk_bytes: int, damage: Damage) -> Inventory:
    inventory = Inventory()
    for name in files.names():
        try:
            _take_file(files, name, chunk_bytes, inventory, damage)
        except OSError as error:
            # It may be readable at the next start: it stays where it is, and its number is taken.
            damage.files.append(name)
            log.error("recovery.file_left", file=name, why="it cannot be read", error=str(error))
            number = chunk.number_in(name, chunk.SUFFIX)
            if number is not None:
                inventory.highest = max(inventory.highest, number + chunk_bytes)
    return inventory


def _take_file(
    files: Files, name: str, chunk_bytes: int, inventory: Inventory, damage: Damage
) -> None:
    if name in KNOWN_FILES:
        return
    if name.endswith(".tmp"):
        files.unlink(name)
    elif name.startswith(chunk.SPARE_PREFIX):
        _take_spare(files, name, chunk_bytes, inventory)
    elif (number := chunk.number_in(name, chunk.SUFFIX)) is not None:
        _take_chunk(files, name, number, inventory, damage)
    elif (number := _number_of_follower(name)) is not None:
        inventory.followers.append((name, number))
    else:
        log.warning("recovery.unknown_file", file=name)


def _number_of_follower(name: str) -> int | None:
    suffixes = chunk.INDEX_SUFFIX, chunk.DRAFT_SUFFIX, chunk.MARKS_SUFFIX
    numbers = (chunk.number_in(name, suffix) for suffix in suffixes)
    return next((number for number in numbers if number is not None), None)


def _take_spare(files: Files, name: str, chunk_bytes: int, inventory: Inventory) -> None:
    """A spare holds nothing, but its head shows which numbers were used."""
    data = chunk.read_start(files, name)
    head = chunk.read_chunk_head(data)
    if head is not None:
        inventory.highest = max(inventory.highest, head.number + head.capacity)
    if files.size(name) == chunk_bytes and (head is not None or not any(data)):
        inventory.spares.append(name)
    else:
        files.unlink(name)


def _take_chunk(files: Files, name: str, number: int, inventory: Inventory, damage: Damage) -> None:
    """The number inside a chunk wins over its name."""
    head = chunk.read_head_of(files, name)
    if head is not None and head.number != number:
        right = chunk.chunk_name(head.number)
        names = files.names()
        holder = chunk.read_head_of(files, right) if right in names else None
        if right in names and (holder is None or holder.number == head.number):
            set_aside(files, name, damage, f"it says it is {right}, which exists")
            return
        log.warning("recovery.chunk_renamed", file=name, now=right)
        if holder is not None:
            # It has a wrong name as well. A crash in between leaves it another wrong name.
            free = next(n for n in range(chunk.NUMBER_MAX - 1, 0, -1) if _is_free(n, names))
            files.rename(right, chunk.chunk_name(free))
            files.rename(name, right)
            _take_chunk(files, chunk.chunk_name(free), free, inventory, damage)
        else:
            files.rename(name, right)
        number = head.number
    capacity = max(head.capacity if head else 0, files.size(chunk.chunk_name(number)))
    inventory.highest = max(inventory.highest, number + capacity)
    inventory.chunks[number] = head


def _is_free(number: int, names: list[str]) -> bool:
    return chunk.chunk_name(number) not in names


def finish_freeing(files: Files, checkpoint: Checkpoint, inventory: Inventory) -> None:
    """Removes chunks whose totals are in the base already: a crash interrupted their removal."""
    for number in checkpoint.absorbed:
        inventory.chunks.pop(number, None)
        _remove_chunk(files, number)
    gone = frozenset(checkpoint.absorbed)
    inventory.followers = [entry for entry in inventory.followers if entry[1] not in gone]


def replace_missing_chunks(
    files: Files, chunk_bytes: int, inventory: Inventory, damage: Damage
) -> None:
    """Makes an empty file for a missing chunk that has an index, so that the runs in the index
    count as lost."""
    for number in sorted({number for _, number in inventory.followers} - inventory.chunks.keys()):
        if read_known(files, number) is not None:
            name = chunk.chunk_name(number)
            damage.files.append(name)
            log.error("recovery.chunk_missing", file=name)
            files.close(files.open_new(name))
            inventory.chunks[number] = None
            inventory.highest = max(inventory.highest, number + chunk_bytes)


def read_known(files: Files, number: int) -> ChunkIndex | None:
    """The runs that a chunk had, from its index or its draft, even if its file is gone."""
    for name in (chunk.index_name(number), chunk.draft_name(number)):
        with suppress(OSError):
            unpacked = unpack_index(files.read_file(name), number, None)
            if unpacked is not None:
                return unpacked[0]
    return None


def set_orphans_aside(files: Files, inventory: Inventory, damage: Damage) -> None:
    for name, number in inventory.followers:
        if number not in inventory.chunks:
            set_aside(files, name, damage, "its chunk is missing")


def _remove_chunk(files: Files, number: int) -> None:
    for name in (chunk.chunk_name(number), *chunk.follower_names(number)):
        files.unlink(name)


def reuse_or_remove(files: Files, number: int, chunk_bytes: int, inventory: Inventory) -> None:
    """Makes an unused chunk a spare again; a failed one is removed."""
    name = chunk.chunk_name(number)
    if files.size(name) == chunk_bytes and not had_blocks(files, number):
        spare = chunk.spare_name(number)
        files.rename(name, spare)
        inventory.spares.append(spare)
    else:
        _remove_chunk(files, number)


def had_blocks(files: Files, number: int) -> bool:
    """Whether there is an index, a draft or a mark: these exist only for blocks."""
    return not set(chunk.follower_names(number)).isdisjoint(files.names())
