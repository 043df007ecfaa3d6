"""What a chunk holds: by its index if that is whole and fits the file, by a scan otherwise.

A scan finds every whole block, whatever lies between them, puts blocks back that stand at a wrong
place, seals the chunk and writes its index.
"""

import time
from dataclasses import dataclass

import structlog

from actors.ports import Damage
from daemon.journal import chunk
from daemon.journal.block import Gap, Scanner
from daemon.journal.files import Files
from daemon.journal.index import ChunkIndex, unpack_index
from daemon.journal.inventory import Inventory, had_blocks
from daemon.journal.quarantine import keep, keep_gap, set_chunk_aside

log = structlog.get_logger()


@dataclass(slots=True)
class Reading:
    index: ChunkIndex
    """Empty: not a block, and no sign that there ever was one."""
    used: int
    scanned_bytes: int = 0


def read_chunk(
    files: Files,
    number: int,
    inventory: Inventory,
    known_end: tuple[int, bool] | None,
    damage: Damage,
) -> Reading | None:
    """What a chunk holds; None if nothing of it can be used."""
    size = files.size(chunk.chunk_name(number))
    index_file = chunk.index_name(number)
    try:
        indexed = unpack_index(files.read_file(index_file), number, size)
        if indexed is None:
            log.warning("recovery.index_unusable", file=index_file)
            damage.files.append(index_file)
    except FileNotFoundError:
        indexed = None
    except OSError as error:
        indexed = None
        log.warning("recovery.index_unusable", file=index_file, error=str(error))
        damage.files.append(index_file)
    if indexed is not None:
        return Reading(*indexed)
    return _scan_chunk(files, number, inventory.chunks[number], known_end, damage)


def _scan_chunk(
    files: Files,
    number: int,
    head: chunk.ChunkHead | None,
    known_end: tuple[int, bool] | None,
    damage: Damage,
) -> Reading | None:
    """Finds every whole block, puts aside what is none, seals the chunk, and writes its index."""
    name = chunk.chunk_name(number)
    size = files.size(name)
    index = ChunkIndex(number)
    end_position, end_is_final = known_end or (0, False)
    seen: set[int] = set()
    moved: list[tuple[int, int, int]] = []
    start = chunk.HEAD_BYTES if head is not None else 0
    fd = files.open_read(name)
    try:
        scanner = Scanner(lambda length, at: files.read(fd, length, at), number, size, start)
        used = chunk.HEAD_BYTES
        for found in scanner:
            if isinstance(found, Gap):
                if head is not None or found != Gap(0, chunk.HEAD_BYTES):
                    keep_gap(files, number, found.start, found.end, damage)
                continue
            if end_is_final and found.position >= end_position:
                break
            if found.position in seen:
                continue
            seen.add(found.position)
            if found.position != number + found.offset:
                moved.append((found.offset, found.position - number, found.size))
            index.add(found.position - number, found.size, found.head, found.stage)
            used = max(used, found.position - number + found.size)
        tail_at = scanner.at
    finally:
        files.close(fd)

    lost_tail = 0
    if not end_is_final and end_position > number + max(used, tail_at):
        lost_tail = min(end_position - number, size) - tail_at
    if lost_tail > 0:
        keep_gap(files, number, tail_at, tail_at + lost_tail, damage)
    elif scanner.torn_bytes and not end_is_final:
        damage.torn_tails += 1
        keep(files, number, tail_at, tail_at + scanner.torn_bytes, "torn")
        log.info("recovery.torn_tail", file=name, at=tail_at, bytes=scanner.torn_bytes)
    elif end_position > number + size:
        damage.blocks += 1
        log.warning("recovery.chunk_cut", file=name, size=size, known_end=end_position - number)

    if not len(index):
        if head is None or lost_tail > 0 or had_blocks(files, number):
            set_chunk_aside(files, number, damage, "it holds no whole block")
            return None
        return Reading(index, used, size)
    if head is None:
        damage.heads += 1
        log.warning("recovery.chunk_head_damaged", file=name)
    try:
        if moved or head is None:
            previous_end = head.previous_end if head is not None else 0
            index = _rewrite(files, index, moved, previous_end, damage)
            moved = []
        _seal(files, name, index, used)
    except OSError as error:
        # A full disk must drain: what stands at its place is used, and the next start tries again.
        log.error("recovery.not_sealed", file=name, moved_blocks=len(moved), error=str(error))
        index = _without(index, {home for _, home, _ in moved})
        if not len(index):
            return None
    return Reading(index, used, size)


def _without(index: ChunkIndex, homes: set[int]) -> ChunkIndex:
    rest = ChunkIndex(index.number)
    for row, home in enumerate(index.offsets):
        if home not in homes:
            rest.copy_row(index, row)
    return rest


def _rewrite(
    files: Files,
    index: ChunkIndex,
    moved: list[tuple[int, int, int]],
    previous_end: int,
    damage: Damage,
) -> ChunkIndex:
    """Puts blocks back where they belong, in a new file; the old one stays in the quarantine."""
    number = index.number
    name = chunk.chunk_name(number)
    damage.moved_blocks += len(moved)
    found_at = {home: found for found, home, _ in moved}
    rewritten = ChunkIndex(number)
    source = files.open_read(name)
    target = files.open_new(name + ".tmp")
    try:
        created_ms = time.time_ns() // 1_000_000
        head = chunk.ChunkHead(number, files.size(name), previous_end, created_ms)
        files.write(target, [head.pack()], 0)
        for row in sorted(range(len(index)), key=index.offsets.__getitem__):
            home, length = index.offsets[row], index.sizes[row]
            files.write(target, [files.read(source, length, found_at.get(home, home))], home)
            rewritten.copy_row(index, row)
        files.sync(target)
    finally:
        files.close(target)
        files.close(source)
    files.link(name, f"quarantine/{name}-{time.time_ns():x}")
    files.rename(name + ".tmp", name)
    files.sync_directory()
    log.warning("recovery.chunk_rewritten", file=name, moved_blocks=len(moved))
    return rewritten


def _seal(files: Files, name: str, index: ChunkIndex, used: int) -> None:
    fd = files.open_write(name)
    try:
        files.truncate(fd, used)
        files.sync(fd)
    finally:
        files.close(fd)
    files.replace(chunk.index_name(index.number), index.pack(used, used))
