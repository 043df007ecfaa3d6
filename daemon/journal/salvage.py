"""Finds the runs of a chunk: from its index if that is whole and fits the file, else by a scan.

A scan finds every whole block, whatever lies between them, puts blocks back that stand at a wrong
place, seals the chunk and writes its index.

Runs that were in the chunk and are no longer whole stay in the index, so that their items remain in
the books, as lost. They are known from an earlier index or draft of the chunk, and from the heads
of damaged blocks that can still be read.
"""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from operator import add, itemgetter

import structlog

from actors.model.slices import item_bits
from actors.ports.journal import Damage
from daemon.journal import chunk
from daemon.journal.block import (
    CHUNK_BYTES_MAX,
    MAGIC_BYTES,
    Gap,
    Scanner,
    open_body,
    read_block_head,
)
from daemon.journal.block import HEAD_BYTES as BLOCK_HEAD_BYTES
from daemon.journal.files import Files
from daemon.journal.index import ChunkIndex, unpack_index
from daemon.journal.inventory import Inventory, had_blocks, read_known
from daemon.journal.marks import read_marks, settle_marks
from daemon.journal.quarantine import keep, keep_gap, set_chunk_aside
from forebay.errors import BadRun
from forebay.run import read_head

log = structlog.get_logger()


@dataclass(slots=True)
class Reading:
    index: ChunkIndex
    """Empty: not a block, and no sign that there ever was one."""
    used: int
    scanned_bytes: int = 0
    lost: frozenset[int] = frozenset()
    """Offsets of runs in the index that are not whole."""


def read_chunk(
    files: Files,
    number: int,
    inventory: Inventory,
    known_end: tuple[int, bool] | None,
    damage: Damage,
    *,
    thorough: bool,
) -> Reading | None:
    """What a chunk holds; None if nothing of it can be used. `thorough`: looks at every block, also
    where an index says what there is."""
    head = inventory.chunks[number]
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
    if indexed is not None and not (
        thorough and (head is None or _has_rotted(files, indexed[0], damage))
    ):
        return Reading(*indexed)
    return _scan_chunk(files, number, head, known_end, damage)


def _has_rotted(files: Files, index: ChunkIndex, damage: Damage) -> bool:
    """Whether a block is damaged of which items are held."""
    done = settle_marks(index, read_marks(files, index.number, damage)).done
    fd = files.open_read(chunk.chunk_name(index.number))
    try:
        for row, offset in enumerate(index.offsets):
            if done.get(row, 0) != item_bits(0, index.counts[row]):
                chunk.read_block(files, fd, offset, index.number + offset)
    except BadRun:
        return True
    finally:
        files.close(fd)
    return False


@dataclass(slots=True)
class Found:
    """What a scan has found in a chunk."""

    index: ChunkIndex
    size: int
    moved: list[tuple[int, int, int]] = field(default_factory=list)
    """Blocks that are not where they belong: where they are, where they belong, how long."""
    used: int = chunk.HEAD_BYTES
    """Where the last block ends that belongs here."""
    damaged: ChunkIndex = field(init=False)
    """Runs of which only the head can be read."""
    tail_at: int = 0
    torn_bytes: int = 0

    def __post_init__(self) -> None:
        self.damaged = ChunkIndex(self.index.number)


def _scan_chunk(
    files: Files,
    number: int,
    head: chunk.ChunkHead | None,
    known_end: tuple[int, bool] | None,
    damage: Damage,
) -> Reading | None:
    """Finds every whole block, sets other bytes aside, seals the chunk, and writes its index."""
    end, end_is_final = known_end or (0, False)
    found = _find_blocks(files, number, head, end if end_is_final else None, damage)
    is_cut = _keep_tail(files, number, found, known_end, damage)
    lost = _find_lost(found, read_known(files, number))
    if len(found.index) or len(lost):
        return _restore(files, head, found, lost, damage)
    if head is None or is_cut or had_blocks(files, number):
        set_chunk_aside(files, number, damage, "it holds no whole block")
        return None
    return Reading(found.index, found.used, found.size)


def _find_blocks(
    files: Files, number: int, head: chunk.ChunkHead | None, end: int | None, damage: Damage
) -> Found:
    """Every whole block up to `end`, once each; what lies between them goes into the quarantine."""
    name = chunk.chunk_name(number)
    found = Found(ChunkIndex(number), files.size(name))
    seen: set[int] = set()
    start = chunk.HEAD_BYTES if head is not None else 0
    fd = files.open_read(name)
    try:
        scanner = Scanner(lambda length, at: files.read(fd, length, at), number, found.size, start)
        for block in scanner:
            if isinstance(block, Gap):
                if head is not None or block != Gap(0, chunk.HEAD_BYTES):
                    keep_gap(files, number, block.start, block.end, damage)
                    _read_heads(files, fd, block, found.damaged)
                continue
            if end is not None and block.position >= end:
                break
            if block.position in seen:
                continue
            seen.add(block.position)
            home = block.position - number
            if block.offset != home:
                found.moved.append((block.offset, home, block.size))
            found.index.add(home, block.size, block.head, block.fingerprint, block.stage)
            found.used = max(found.used, home + block.size)
        found.tail_at, found.torn_bytes = scanner.at, scanner.torn_bytes
    finally:
        files.close(fd)
    return found


def _keep_tail(
    files: Files, number: int, found: Found, known_end: tuple[int, bool] | None, damage: Damage
) -> bool:
    """Keeps what follows the last block, and tells whether blocks that were there are missing.

    What lies behind an end that is final was given up when that was written.
    """
    name = chunk.chunk_name(number)
    end, end_is_final = known_end or (0, False)
    tail_at = found.tail_at
    lost = 0
    if not end_is_final and end > number + max(found.used, tail_at):
        lost = min(end - number, found.size) - tail_at
    if lost > 0:
        keep_gap(files, number, tail_at, tail_at + lost, damage)
        fd = files.open_read(name)
        try:
            _read_heads(files, fd, Gap(tail_at, tail_at + lost), found.damaged)
        finally:
            files.close(fd)
    elif found.torn_bytes and not end_is_final:
        damage.torn_tails += 1
        keep(files, number, tail_at, tail_at + found.torn_bytes, "torn")
        log.info("recovery.torn_tail", file=name, at=tail_at, bytes=found.torn_bytes)
    elif end > number + found.size:
        damage.blocks += 1
        log.warning("recovery.chunk_cut", file=name, size=found.size, known_end=end - number)
    return lost > 0


def _read_heads(files: Files, fd: int, gap: Gap, damaged: ChunkIndex) -> None:
    """Enters the runs in a gap whose heads make sense. Their blocks' checksums do not match, but a
    head names its own position and length twice."""
    number = damaged.number
    data = files.read(fd, gap.end - gap.start, gap.start)
    at = data.find(MAGIC_BYTES)
    while at >= 0:
        block = read_block_head(memoryview(data)[at:], number, number + CHUNK_BYTES_MAX)
        if block is not None and block.position == number + gap.start + at:
            body = data[at + BLOCK_HEAD_BYTES : at + block.size]
            with suppress(BadRun):
                head = read_head(open_body(block, body))
                stage = body[: block.stage_bytes]
                damaged.add(block.position - number, block.size, head, 0, stage)
        at = data.find(MAGIC_BYTES, at + 1)


def _find_lost(found: Found, known: ChunkIndex | None) -> ChunkIndex:
    """Runs that the chunk had and that are no longer whole."""
    lost = ChunkIndex(found.index.number)
    seen = set(found.index.offsets)
    for source in (found.damaged,) if known is None else (known, found.damaged):
        for row, offset in enumerate(source.offsets):
            if offset not in seen:
                seen.add(offset)
                lost.copy_row(source, row)
    return lost


def _with_lost(index: ChunkIndex, lost: ChunkIndex) -> ChunkIndex:
    """All runs of both, in the order of their offsets."""
    if not len(lost):
        return index
    rows = [
        (source.offsets[row], source, row) for source in (index, lost) for row in range(len(source))
    ]
    merged = ChunkIndex(index.number)
    for _, source, row in sorted(rows, key=itemgetter(0)):
        merged.copy_row(source, row)
    return merged


def _restore(
    files: Files, head: chunk.ChunkHead | None, found: Found, lost: ChunkIndex, damage: Damage
) -> Reading | None:
    """The chunk with its blocks where they belong, sealed and indexed."""
    name = chunk.chunk_name(found.index.number)
    index, moved, used = found.index, found.moved, found.used
    if len(lost):
        used = max(used, *(map(add, lost.offsets, lost.sizes)))
    if head is None:
        damage.heads += 1
        log.warning("recovery.chunk_head_damaged", file=name)
    try:
        if moved or head is None or not len(index):
            previous_end = head.previous_end if head is not None else 0
            capacity = max(found.size, used)
            index = _rewrite(files, index, moved, capacity, previous_end, damage)
            moved = []
        index = _with_lost(index, lost)
        _seal(files, name, index, used)
    except OSError as error:
        # A full disk must drain: blocks in their place are used, and the next start tries again.
        log.error("recovery.not_sealed", file=name, moved_blocks=len(moved), error=str(error))
        index = _without(_with_lost(found.index, lost), {home for _, home, _ in moved})
        if not len(index):
            return None
    return Reading(index, used, found.size, frozenset(lost.offsets))


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
    capacity: int,
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
        head = chunk.ChunkHead(number, capacity, previous_end, created_ms)
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
    files.unlink(chunk.draft_name(index.number))
