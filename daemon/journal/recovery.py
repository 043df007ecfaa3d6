"""Recovery: what the files say, after any crash and any damage. It always ends with a spool.

For each chunk: the index if it is whole and fits the file, a scan otherwise; then the marks.
Nothing is discarded because it looks odd: bytes that belong to no whole block, and files that
make no sense, go to the quarantine and are counted. The last chunk is sealed and never written
again. Every step may be repeated: a crash in the middle of a recovery is followed by another one.

What it cannot tell apart: a last block that was torn by the crash and one that was damaged after
it was acknowledged, where the hint in `spool.meta` is older than the block. Both are kept aside.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from actors.books import Books, Totals, count_fate
from actors.loans import item_bits
from actors.ports import Damage, LiveRun, Recovered, RecoveredChunk
from daemon.journal import ballast, chunk
from daemon.journal.block import Gap, Scanner
from daemon.journal.checkpoint import (
    CHECKPOINT,
    CHECKPOINT_OLD,
    META,
    Checkpoint,
    Meta,
    read_checkpoint,
    read_meta,
)
from daemon.journal.files import Files
from daemon.journal.index import ChunkIndex, unpack_index
from daemon.journal.marks import Mark, pack_marks, unpack_marks
from daemon.journal.recent import RECENT, read_recent

log = structlog.get_logger()

KNOWN_FILES = frozenset({META, CHECKPOINT, CHECKPOINT_OLD, RECENT, ballast.NAME})


@dataclass(slots=True)
class FoundSpool:
    recovered: Recovered
    checkpoint: Checkpoint
    next_number: int
    spares: list[str]


@dataclass(slots=True)
class _Inventory:
    """The directory, sorted by what its files are."""

    chunks: dict[int, chunk.ChunkHead | None] = field(default_factory=dict)
    followers: list[tuple[str, int]] = field(default_factory=list)
    """Indexes and marks, with the numbers of their chunks."""
    spares: list[str] = field(default_factory=list)
    highest: int = 0
    """No number of any file reaches this."""


def recover(
    files: Files, chunk_bytes: int, recent_max: int, progress: Callable[[int, int], None]
) -> FoundSpool:
    damage = Damage()
    checkpoint, bad_checkpoints = read_checkpoint(files)
    for name in bad_checkpoints:
        _set_aside(files, name, damage, "a checkpoint is damaged")
    meta = read_meta(files)
    if meta is None and META in files.names():
        _set_aside(files, META, damage, "it makes no sense")
    inventory = _take_inventory(files, chunk_bytes, damage)
    _finish_freeing(files, checkpoint, inventory)
    _set_orphans_aside(files, inventory, damage)
    ends = _known_ends(inventory, meta)

    chunks = []
    indexes = []
    scanned = 0
    numbers = sorted(inventory.chunks)
    for order, number in enumerate(numbers):
        try:
            reading = _read_chunk(files, number, inventory, ends.get(number), damage)
        except OSError as error:
            # It may be readable at the next start: it stays where it is.
            name = chunk.chunk_name(number)
            damage.files.append(name)
            log.error("recovery.file_left", file=name, why="it cannot be read", error=str(error))
            continue
        if reading is not None:
            scanned += reading.scanned_bytes
            if len(reading.index):
                indexes.append(reading.index)
                chunks.append(_sort_out(files, reading.index, reading.used, damage))
            else:
                _reuse_or_remove(files, number, chunk_bytes, inventory)
        progress(order + 1, len(numbers))
    try:
        files.sync_directory()
    except OSError as error:
        # What was moved and removed would be so again; a new chunk is not used without a sync.
        log.error("recovery.directory_not_synced", error=str(error))
    recent = (_older_ids(files, damage) + _newest(indexes, recent_max))[-recent_max:]
    return FoundSpool(
        Recovered(chunks, checkpoint.base, recent, damage, scanned),
        checkpoint,
        max(inventory.highest, checkpoint.next_number, meta.writer_offset if meta else 0),
        inventory.spares,
    )


def _take_inventory(files: Files, chunk_bytes: int, damage: Damage) -> _Inventory:
    inventory = _Inventory()
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
    files: Files, name: str, chunk_bytes: int, inventory: _Inventory, damage: Damage
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
    number = chunk.number_in(name, chunk.INDEX_SUFFIX)
    return number if number is not None else chunk.number_in(name, chunk.MARKS_SUFFIX)


def _take_spare(files: Files, name: str, chunk_bytes: int, inventory: _Inventory) -> None:
    """A spare holds nothing, but its head tells which numbers were used."""
    data = chunk.read_start(files, name)
    head = chunk.read_chunk_head(data)
    if head is not None:
        inventory.highest = max(inventory.highest, head.number + head.capacity)
    if files.size(name) == chunk_bytes and (head is not None or not any(data)):
        inventory.spares.append(name)
    else:
        files.unlink(name)


def _take_chunk(
    files: Files, name: str, number: int, inventory: _Inventory, damage: Damage
) -> None:
    """The number inside a chunk wins over its name."""
    head = chunk.read_head_of(files, name)
    if head is not None and head.number != number:
        right = chunk.chunk_name(head.number)
        names = files.names()
        holder = chunk.read_head_of(files, right) if right in names else None
        if right in names and (holder is None or holder.number == head.number):
            _set_aside(files, name, damage, f"it says it is {right}, which exists")
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


def _finish_freeing(files: Files, checkpoint: Checkpoint, inventory: _Inventory) -> None:
    """Chunks whose totals are in the base already: the crash came before all of it was gone."""
    for number in checkpoint.absorbed:
        inventory.chunks.pop(number, None)
        _remove_chunk(files, number)
    gone = frozenset(checkpoint.absorbed)
    inventory.followers = [entry for entry in inventory.followers if entry[1] not in gone]


def _set_orphans_aside(files: Files, inventory: _Inventory, damage: Damage) -> None:
    for name, number in inventory.followers:
        if number not in inventory.chunks:
            _set_aside(files, name, damage, "its chunk is missing")


def _known_ends(inventory: _Inventory, meta: Meta | None) -> dict[int, tuple[int, bool]]:
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


@dataclass(slots=True)
class _Reading:
    index: ChunkIndex
    """Empty: not a block, and no sign that there ever was one."""
    used: int
    scanned_bytes: int = 0


def _read_chunk(
    files: Files,
    number: int,
    inventory: _Inventory,
    known_end: tuple[int, bool] | None,
    damage: Damage,
) -> _Reading | None:
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
        return _Reading(*indexed)
    return _scan_chunk(files, number, inventory.chunks[number], known_end, damage)


def _scan_chunk(
    files: Files,
    number: int,
    head: chunk.ChunkHead | None,
    known_end: tuple[int, bool] | None,
    damage: Damage,
) -> _Reading | None:
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
                    _keep_gap(files, number, found.start, found.end, damage)
                continue
            if end_is_final and found.position >= end_position:
                break
            if found.position in seen:
                continue
            seen.add(found.position)
            if found.position != number + found.offset:
                moved.append((found.offset, found.position - number, found.size))
            index.add(found.position - number, found.size, found.head)
            used = max(used, found.position - number + found.size)
        tail_at = scanner.at
    finally:
        files.close(fd)

    lost_tail = 0
    if not end_is_final and end_position > number + max(used, tail_at):
        lost_tail = min(end_position - number, size) - tail_at
    if lost_tail > 0:
        _keep_gap(files, number, tail_at, tail_at + lost_tail, damage)
    elif scanner.torn_bytes and not end_is_final:
        damage.torn_tails += 1
        _keep(files, number, tail_at, tail_at + scanner.torn_bytes, "torn")
        log.info("recovery.torn_tail", file=name, at=tail_at, bytes=scanner.torn_bytes)
    elif end_position > number + size:
        damage.blocks += 1
        log.warning("recovery.chunk_cut", file=name, size=size, known_end=end_position - number)

    if not len(index):
        if head is None or lost_tail > 0 or _had_blocks(files, number):
            _set_chunk_aside(files, number, damage, "it holds no whole block")
            return None
        return _Reading(index, used, size)
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
    return _Reading(index, used, size)


def _had_blocks(files: Files, number: int) -> bool:
    """There is an index or a mark: both are made for blocks."""
    return not {chunk.index_name(number), chunk.marks_name(number)}.isdisjoint(files.names())


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


def _sort_out(files: Files, index: ChunkIndex, used: int, damage: Damage) -> RecoveredChunk:
    """Applies the marks: what is settled, what is live, and the books of the chunk."""
    done, totals = settle_marks(index, _read_marks(files, index.number, damage))
    return RecoveredChunk(index.number, used, totals, _live_runs(index, done))


def settle_marks(index: ChunkIndex, marks: Sequence[Mark]) -> tuple[dict[int, int], Books]:
    """The settled items of each row, as bits, and the totals. The first mark of an item counts."""
    rows = {offset: row for row, offset in enumerate(index.offsets)} if marks else {}
    done: dict[int, int] = {}
    totals: Books = {name: Totals() for name in index.queues}
    by_number = [totals[name] for name in index.queues]
    for queue_number, count in zip(index.queue_numbers, index.counts, strict=True):
        by_number[queue_number].accepted += count
    for mark in marks:
        row = rows.get(mark.offset)
        if row is None or index.run_id(row) != mark.run_id:
            continue
        bits = item_bits(mark.first, min(mark.last, index.counts[row])) & ~done.get(row, 0)
        done[row] = done.get(row, 0) | bits
        count_fate(by_number[index.queue_numbers[row]], mark.fate, bits.bit_count())
    return done, totals


def _live_runs(index: ChunkIndex, done: dict[int, int]) -> Iterator[LiveRun]:
    number = index.number
    queues = index.queues
    columns = zip(
        index.offsets,
        index.sizes,
        index.counts,
        index.queue_numbers,
        index.priorities,
        index.due_ms,
        strict=True,
    )
    for row, (offset, size, count, queue, priority, due_ms) in enumerate(columns):
        settled = done.get(row, 0) if done else 0
        if settled and settled == item_bits(0, count):
            continue
        yield LiveRun(number + offset, size, count, queues[queue], priority, due_ms, settled)


def _read_marks(files: Files, number: int, damage: Damage) -> list[Mark]:
    name = chunk.marks_name(number)
    try:
        data = files.read_file(name)
    except FileNotFoundError:
        return []
    except OSError as error:
        damage.files.append(name)
        log.error("recovery.file_left", file=name, why="it cannot be read", error=str(error))
        return []
    marks, lost = unpack_marks(number, data)
    if lost:
        damage.mark_bytes += lost
        log.warning("recovery.marks_damaged", file=name, bytes=lost)
        _mend_marks(files, name, pack_marks(number, marks))
    return marks


def _mend_marks(files: Files, name: str, whole: bytes) -> None:
    """Keeps the damaged file aside and leaves the whole records in its place."""
    try:
        files.copy_aside(name, 0, files.size(name), f"{name}-{time.time_ns():x}")
        files.replace(name, whole)
    except OSError as error:
        log.warning("recovery.not_kept", file=name, error=str(error))


def _older_ids(files: Files, damage: Damage) -> list[bytes]:
    """The ids of runs whose chunks may be gone."""
    try:
        return read_recent(files)
    except (OSError, ValueError) as problem:
        _set_aside(files, RECENT, damage, str(problem))
        return []


def _newest(indexes: list[ChunkIndex], recent_max: int) -> list[bytes]:
    recent: list[bytes] = []
    for index in reversed(indexes):
        wanted = min(recent_max - len(recent), len(index))
        rows = range(len(index) - wanted, len(index))
        recent = [index.run_id(row) for row in rows] + recent
    return recent


def _reuse_or_remove(files: Files, number: int, chunk_bytes: int, inventory: _Inventory) -> None:
    """A chunk that was made ready and never used is a spare again; one that failed is not."""
    name = chunk.chunk_name(number)
    if files.size(name) == chunk_bytes and not _had_blocks(files, number):
        spare = chunk.spare_name(number)
        files.rename(name, spare)
        inventory.spares.append(spare)
    else:
        _remove_chunk(files, number)


def _remove_chunk(files: Files, number: int) -> None:
    for name in (chunk.chunk_name(number), chunk.index_name(number), chunk.marks_name(number)):
        files.unlink(name)


def _keep_gap(files: Files, number: int, start: int, end: int, damage: Damage) -> None:
    damage.blocks += 1
    damage.block_bytes += end - start
    kept = _keep(files, number, start, end, "gap")
    log.warning(
        "recovery.block_damaged", chunk=f"{number:016x}", at=start, bytes=end - start, kept=kept
    )


def _keep(files: Files, number: int, start: int, end: int, why: str) -> str | None:
    """Copies bytes into the quarantine; a disk without room for that does not stop recovery."""
    aside = f"{number:016x}-{start:08x}-{why}.bytes"
    try:
        files.copy_aside(chunk.chunk_name(number), start, end, aside)
    except OSError as error:
        log.warning("recovery.not_kept", chunk=f"{number:016x}", at=start, error=str(error))
        return None
    return aside


def _set_chunk_aside(files: Files, number: int, damage: Damage, why: str) -> None:
    """Moves a chunk and what belongs to it into the quarantine."""
    _set_aside(files, chunk.chunk_name(number), damage, why)
    names = files.names()
    for follower in (chunk.index_name(number), chunk.marks_name(number)):
        if follower in names:
            _set_aside(files, follower, damage, "its chunk is set aside")


def _set_aside(files: Files, name: str, damage: Damage, why: str) -> None:
    """Moves a whole file into the quarantine."""
    damage.files.append(name)
    try:
        files.rename(name, f"quarantine/{name}-{time.time_ns():x}")
        log.warning("recovery.file_set_aside", file=name, why=why)
    except OSError as error:
        log.error("recovery.file_left", file=name, why=why, error=str(error))
