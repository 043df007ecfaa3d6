"""Evaluates a chunk's marks: settled items, live runs, and the chunk's totals."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice

import structlog

from actors.model.books import Books, Totals, count_fate, parse_account
from actors.model.failures import Failures, Portions
from actors.model.runs import Fate
from actors.model.slices import item_bits, ranges
from actors.ports.journal import Damage, LiveRun, RecoveredChunk
from daemon.journal import chunk
from daemon.journal.files import Files
from daemon.journal.index import ChunkIndex
from daemon.journal.marks import Mark, pack_marks, unpack_marks

log = structlog.get_logger()


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
