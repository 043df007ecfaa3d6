"""Recovery: rebuilds the spool from its files after any crash and any damage; always succeeds.

For each chunk: the index if it is whole and fits the file, a scan otherwise; then the marks.
Nothing is discarded because it looks odd: bytes that belong to no whole block, and invalid files,
go to the quarantine and are counted. The last chunk is sealed and never written again. Every step
may be repeated, so a crash during recovery is followed by another recovery.

What it cannot tell apart: a last block that was torn by the crash and one that was damaged after
it was acknowledged, where the hint in `spool.meta` is older than the block. Both are kept aside.
After a power loss a block of the last group may be torn although a later one of the same group is
whole. Its items count as lost, although they were never acknowledged and their client sends them
again.
"""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from actors.ports.journal import Damage, Recovered, RecoveredChunk
from daemon.journal import chunk
from daemon.journal.checkpoint import (
    META,
    RECENT,
    Checkpoint,
    Meta,
    read_checkpoint,
    read_meta,
    read_recent,
)
from daemon.journal.files import Files
from daemon.journal.inventory import (
    Inventory,
    finish_freeing,
    replace_missing_chunks,
    reuse_or_remove,
    set_orphans_aside,
    take_inventory,
)
from daemon.journal.marks import sort_out
from daemon.journal.quarantine import set_aside
from daemon.journal.records import read_records
from daemon.journal.salvage import read_chunk

log = structlog.get_logger()


@dataclass(slots=True)
class FoundSpool:
    recovered: Recovered
    checkpoint: Checkpoint
    next_number: int
    spares: list[str]


def recover(
    files: Files,
    chunk_bytes: int,
    recent_max: int,
    progress: Callable[[int, int], None],
    *,
    thorough: bool = False,
) -> FoundSpool:
    """`thorough`: reads every block that holds items, instead of trusting the indexes."""
    damage = Damage()
    checkpoint, bad_checkpoints = read_checkpoint(files)
    for name in bad_checkpoints:
        set_aside(files, name, damage, "a checkpoint is damaged")
    meta = read_meta(files)
    if meta is None and META in files.names():
        set_aside(files, META, damage, "it makes no sense")
    inventory = take_inventory(files, chunk_bytes, damage)
    finish_freeing(files, checkpoint, inventory)
    replace_missing_chunks(files, chunk_bytes, inventory, damage)
    set_orphans_aside(files, inventory, damage)
    ends = _known_ends(inventory, meta)

    chunks: list[RecoveredChunk] = []
    scanned = 0
    numbers = sorted(inventory.chunks)
    for order, number in enumerate(numbers):
        try:
            end = ends.get(number)
            reading = read_chunk(files, number, inventory, end, damage, thorough=thorough)
        except OSError as error:
            # It may be readable at the next start: it stays where it is.
            name = chunk.chunk_name(number)
            damage.files.append(name)
            log.error("recovery.file_left", file=name, why="it cannot be read", error=str(error))
            continue
        if reading is not None:
            scanned += reading.scanned_bytes
            if len(reading.index):
                index, used, lost = reading.index, reading.used, reading.lost
                chunks.append(sort_out(files, index, used, lost, damage))
            else:
                reuse_or_remove(files, number, chunk_bytes, inventory)
        progress(order + 1, len(numbers))
    try:
        files.sync_directory()
    except OSError as error:
        # Moves and removals would be repeated; a new chunk is not used without a sync.
        log.error("recovery.directory_not_synced", error=str(error))
    recent = _older_runs(files, damage) | _newest(chunks, recent_max)
    return FoundSpool(
        Recovered(chunks, checkpoint.base, recent, damage, scanned, read_records(files, damage)),
        checkpoint,
        max(inventory.highest, checkpoint.next_number, meta.writer_offset if meta else 0),
        inventory.spares,
    )


def _known_ends(inventory: Inventory, meta: Meta | None) -> dict[int, tuple[int, bool]]:
    """Where a chunk's blocks end as other files know it: (position, nothing after it counts)."""
    ends: dict[int, tuple[int, bool]] = {}
    numbers = sorted(inventory.chunks)
    if meta is not None:
        holders = [number for number in numbers if number < meta.writer_offset]
        if holders:
            ends[holders[-1]] = (meta.writer_offset, False)
    for number in numbers:
        head = inventory.chunks[number]
        if head is not None and head.previous_end:
            holders = [other for other in numbers if other < head.previous_end and other != number]
            if holders:
                ends[holders[-1]] = (head.previous_end, True)
    return ends


def _older_runs(files: Files, damage: Damage) -> dict[bytes, int]:
    """Runs whose chunks may be gone."""
    try:
        return read_recent(files)
    except (OSError, ValueError) as problem:
        set_aside(files, RECENT, damage, str(problem))
        return {}


def _newest(chunks: list[RecoveredChunk], recent_max: int) -> dict[bytes, int]:
    """Runs that are lost are not among them: a producer may send those again."""
    recent: list[tuple[bytes, int]] = []
    for found in reversed(chunks):
        recent = found.newest_runs(recent_max - len(recent)) + recent
    return dict(recent)
