"""Marks: what happened to a chunk's items.

`MarkFiles` appends marks to the mark file of the chunk. `settle_marks` evaluates them: which items
are settled, which runs are live, and the chunk's totals. A record of a mark file:

    u32 crc32c | u16 length | u8 fate | u8 reason | u32 offset | 16s run id | u16 first | u16 last
    of a retry, after that: u16 attempt | u64 due_ms | u64 at_ms | the error's text

The reason is that of a retry's failure: 1 is business, any other number is application. The length
is that of the whole record. The CRC covers the chunk's number and what follows the CRC. A record
names the run as well as its offset; a record that does not fit the run found there is ignored.
"""

import struct
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Final

import structlog
from crc32c import crc32c

from actors.model.books import Books, Totals, count_fate, parse_account
from actors.model.failures import Failures, Portions, RetryNote
from actors.model.runs import Fate
from actors.model.slices import ERROR_TEXT_MAX, cut_text, item_bits, ranges
from actors.ports.journal import Damage, ItemMark, LiveRun, RecoveredChunk
from daemon.journal import chunk
from daemon.journal.ballast import Ballast
from daemon.journal.files import Files
from daemon.journal.index import ChunkIndex
from daemon.journal.reader import find_run_id

log = structlog.get_logger()

_RECORD = struct.Struct("<HBBI16sHH")
_NOTE = struct.Struct("<HQQ")
_CRC = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")
RECORD_BYTES: Final = _CRC.size + _RECORD.size
NOTED_BYTES: Final = RECORD_BYTES + _NOTE.size
"""A retry's record, before the text."""
RECORD_BYTES_MAX: Final = NOTED_BYTES + 4 * ERROR_TEXT_MAX
OPEN_MAX: Final = 16
"""How many mark files are kept open."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The items `first` to `last` (exclusive) of the run at `offset` met `fate`."""

    offset: int
    run_id: bytes
    first: int
    last: int
    fate: Fate
    note: RetryNote | None = None


def pack_marks(number: int, marks: Iterable[Mark]) -> bytes:
    """The records of one chunk, ready to append."""
    seed = crc32c(_NUMBER.pack(number))
    parts = []
    for mark in marks:
        note = b"" if mark.note is None else _pack_note(mark.note)
        length = RECORD_BYTES + len(note)
        reason = int(mark.note is not None and mark.note.failure_reason == "business")
        where = (mark.offset, mark.run_id, mark.first, mark.last)
        record = _RECORD.pack(length, mark.fate, reason, *where) + note
        parts += [_CRC.pack(crc32c(record, seed)), record]
    return b"".join(parts)


def unpack_marks(number: int, data: bytes) -> tuple[list[Mark], int]:
    """Every whole record, and how many bytes belong to no record."""
    seed = crc32c(_NUMBER.pack(number))
    view = memoryview(data)
    marks = []
    lost = 0
    at = 0
    while at + RECORD_BYTES <= len(data):
        found = _RECORD.unpack_from(data, at + _CRC.size)
        length, fate, reason, offset, run_id, first, last = found
        record = view[at + _CRC.size : at + length]
        (crc,) = _CRC.unpack_from(data, at)
        if not _fits(length, fate, len(data) - at) or crc32c(record, seed) != crc:
            lost += 1
            at += 1
            continue
        note = None
        if fate == Fate.RETRY:
            note = _unpack_note(view[at + RECORD_BYTES : at + length], reason)
        marks.append(Mark(offset, run_id, first, last, Fate(fate), note))
        at += length
    return marks, lost + len(data) - at


def _fits(length: int, fate: int, room: int) -> bool:
    """Whether a record may be that long."""
    if fate == Fate.RETRY:
        return NOTED_BYTES <= length <= min(room, RECORD_BYTES_MAX)
    return fate in _FATES and length == RECORD_BYTES


_FATES: Final = frozenset(Fate)


def _pack_note(note: RetryNote) -> bytes:
    text = cut_text(note.text).encode(errors="replace")
    return _NOTE.pack(note.attempt, note.due_ms, note.at_ms) + text


def _unpack_note(data: memoryview, reason: int) -> RetryNote:
    attempt, due_ms, at_ms = _NOTE.unpack_from(data)
    text = bytes(data[_NOTE.size :]).decode(errors="replace")
    return RetryNote(attempt, due_ms, at_ms, text, "business" if reason == 1 else "application")


class MarkFiles:
    """The mark files of all chunks: appended to in groups, synced on request.

    A few of them are kept open. After a failed write or sync the file is closed, and opened again
    for the next attempt: the kernel may have dropped what it could not write.
    """

    def __init__(self, files: Files, ballast: Ballast) -> None:
        self._files = files
        self._ballast = ballast
        self._open: OrderedDict[int, int] = OrderedDict()
        self._unsynced: set[int] = set()
        self._has_new_names = False

    def append(self, marks: Sequence[ItemMark]) -> None:
        by_chunk: dict[int, list[Mark]] = {}
        for mark in marks:
            run_id = mark.run_id or find_run_id(self._files, mark.number, mark.offset)
            if run_id is not None:
                record = Mark(mark.offset, run_id, mark.first, mark.last, mark.fate, mark.note)
                by_chunk.setdefault(mark.number, []).append(record)
        for number, group in by_chunk.items():
            self._append(number, pack_marks(number, group))

    def sync(self) -> None:
        """Makes everything durable that was appended."""
        while self._unsynced:
            self._sync(next(iter(self._unsynced)))
        if self._has_new_names:
            self._files.sync_directory()
            self._has_new_names = False

    def close(self) -> None:
        """Syncs, then closes."""
        self.sync()
        while self._open:
            self._files.close(self._open.popitem()[1])

    def _append(self, number: int, records: bytes) -> None:
        fd = self._descriptor(number)
        try:
            self._ballast.help_out(lambda: self._files.append(fd, records))
        except OSError:
            self._forget(number)
            raise
        self._unsynced.add(number)

    def _sync(self, number: int) -> None:
        self._unsynced.discard(number)
        try:
            self._files.datasync(self._descriptor(number))
        except OSError:
            self._forget(number)
            raise

    def _descriptor(self, number: int) -> int:
        if number not in self._open:
            name = chunk.marks_name(number)
            self._open[number] = self._ballast.help_out(lambda: self._files.open_append(name))
            self._has_new_names = True
            if len(self._open) > OPEN_MAX:
                oldest = next(iter(self._open))
                if oldest in self._unsynced:
                    self._sync(oldest)
                self._forget(oldest)
        self._open.move_to_end(number)
        return self._open[number]

    def _forget(self, number: int) -> None:
        fd = self._open.pop(number, None)
        if fd is not None:
            self._files.close(fd)


@dataclass(slots=True)
class Settled:
    """The result of all marks of a chunk."""

    done: dict[int, int]
    """The settled items of each row, as bits."""
    portions: dict[int, Portions]
    """For each row, the failed items that will be retried."""
    totals: Books
    handed_over: dict[int, int]
    """The part of `done` that has another owner now."""
    lost: set[int]
    """Rows with items that are lost."""


def sort_out(
    files: Files, index: ChunkIndex, used: int, lost: Set[int], damage: Damage
) -> RecoveredChunk:
    """Applies the marks: what is settled, what is live, and the books of the chunk.

    Items of the runs at the offsets `lost` that had not met another fate are lost from now on.
    """
    marks = read_marks(files, index.number, damage)
    settled = settle_marks(index, marks)
    lost_marks = _lost_marks(index, settled.done, lost)
    if lost_marks:
        _note_loss(files, index, lost_marks, damage)
        settled = settle_marks(index, marks + lost_marks)

    def ended(position: int, run_id: bytes) -> int:
        try:
            row = index.offsets.index(position - index.number)
        except ValueError:
            return 0
        if index.run_id(row) != run_id:
            return 0
        return settled.done.get(row, 0) & ~settled.handed_over.get(row, 0)

    def newest_runs(runs_max: int) -> list[tuple[bytes, int]]:
        whole = (row for row in reversed(range(len(index))) if row not in settled.lost)
        newest = islice(whole, runs_max)
        return [(index.run_id(row), index.fingerprints[row]) for row in newest][::-1]

    live = _live_runs(index, settled)
    return RecoveredChunk(index.number, used, settled.totals, live, ended, newest_runs)


def _lost_marks(index: ChunkIndex, done: Mapping[int, int], lost: Set[int]) -> list[Mark]:
    return [
        Mark(offset, index.run_id(row), *span, Fate.LOST)
        for row, offset in enumerate(index.offsets)
        if offset in lost
        for span in ranges(item_bits(0, index.counts[row]) & ~done.get(row, 0))
    ]


def _note_loss(files: Files, index: ChunkIndex, marks: list[Mark], damage: Damage) -> None:
    """Logs losses and makes their marks durable. If that fails, the next start finds the same."""
    rows = {offset: row for row, offset in enumerate(index.offsets)}
    items: Counter[str] = Counter()
    for mark in marks:
        account = parse_account(index.accounts[index.account_numbers[rows[mark.offset]]])
        items[account.queue] += mark.last - mark.first
    for queue, count in sorted(items.items()):
        log.error("recovery.items_lost", chunk=f"{index.number:016x}", queue=queue, items=count)
    damage.lost_items += items.total()
    name = chunk.marks_name(index.number)
    try:
        fd = files.open_append(name)
        try:
            files.append(fd, pack_marks(index.number, marks))
            files.datasync(fd)
        finally:
            files.close(fd)
    except OSError as error:
        log.error("recovery.loss_not_noted", file=name, error=str(error))


def settle_marks(index: ChunkIndex, marks: Sequence[Mark]) -> Settled:
    """Applies marks to a chunk's items. The first mark that ends an item counts."""
    rows = {offset: row for row, offset in enumerate(index.offsets)} if marks else {}
    done: dict[int, int] = {}
    failures: dict[int, Failures] = {}
    handed_over: dict[int, int] = {}
    lost: set[int] = set()
    totals: Books = {name: Totals() for name in index.accounts}
    by_number = [totals[name] for name in index.accounts]
    for account_number, count in zip(index.account_numbers, index.counts, strict=True):
        by_number[account_number].accepted += count
    for mark in marks:
        row = rows.get(mark.offset)
        if row is None or index.run_id(row) != mark.run_id:
            continue
        bits = item_bits(mark.first, min(mark.last, index.counts[row])) & ~done.get(row, 0)
        if mark.note is not None:
            failures.setdefault(row, Failures()).note(bits, mark.note)
            continue
        done[row] = done.get(row, 0) | bits
        if mark.fate is Fate.HANDED_OVER:
            handed_over[row] = handed_over.get(row, 0) | bits
        elif mark.fate is Fate.LOST:
            lost.add(row)
        if row in failures:
            failures[row].drop(bits)
        count_fate(by_number[index.account_numbers[row]], mark.fate, bits.bit_count())
    portions = {row: failed.portions() for row, failed in failures.items()}
    return Settled(done, portions, totals, handed_over, lost)


def _live_runs(index: ChunkIndex, settled: Settled) -> Iterator[LiveRun]:
    number = index.number
    accounts = index.accounts
    columns = zip(
        index.offsets,
        index.sizes,
        index.counts,
        index.account_numbers,
        index.priorities,
        index.due_ms,
        strict=True,
    )
    for row, (offset, size, count, account, priority, due_ms) in enumerate(columns):
        done = settled.done.get(row, 0)
        if done and done == item_bits(0, count):
            continue
        yield LiveRun(
            number + offset,
            size,
            count,
            accounts[account],
            priority,
            due_ms,
            done,
            settled.portions.get(row, ()),
            index.run_id(row),
        )


def read_marks(files: Files, number: int, damage: Damage) -> list[Mark]:
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
