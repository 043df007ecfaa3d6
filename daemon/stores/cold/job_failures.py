"""The items of a trigger's dead job: each has failed once more, and remembers why.

A row that may be retried stays claimed until the claim is given back. A row that has failed too
often becomes dead letters, one per item, on the body it had, in the same transaction. A row that
cannot be read is set aside.

It cannot tell the item that made the job fail from those beside it.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from actors.model.moves import ColdMove, guard
from actors.model.slices import ItemError, error_rows, indexes, remember
from actors.ports.tiers import NewRow
from actors.ports.trigger_jobs import IDS_TOLD_MAX, FailedJob, JobEnd
from daemon.stores.cold.books import Books, Place
from daemon.stores.cold.claims import BadClaimed, set_aside
from daemon.stores.cold.connection import Connection
from daemon.stores.cold.rows import BadRow, Unpacked, item_id_of, own_bits, read_errors
from daemon.stores.cold.statement import Statement
from forebay.ids import new_run_id
from forebay.run import RunHead

ROWS_AT_ONCE: Final = 100
"""How many rows' bodies are in memory at once."""


class _Row(NamedTuple):
    """A row of the claim, as the job's death found it."""

    n: int
    body_id: bytes
    bits: bytes
    items: int
    size: int
    flow: str
    action: str
    write: bytes | None
    attempt: int
    due_ms: int
    errors: bytes

    def bad(self, error: BadRow) -> BadClaimed:
        return BadClaimed(self.n, self.body_id, self.items, self.size, str(error))


class _Spent(NamedTuple):
    """A row whose items are given up, and what they remember."""

    row: _Row
    errors: tuple[ItemError, ...]

    def letters(self, head: RunHead, data: bytes) -> list[NewRow]:
        """One for each of its items; BadRow if they are not its body's."""
        row = self.row
        same = (row.attempt + 1, row.due_ms, self.errors)
        return [
            NewRow(new_run_id(), head, data, 1 << index, *same, is_dead=True)
            for index in indexes(own_bits(row.bits, head))
        ]


class _Sorted(NamedTuple):
    again: Sequence[tuple[int, str]]
    """Rows that are retried, each with what it remembers from now on."""
    spent: Sequence[_Spent]
    bad: Sequence[BadClaimed]


def _sort(rows: Iterable[_Row], failed: FailedJob) -> _Sorted:
    again: list[tuple[int, str]] = []
    spent: list[_Spent] = []
    bad: list[BadClaimed] = []
    # Most rows have had the same life so far.
    known: dict[tuple[int, bytes], tuple[tuple[ItemError, ...], str]] = {}
    for row in rows:
        attempt = row.attempt + 1
        try:
            if (attempt, row.errors) not in known:
                errors = remember(read_errors(row.errors), failed.error_of(attempt))
                known[attempt, row.errors] = errors, json.dumps(error_rows(errors))
        except BadRow as error:
            bad.append(row.bad(error))
            continue
        errors, text = known[attempt, row.errors]
        if attempt > failed.retries_max:
            spent.append(_Spent(row, errors))
        else:
            again.append((row.n, text))
    return _Sorted(again, spent, bad)


class _Letters:
    """What is told of items that were given up."""

    def __init__(self) -> None:
        self.dead = 0
        self._ids: list[str] = []

    def add(self, letters: Sequence[NewRow], runs: Unpacked) -> None:
        self.dead += len(letters)
        for new in letters[: IDS_TOLD_MAX - len(self._ids)]:
            self._ids.append(item_id_of(new.head, new.data, new.bits.bit_length() - 1, runs))

    def end(self, failed: FailedJob) -> JobEnd:
        error = failed.error_of(0).text if self.dead else ""
        return JobEnd(failed.job, error, self.dead, tuple(self._ids))


async def fail_claimed(con: Connection, consumer: int, failed: FailedJob) -> JobEnd:
    """The consumer's row is locked."""
    found = await con.fetch(LOCK_CLAIMED, consumer)
    again, spent, bad = _sort((_Row(*row) for row in found), failed)
    await con.each(FAIL_ROW, again)
    books, told, unreadable = Books(), _Letters(), list(bad)
    # All of them first: two steps that locked them bit by bit could wait for each other.
    await con.rows.lock_bodies({each.row.body_id for each in spent})
    for at in range(0, len(spent), ROWS_AT_ONCE):
        unreadable += await _give_up(con, spent[at : at + ROWS_AT_ONCE], failed, books, told)
    if unreadable:
        await set_aside(con, failed.job.queue, unreadable)
    await con.record(books)
    return told.end(failed)


async def _give_up(
    con: Connection, spent: Sequence[_Spent], failed: FailedJob, books: Books, told: _Letters
) -> list[BadClaimed]:
    """Returns those that cannot be read."""
    bodies = await con.rows.read_bodies({each.row.body_id for each in spent})
    runs = Unpacked()
    letters: list[NewRow] = []
    gone: list[_Row] = []
    bad: list[BadClaimed] = []
    for each in spent:
        row = each.row
        try:
            new = each.letters(*bodies.get(row.body_id))
        except BadRow as error:
            bad.append(row.bad(error))
            continue
        letters += new
        gone.append(row)
        place = Place(failed.job.queue, row.flow, row.action)
        books.leave(place, row.items, rows_gone=1)
        books.enter(place, row.items, row.write, is_dead=True)
        told.add(new, runs)
    await con.rows.insert(letters, runs, known_bodies={row.body_id for row in gone})
    await con.rows.delete([row.n for row in gone])
    return bad


def letter_error(history: Any) -> ItemError | None:
    """The last error of a dead job's letter; None if it cannot be read."""
    try:
        errors = read_errors(history)
    except BadRow:
        return None
    return errors[-1] if errors else None


_FAILED: Final = guard(ColdMove.FAIL_JOB, ColdMove.UNCLAIM)
LOCK_CLAIMED: Final = Statement(f"""SELECT n, body_id, bits, count, size, flow, action, write_id,
    attempt, due_ms, :raw(error_history)
    FROM runs INDEXED BY runs_claimed WHERE {_FAILED} AND consumer = $1
    ORDER BY place FOR UPDATE""")
FAIL_ROW: Final = Statement("""UPDATE runs SET attempt = attempt + 1, error_history = $2
    WHERE n = $1""")
