"""A journal whose daemon is gone or stopped, as runs in a file; and its items marked as moved out.

Read as `forebay spool ls` reads it (daemon/journal/inspect.py): nothing is changed. Only when the
file is whole and on disk may the source be told (`release`): a mark for every stretch of items that
the file has, durable when it returns, so that a daemon which starts there again neither delivers
nor counts them as held; they are `moved_out` in its books. Repeating it changes nothing: what is
marked is not live, and is not exported again.

Who calls it holds the lock of the state directory, from before the first look until the end.

What it can't do: move what the host's own cold store has (a SQLite file beside the spool), nor
publish what is staged: that is in the file, and said to be staged, and is never released.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from actors.model.books import parse_account
from actors.model.failures import slices_of
from actors.model.runs import Fate
from actors.model.slices import InJournal, LentRun, Slice, ranges
from actors.ports.journal import ItemMark
from actors.spooler.moved_runs import moved_run
from actors.spooler.writes import Phase
from daemon.journal import chunk
from daemon.journal.ballast import Ballast
from daemon.journal.export_file import Counts, ExportWriter
from daemon.journal.files import Files
from daemon.journal.inspect import ChunkView, list_chunks
from daemon.journal.marks import MarkFiles, settle_marks, unpack_marks
from forebay.errors import BadRun
from forebay.run import Run, read_run

MARKS_AT_ONCE: Final = 4096


@dataclass(slots=True)
class Export:
    """What was exported, and what the source may be told of it."""

    counts: Counts
    marks: list[ItemMark] = field(default_factory=list)
    """Of all that is visible, and is in the file."""


def export(
    files: Files, path: Path, about: dict[str, Any], progress: Callable[[int], None]
) -> Export:
    """Writes all that is held. `progress` is told how many items so far."""
    views = list_chunks(files)
    held = sum(view.held_items for view in views)
    staged = sum(view.staged_items for view in views)
    writer = ExportWriter(path, about | {"held": held, "staged": staged})
    export = Export(writer.counts)
    try:
        for phase in (Phase.PUBLISHED, Phase.OPEN):
            for view in views:
                _export_chunk(files, view, phase, writer, export)
                progress(writer.counts.items + writer.counts.staged_items)
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return export


def release(files: Files, export: Export) -> None:
    """Marks what was exported as moved out. Durable when it returns."""
    marks = MarkFiles(files, Ballast(files, 0))
    for start in range(0, len(export.marks), MARKS_AT_ONCE):
        marks.append(export.marks[start : start + MARKS_AT_ONCE])
    marks.close()


def _export_chunk(
    files: Files, view: ChunkView, phase: Phase, writer: ExportWriter, export: Export
) -> None:
    rows = [row for row in view.rows_held() if view.phase(row) is phase]
    if not rows:
        return
    data = b""
    with suppress(FileNotFoundError):
        data = files.read_file(chunk.marks_name(view.number))
    portions = settle_marks(view.index, unpack_marks(view.number, data)[0]).portions
    for row, run in _runs(files, view, rows):
        done = view.done.get(row, 0)
        left = view.index.counts[row] - done.bit_count()
        if run is None:
            export.counts.unreadable_items += left
            continue
        lent = LentRun(run.head, bytes(run.data), InJournal(0, 0))
        slices = slices_of(lent, done, portions.get(row, ()))
        try:
            made = [(slice_, _bytes_of(slice_, phase)) for slice_ in slices]
        except BadRun:
            export.counts.unreadable_items += left
            continue
        is_staged = phase is Phase.OPEN
        for slice_, moved in made:
            about = _about(slice_, view, row, is_staged=is_staged)
            writer.add(moved, slice_.items, about, is_staged=is_staged)
            if not is_staged:
                export.marks += _marks(view, row, slice_)


def _bytes_of(slice_: Slice, phase: Phase) -> bytes:
    """What is staged is as it was staged: it belongs to its write."""
    return slice_.run.data if phase is Phase.OPEN else moved_run(slice_)


def _about(slice_: Slice, view: ChunkView, row: int, *, is_staged: bool) -> dict[str, Any]:
    """What a run has no place for."""
    about: dict[str, Any] = {}
    if slice_.errors:
        about["errors"] = [error._asdict() for error in slice_.errors]
    if is_staged:
        account = parse_account(view.index.accounts[view.index.account_numbers[row]])
        about |= {"write": account.write.hex(), "stage": account.stage.hex()}
    return about


def _marks(view: ChunkView, row: int, slice_: Slice) -> list[ItemMark]:
    offset, run_id = view.index.offsets[row], view.index.run_id(row)
    return [
        ItemMark(view.number, offset, run_id, first, last, Fate.MOVED)
        for first, last in ranges(slice_.bits)
    ]


def _runs(files: Files, view: ChunkView, rows: list[int]) -> Iterator[tuple[int, Run | None]]:
    """None where it cannot be read."""
    fd = files.open_read(view.name)
    try:
        for row in rows:
            offset = view.index.offsets[row]
            try:
                data, _ = chunk.read_block(files, fd, offset, view.number + offset)
                yield row, read_run(data)
            except BadRun:
                yield row, None
    finally:
        files.close(fd)
