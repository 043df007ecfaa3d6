"""Reads a live or stopped spool without changing it, for `forebay spool`.

A live spool changes meanwhile: a chunk may be recycled between listing and reading, which its head
shows afterwards, and the end of the active chunk may be half written. Neither is damage.

The record log says whether staged runs are visible, still staged, or dropped. It is read first, so
that runs published meanwhile are shown as staged, never as dropped.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from actors.model.books import Books, parse_account
from actors.model.slices import item_bits
from actors.spooler.writes import Phase, Writes
from daemon.journal import chunk
from daemon.journal.block import Block, Gap, Scanner
from daemon.journal.files import Files
from daemon.journal.index import ChunkIndex, unpack_index
from daemon.journal.marks import settle_marks, unpack_marks
from daemon.journal.records import RECORDS, parse_records
from forebay.errors import BadRun
from forebay.run import Run, read_run


@dataclass(slots=True)
class ChunkView:
    """One chunk as it is on disk."""

    number: int
    name: str
    file_bytes: int
    used_bytes: int
    is_sealed: bool
    """Whether it has an index that fits."""
    index: ChunkIndex
    done: dict[int, int]
    """Settled items of each row, as bits."""
    totals: Books
    phases: list[Phase] = field(default_factory=list)
    """The phase of each account's runs, by the account's number in the index."""
    gaps: list[Gap] = field(default_factory=list)
    mark_bytes_damaged: int = 0
    bad_runs: list[tuple[int, str]] = field(default_factory=list)
    """Blocks that are whole and hold a run that cannot be unpacked: (offset, why)."""
    is_head_damaged: bool = False
    is_index_damaged: bool = False

    @property
    def is_damaged(self) -> bool:
        return bool(
            self.gaps or self.mark_bytes_damaged or self.is_head_damaged or self.is_index_damaged
        )

    @property
    def held_items(self) -> int:
        return self._held(Phase.PUBLISHED)

    @property
    def staged_items(self) -> int:
        return self._held(Phase.OPEN)

    def _held(self, phase: Phase) -> int:
        accounts = zip(self.index.accounts, self.phases, strict=True)
        return sum(self.totals[name].held for name, its in accounts if its is phase)

    def rows_held(self) -> Iterator[int]:
        """Rows with items that are neither settled nor dropped with their stage."""
        for row, count in enumerate(self.index.counts):
            is_done = self.done.get(row, 0) == item_bits(0, count)
            if not is_done and self.phase(row) is not Phase.ABORTED:
                yield row

    def phase(self, row: int) -> Phase:
        return self.phases[self.index.account_numbers[row]]


def list_chunks(files: Files) -> list[ChunkView]:
    """Every chunk, from its index, or from its blocks' heads if it has none."""
    return list(_views(files, thorough=False))


def verify_chunks(files: Files) -> Iterator[ChunkView]:
    """Every chunk, each block's checksum checked and each run unpacked."""
    return _views(files, thorough=True)


def read_writes(files: Files) -> tuple[Writes, int]:
    """The writes in the record log, and how many of its lines are damaged."""
    records, damaged = parse_records(_read_if_there(files, RECORDS) or b"")
    writes = Writes()
    damaged += writes.restore(records)
    return writes, damaged


def account_phase(writes: Writes, name: str) -> Phase:
    """The phase of an account's runs. Pushed runs are visible from the start."""
    account = parse_account(name)
    if not account.write:
        return Phase.PUBLISHED
    return writes.phase(account.write, account.stage)


def dump_runs(files: Files, *, held_only: bool) -> Iterator[tuple[Run, int, Phase]]:
    """Every readable run, in the order of the journal, with the bits of its settled items."""
    for view in _views(files, thorough=False):
        rows = view.rows_held() if held_only else range(len(view.index))
        try:
            fd = files.open_read(view.name)
        except FileNotFoundError:
            continue  # Everything in it was delivered meanwhile.
        try:
            for row in rows:
                run = _read(files, fd, view, row)
                if run is not None:
                    yield run, view.done.get(row, 0), view.phase(row)
        finally:
            files.close(fd)


def _views(files: Files, *, thorough: bool) -> Iterator[ChunkView]:
    writes, _ = read_writes(files)
    for name in files.names():
        number = chunk.number_in(name, chunk.SUFFIX)
        if number is None:
            continue
        try:
            view = _view(files, name, number, thorough=thorough)
        except FileNotFoundError:
            continue
        if view is not None:
            view.phases = [account_phase(writes, account) for account in view.index.accounts]
            yield view


def _view(files: Files, name: str, number: int, *, thorough: bool) -> ChunkView | None:
    """None if the chunk was recycled meanwhile."""
    size = files.size(name)
    head = chunk.read_head_of(files, name)
    index_data = _read_if_there(files, chunk.index_name(number))
    indexed = unpack_index(index_data, number, size) if index_data is not None else None
    view = ChunkView(
        number,
        name,
        size,
        chunk.HEAD_BYTES,
        is_sealed=indexed is not None,
        index=ChunkIndex(number),
        done={},
        totals={},
        is_head_damaged=head is None,
        is_index_damaged=index_data is not None and indexed is None,
    )
    if indexed is None or thorough:
        _scan(files, view, start=0 if head is None else chunk.HEAD_BYTES, unpack=thorough)
    found = view.index
    if indexed is not None:
        view.index, view.used_bytes = indexed
    marks, view.mark_bytes_damaged = unpack_marks(
        number, _read_if_there(files, chunk.marks_name(number)) or b""
    )
    settled = settle_marks(view.index, marks)
    view.done, view.totals = settled.done, settled.totals
    if indexed is not None and thorough:
        view.gaps = _missing(view.index, settled.done, found)
    after = chunk.read_head_of(files, name)
    if head is not None and after is not None and after.number != head.number:
        return None
    return view


def _missing(index: ChunkIndex, done: Mapping[int, int], found: ChunkIndex) -> list[Gap]:
    """Where the index has a run with unsettled items but no whole block exists. The blocks of other
    runs are not needed; some are in the quarantine, and their items count as lost."""
    there = set(found.offsets)
    rows = zip(index.offsets, index.sizes, index.counts, strict=True)
    return [
        Gap(offset, offset + size)
        for row, (offset, size, count) in enumerate(rows)
        if offset not in there and done.get(row, 0) != item_bits(0, count)
    ]


def _scan(files: Files, view: ChunkView, *, start: int, unpack: bool) -> None:
    fd = files.open_read(view.name)
    try:
        scanner = Scanner(
            lambda length, at: files.read(fd, length, at), view.number, view.file_bytes, start
        )
        for found in scanner:
            if isinstance(found, Gap):
                if not (view.is_head_damaged and found == Gap(0, chunk.HEAD_BYTES)):
                    view.gaps.append(found)
                continue
            offset = found.position - view.number
            view.index.add(offset, found.size, found.head, found.fingerprint, found.stage)
            view.used_bytes = max(view.used_bytes, offset + found.size)
            if unpack:
                _unpack(files, fd, found, view)
    finally:
        files.close(fd)


def _unpack(files: Files, fd: int, found: Block, view: ChunkView) -> None:
    try:
        run = read_run(chunk.read_block(files, fd, found.offset, found.position)[0])
        run.payloads()
        run.keys()
        run.item_ids()
    except BadRun as problem:
        view.bad_runs.append((found.offset, str(problem)))


def _read(files: Files, fd: int, view: ChunkView, row: int) -> Run | None:
    offset = view.index.offsets[row]
    try:
        return read_run(chunk.read_block(files, fd, offset, view.number + offset)[0])
    except BadRun:
        return None


def _read_if_there(files: Files, name: str) -> bytes | None:
    try:
        return files.read_file(name)
    except FileNotFoundError:
        return None
