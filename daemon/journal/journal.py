"""The journal: runs in, positions out, durable in groups.

Owned by the spooler, which calls it from three threads: `commit` and `close` from one, `upkeep`,
`free` and `write_meta` from another, `read` from a third. The two things that more than one of
them touch, the spares and the next chunk, are behind one lock; sealed chunks go from the commit
thread to upkeep through a deque.

A failed write or sync is never retried in the same chunk: the kernel may have dropped the pages
and will report the next sync as good. The chunk is abandoned at its last durable end, and the group
is written to a new chunk whose head records that end. If that fails too, the group is refused.

A chunk that was used before, or written in full ahead of time, takes groups of 64 KiB at 554 MB/s
and of 1 MiB at 2,437 MB/s; one whose room was only reserved, at 319 and 1,597 MB/s. Writing ahead
takes 35 to 90 ms per chunk, which does not pay off in a burst (1,088 MB/s in total, with groups of
1 MiB). So it is done only while chunks are used slowly.
"""

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from actors.config.settings import SpoolSettings
from actors.model.books import Books
from actors.model.runs import Place, StoredRun
from actors.ports.journal import Committed, ItemMark, Located, Record, Recovered, Room, Unreadable
from actors.spooler.intake import fingerprint
from daemon.journal import block, chunk
from daemon.journal.ballast import TO_FREE, Ballast
from daemon.journal.checkpoint import Checkpoint, Meta, write_recent
from daemon.journal.files import Files
from daemon.journal.index import ChunkIndex
from daemon.journal.marks import MarkFiles
from daemon.journal.reader import locate_run, read_runs
from daemon.journal.records import RecordLog
from daemon.journal.recovery import recover
from forebay.errors import Refused
from forebay.run import SNAPPY, RunHead
from forebay.snappy import compress

SQUEEZE_BYTES_MIN: Final = 512
"""Smaller runs are not worth compressing."""
BUSY_S: Final = 2.0
"""If chunks follow each other faster than this, their room is reserved, not written ahead."""

DRAFT_BYTES_PER_S: Final = 4 * 1024 * 1024
"""A draft lists every run of its chunk. With very many small runs it is written less often."""


class NoRoom(OSError):
    """A new chunk would leave less than `min_free_bytes`."""

    def __init__(self, free_bytes: int, needed_bytes: int) -> None:
        text = f"{free_bytes} bytes are free and a new chunk must leave {needed_bytes}"
        super().__init__(errno.ENOSPC, text)


@dataclass(slots=True)
class OpenChunk:
    """A chunk that takes runs."""

    number: int
    capacity: int
    fd: int
    index: ChunkIndex
    end: int = chunk.HEAD_BYTES
    """Everything before it is durable."""


@dataclass(slots=True)
class _Pool:
    """Files that will become chunks. Guarded by the journal's lock."""

    next: OpenChunk | None = None
    spares: list[str] = field(default_factory=list)


class Journal:
    def __init__(self, files: Files, settings: SpoolSettings) -> None:
        self._files = files
        self._settings = settings
        self._active: OpenChunk | None = None
        self._previous_end = 0
        self._next_number = 0
        self._lock = threading.Lock()
        self._pool = _Pool()
        self._to_index: deque[tuple[ChunkIndex, int]] = deque()
        self._ballast = Ballast(files, settings.ballast_bytes)
        self._ballast_to_free = Ballast(files, settings.ballast_bytes, TO_FREE)
        self._marks = MarkFiles(files, self._ballast)
        self._records = RecordLog(files, self._ballast)
        self._sequence = 0
        self._free_bytes = 0
        self._last_start = -BUSY_S
        self._drafted = (0, 0)
        """The chunk and the number of runs in the last draft."""
        self._draft_due = 0.0
        self._abandoned: set[int] = set()

    # Recovery, before the threads start.

    def recover(
        self,
        recent_max: int,
        progress: Callable[[int, int], None],
        *,
        thorough: bool = False,
    ) -> Recovered:
        """`thorough`: reads every block that holds items, instead of trusting the indexes."""
        self._files.create_directory()
        found = recover(
            self._files, self._settings.chunk_size, recent_max, progress, thorough=thorough
        )
        self._next_number = found.next_number
        self._sequence = found.checkpoint.sequence
        self._records.load(found.recovered.records)
        self._pool.spares = found.spares[: self._settings.spare_chunks + 1]
        for surplus in found.spares[self._settings.spare_chunks + 1 :]:
            self._files.unlink(surplus)
        return found.recovered

    # The commit thread.

    def commit(
        self,
        runs: Sequence[tuple[RunHead, bytes]],
        marks: Sequence[ItemMark],
        *,
        durable: bool,
        stages: Sequence[bytes] = (),
        records: Sequence[Record] = (),
    ) -> Committed:
        result = Committed()
        if runs:
            try:
                self._store(runs, stages or (b"",) * len(runs), result)
            except OSError as error:
                result.failure = _refusal(error)
                result.marks_failure = error
        if result.marks_failure is None:
            try:
                self._marks.append(marks)
                if durable:
                    self._marks.sync()
            except OSError as error:
                result.marks_failure = error
        if records:
            try:
                self._records.append(records)
            except OSError as error:
                result.records_failure = _refusal(error)
        return result

    def seal(self) -> Committed:
        result = Committed()
        if self._active is not None:
            self._seal(self._active, result)
        return result

    def keep_records(self, records: Sequence[Record]) -> None:
        self._records.keep(records)

    def close(self) -> None:
        self._marks.close()
        self._records.close()
        unused = [self._pool.next] if self._pool.next is not None else []
        self._pool.next = None
        if self._active is not None:
            active, self._active = self._active, None
            if len(active.index):
                self._files.truncate(active.fd, active.end)
                self._files.sync(active.fd)
                self._files.close(active.fd)
                self._to_index.append((active.index, active.end))
            else:
                unused.append(active)
        # First the indexes: where a failed chunk ends may stand in the head of an unused one.
        self.write_indexes()
        for empty in unused:
            self._files.close(empty.fd)
            self._files.rename(chunk.chunk_name(empty.number), chunk.spare_name(empty.number))
        self._files.sync_directory()

    def _store(
        self, runs: Sequence[tuple[RunHead, bytes]], stages: Sequence[bytes], result: Committed
    ) -> None:
        bodies = [self._squeeze(head, data) for head, data in runs]
        stored = 0
        failures = 0
        while stored < len(runs):
            active = self._chunk_for(len(stages[stored]) + len(bodies[stored][0]), result)
            parts, sizes = self._frame(active, bodies, stages, stored)
            try:
                self._files.write(active.fd, parts, active.end)
                if self._settings.durability == "fsync":
                    self._files.datasync(active.fd)
            except OSError as error:
                self._abandon(active, error, result)
                failures += 1
                if failures > 1:
                    raise
                continue
            for size in sizes:
                content = fingerprint(*runs[stored])
                active.index.add(active.end, size, runs[stored][0], content, stages[stored])
                result.fingerprints.append(content)
                result.positions.append(active.number + active.end)
                result.sizes.append(size)
                active.end += size
                stored += 1

    def _squeeze(self, head: RunHead, data: bytes) -> tuple[bytes, bool]:
        if (
            compress is None
            or self._settings.compression == "none"
            or head.flags & SNAPPY
            or len(data) < SQUEEZE_BYTES_MIN
        ):
            return data, False
        squeezed = compress(data)
        return (squeezed, True) if len(squeezed) < len(data) else (data, False)

    def _frame(
        self,
        active: OpenChunk,
        bodies: Sequence[tuple[bytes, bool]],
        stages: Sequence[bytes],
        first: int,
    ) -> tuple[list[bytes], list[int]]:
        """The bytes of as many blocks as the chunk has room for, and their sizes."""
        parts: list[bytes] = []
        sizes: list[int] = []
        end = active.end
        for order in range(first, len(bodies)):
            body, snappy = bodies[order]
            stage = stages[order]
            size = block.HEAD_BYTES + len(stage) + len(body)
            if end + size > active.capacity or len(sizes) >= active.index.room():
                break
            position = active.number + end
            parts += (block.frame(body, position, snappy=snappy, stage=stage), body)
            sizes.append(size)
            end += size
        return parts, sizes

    def _chunk_for(self, body_bytes: int, result: Committed) -> OpenChunk:
        """The active chunk, or a new one if it has no room."""
        active = self._active
        if active is not None:
            fits = active.end + block.HEAD_BYTES + body_bytes <= active.capacity
            if fits and active.index.room():
                return active
            self._seal(active, result)
        with self._lock:
            started, self._pool.next = self._pool.next, None
            if started is None:
                started = self._start_next(self._take_spare() or self._allocate_spare())
            elif self._previous_end:
                self._rewrite_head(started)
            self._previous_end = 0
        self._active = started
        self._last_start = time.monotonic()
        result.started.append(started.number)
        return started

    def _seal(self, active: OpenChunk, result: Committed) -> None:
        self._active = None
        self._files.close(active.fd)
        self._to_index.append((active.index, active.end))
        result.sealed.append(active.number)

    def _abandon(self, active: OpenChunk, error: OSError, result: Committed) -> None:
        self._previous_end = active.number + active.end
        self._abandoned.add(active.number)
        result.abandoned.append((active.number, error))
        self._seal(active, result)

    # The reader thread.

    def read(self, places: Sequence[tuple[int, Place]]) -> list[StoredRun | Unreadable]:
        return read_runs(self._files, places)

    def locate(self, run_id: bytes, numbers: Sequence[int]) -> list[Located]:
        active = self._active
        open_indexes = [index for index, _ in self._to_index.copy()]
        if active is not None:
            open_indexes.append(active.index)
        return locate_run(self._files, run_id, numbers, open_indexes)

    # The upkeep thread.

    def look(self) -> Room:
        self._free_bytes = self._files.free_bytes()
        return Room(self._free_bytes, len(self._pool.spares), self._quarantine_bytes())

    def write_indexes(self) -> None:
        while self._to_index:
            index, used = self._to_index[0]
            # A chunk may be freed before its index is written: all of it was delivered.
            with suppress(FileNotFoundError):
                self._write_index(index, used)
            self._to_index.popleft()

    def keep_ballast(self) -> None:
        if self._free_bytes >= self._settings.min_free_bytes + 2 * self._settings.ballast_bytes:
            self._ballast_to_free.keep()
            self._ballast.keep()

    def prepare(self) -> None:
        if self._is_low():
            self._give_up_spares()
            return
        if self._pool.next is None:
            self._prepare_next()
        while (
            len(self._pool.spares) < self._settings.spare_chunks
            and self._has_room_for_chunk()
            and not self._is_busy()
        ):
            spare = self._write_spare()
            with self._lock:
                self._pool.spares.append(spare)

    def free(self, numbers: Sequence[int], base: Books, recent: Mapping[bytes, int]) -> None:
        if self._abandoned:
            # Until its index is written, where a failed chunk ends stands in the next one's head.
            self.write_indexes()
        help_out = self._ballast_to_free.help_out
        help_out(lambda: write_recent(self._files, recent))
        help_out(lambda: self._write_checkpoint(tuple(numbers), base))
        for number in numbers:
            # Where an earlier attempt failed half-way, some of them are gone.
            with suppress(FileNotFoundError):
                self._recycle(number)
            for follower in chunk.follower_names(number):
                self._files.unlink(follower)
        self._files.sync_directory()

    def _recycle(self, number: int) -> None:
        """Makes a chunk a spare; removes it if it is not needed, does not fit or has failed."""
        name = chunk.chunk_name(number)
        with self._lock:
            wanted = len(self._pool.spares) <= self._settings.spare_chunks and not self._is_low()
        fits = self._files.size(name) == self._settings.chunk_size
        if wanted and fits and number not in self._abandoned:
            spare = chunk.spare_name(number)
            self._files.rename(name, spare)
            with self._lock:
                self._pool.spares.append(spare)
        else:
            self._files.unlink(name)
            self._abandoned.discard(number)

    def write_meta(self, reader: int, writer: int, entries: int, total_bytes: int) -> None:
        Meta(reader, writer, entries, total_bytes).write(self._files)

    def write_draft(self) -> None:
        active = self._active
        if active is None or time.monotonic() < self._draft_due:
            return
        index = active.index.copy()
        if not len(index) or self._drafted == (index.number, len(index)):
            return
        used = index.offsets[-1] + index.sizes[-1]
        data = index.pack(used, active.capacity)
        self._draft_due = time.monotonic() + len(data) / DRAFT_BYTES_PER_S
        self._files.replace(chunk.draft_name(index.number), data, durable=False)
        self._drafted = (index.number, len(index))

    def _write_checkpoint(self, absorbed: tuple[int, ...], base: Books) -> None:
        self._sequence += 1
        Checkpoint(self._sequence, self._next_number, absorbed, base).write(self._files)

    def _write_index(self, index: ChunkIndex, used: int) -> None:
        size = self._files.size(chunk.chunk_name(index.number))
        data = index.pack(used, size)
        name = chunk.index_name(index.number)
        self._ballast.help_out(lambda: self._files.replace(name, data))
        self._files.unlink(chunk.draft_name(index.number))

    def _is_low(self) -> bool:
        return self._free_bytes < self._settings.min_free_bytes

    def _give_up_spares(self) -> None:
        """Removes the spares and the next chunk if the disk has little room left."""
        if self._abandoned:
            # Until its index is written, where a failed chunk ends stands in the next one's head.
            self.write_indexes()
        with self._lock:
            spares, self._pool.spares = self._pool.spares, []
            unused, self._pool.next = self._pool.next, None
        if unused is not None:
            self._files.close(unused.fd)
            spares.append(chunk.chunk_name(unused.number))
        for spare in spares:
            self._files.unlink(spare)

    def _prepare_next(self) -> None:
        spare = self._take_spare_locked()
        if spare is None:
            if not self._has_room_for_chunk():
                return
            spare = self._allocate_spare() if self._is_busy() else self._write_spare()
        with self._lock:
            if self._pool.next is None:
                self._pool.next = self._start_next(spare)
            else:
                self._pool.spares.append(spare)

    def _is_busy(self) -> bool:
        """Whether chunks are used up so fast that writing them ahead does not pay off."""
        return time.monotonic() - self._last_start < BUSY_S

    def _start_next(self, spare: str) -> OpenChunk:
        """Called with the lock held."""
        number, capacity = self._next_number, self._settings.chunk_size
        fd = chunk.start_chunk(self._files, spare, number, capacity, self._previous_end)
        self._next_number = number + capacity
        return OpenChunk(number, capacity, fd, ChunkIndex(number))

    def _rewrite_head(self, started: OpenChunk) -> None:
        head = chunk.ChunkHead(started.number, started.capacity, self._previous_end, 0)
        try:
            self._files.write(started.fd, [head.pack()], 0)
            self._files.datasync(started.fd)
        except OSError:
            self._files.close(started.fd)
            with suppress(OSError):
                self._files.unlink(chunk.chunk_name(started.number))
            raise

    def _take_spare(self) -> str | None:
        """Called with the lock held."""
        return self._pool.spares.pop(0) if self._pool.spares else None

    def _take_spare_locked(self) -> str | None:
        with self._lock:
            return self._take_spare()

    def _allocate_spare(self) -> str:
        """Makes a file quickly: its room is reserved, not written."""
        self._free_bytes = self._files.free_bytes()
        if not self._has_room_for_chunk():
            raise NoRoom(self._free_bytes, self._settings.min_free_bytes)
        name = self._new_spare_name()
        fd = self._files.open_new(name)
        try:
            self._files.allocate(fd, self._settings.chunk_size)
            self._files.sync(fd)
        except OSError:
            self._files.unlink(name)
            raise
        finally:
            self._files.close(fd)
        return name

    def _write_spare(self) -> str:
        name = self._new_spare_name()
        chunk.write_spare(self._files, name, self._settings.chunk_size)
        self._free_bytes -= self._settings.chunk_size
        return name

    def _new_spare_name(self) -> str:
        return f"{chunk.SPARE_PREFIX}{os.urandom(8).hex()}"

    def _has_room_for_chunk(self) -> bool:
        return self._free_bytes - self._settings.chunk_size >= self._settings.min_free_bytes

    def _quarantine_bytes(self) -> int:
        # An operator may clear it at any time.
        with suppress(FileNotFoundError):
            entries = os.scandir(self._files.path("quarantine"))
            return sum(entry.stat().st_size for entry in entries)
        return 0


def _refusal(error: OSError) -> Refused:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Refused("DISK_FULL", f"the disk is full: {error.strerror}", retry_after_ms=1000)
    return Refused("DISK_ERROR", f"the disk failed: {error.strerror}", retry_after_ms=5000)
