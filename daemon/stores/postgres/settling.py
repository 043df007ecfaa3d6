"""Outcomes of acquired rows in PostgreSQL: many in a handful of statements.

What an outcome does is daemon/stores/sqlite/settling.py's. The rows are locked and read, everything
is worked out, and then written by kind: history, rows that shrink, rows that go, rows that come,
bodies, books.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from actors.model.finished import Keeps, by_result, keeps_delivered
from actors.model.keys import KeyRules
from actors.model.moves import ColdMove, guard
from actors.model.slices import lowest_bit
from actors.ports.tiers import NewRow, RowOutcome
from daemon.stores.cold.books import Place
from daemon.stores.cold.keyed import Released, window_of
from daemon.stores.cold.rows import HAS_FAILED, Unpacked, pack_bits, place_of, unpack_bits
from daemon.stores.cold.text import from_text
from daemon.stores.postgres import keys as table
from daemon.stores.postgres.books import SharedBooks
from daemon.stores.postgres.connection import Connection
from daemon.stores.postgres.history import Ended, note_ended
from daemon.stores.postgres.rows import drop_bodies, insert_rows, lock_bodies
from daemon.stores.sqlite.settling import change_of, check_outcome


@dataclass(slots=True)
class _Row:
    """A leased row, as the outcomes so far have left it."""

    n: int
    lock: bytes
    body_id: bytes
    bits: int
    place: Place
    write: bytes | None
    size: int
    has_failed: bool
    has_keys: bool
    changed_ms: int


@dataclass(slots=True)
class _Step:
    """What the outcomes of one transaction come to."""

    rows: dict[bytes, _Row]
    keeps: Keeps
    rules: KeyRules
    books: SharedBooks = field(default_factory=SharedBooks)
    runs: Unpacked = field(default_factory=Unpacked)
    ended: list[Ended] = field(default_factory=list)
    shrunk: dict[int, int] = field(default_factory=dict)
    gone: list[_Row] = field(default_factory=list)
    moved: list[NewRow] = field(default_factory=list)
    keyed: list[Released] = field(default_factory=list)
    """What was delivered and may have keys."""
    followed: list[NewRow] = field(default_factory=list)
    """What has moved to another body, and may have keys."""

    def take(self, outcome: RowOutcome) -> bool:
        row = self.rows.get(outcome.row)
        if row is None or row.lock != outcome.lock:
            return False
        change = change_of(row.bits, outcome)
        if change is None:
            return False
        items = row.bits.bit_count() - change.rest.bit_count()
        if not items:
            return True
        keep = self.keeps(row.place.queue)
        if change.delivered and keeps_delivered(keep, row.has_failed):
            for bits, result in by_result(change.delivered, outcome.results):
                said = (keep, outcome.holder, result)
                self.ended.append(Ended(row.n, row.body_id, bits, row.size, "delivered", *said))
        if change.delivered and row.has_keys:
            window = window_of(self.rules(row.place.queue))
            self.keyed.append(Released(row.body_id, change.delivered, window))
        if change.rest:
            self.shrunk[row.n] = row.bits = change.rest
        else:
            self.shrunk.pop(row.n, None)
            self.gone.append(row)
            del self.rows[outcome.row]
        self.books.leave(row.place, items, rows_gone=int(not change.rest))
        self.books.deliver(row.place.queue, change.delivered.bit_count(), row.write)
        for new in change.moved:
            self._move(replace(new, changed_ms=row.changed_ms), row.place.queue)
            if row.has_keys and new.head.run_id != row.body_id:
                self.followed.append(new)
        return True

    def _move(self, new: NewRow, queue: str) -> None:
        if new.head.queue != queue:
            raise ValueError(f"an item of {queue} moves to {new.head.queue}")
        if new.row in self.rows:
            raise ValueError(f"there is a row {new.row.hex()} already")
        self.moved.append(new)
        self.books.enter(
            place_of(new.head), new.bits.bit_count(), self.runs.write(new.head), is_dead=new.is_dead
        )


async def settle(
    con: Connection,
    outcomes: Sequence[RowOutcome],
    daemon: bytes,
    keeps: Keeps,
    rules: KeyRules,
    now_ms: int | None,
) -> list[bool]:
    """One answer for each outcome; ValueError if an outcome does not add up."""
    for outcome in outcomes:
        check_outcome(outcome)
    rows = await _lock(con, {outcome.row for outcome in outcomes})
    known_bodies = {row.body_id for row in rows.values()}
    step = _Step(rows, keeps, rules)
    answers = [step.take(outcome) for outcome in outcomes]
    if step.ended or step.moved:
        await lock_bodies(con, known_bodies)
    await note_ended(con, step.ended, now_ms)
    if step.shrunk:
        await con.execute(
            SHRINK,
            list(step.shrunk),
            [pack_bits(bits) for bits in step.shrunk.values()],
            [bits.bit_count() for bits in step.shrunk.values()],
            [lowest_bit(bits) for bits in step.shrunk.values()],
        )
    if step.gone:
        # Before their items are stored anew: a row may be followed by one of the same id.
        await con.execute("DELETE FROM runs WHERE n = ANY ($1)", [row.n for row in step.gone])
    if step.moved:
        await _insert_moved(con, step, daemon, now_ms, known_bodies)
    await table.let_go(con, step.keyed, now_ms)
    for new in step.followed:
        await table.follow(con, step.runs.run(new.head, new.data), new.bits)
    await drop_bodies(con, (row.body_id for row in step.gone))
    await step.books.record(con, daemon)
    return answers


async def _lock(con: Connection, ids: Iterable[bytes]) -> dict[bytes, _Row]:
    found = await con.fetch(SELECT_LEASED, sorted(ids))
    return {
        id_: _Row(
            n,
            lock,
            body_id,
            unpack_bits(packed),
            Place(queue, from_text(flow), from_text(action)),
            write,
            size,
            has_failed,
            has_keys,
            changed_ms or 0,
        )
        for (
            id_,
            n,
            lock,
            body_id,
            packed,
            queue,
            flow,
            action,
            write,
            size,
            has_failed,
            has_keys,
            changed_ms,
        ) in found
    }


async def _insert_moved(
    con: Connection, step: _Step, daemon: bytes, now_ms: int | None, known_bodies: set[bytes]
) -> None:
    # The rows' own bodies are there: they are dropped later, if nobody needs them then.
    inserted = await insert_rows(
        con, step.moved, daemon, now_ms, step.runs, is_stored=False, known_bodies=known_bodies
    )
    if len(inserted) != len(step.moved):
        raise ValueError("an outcome's items move to a row that is there already")


_OUTCOME: Final = guard(ColdMove.DELIVER, ColdMove.RETRY, ColdMove.DIE)
SELECT_LEASED: Final = f"""SELECT id, n, lock_uuid, body_id, bits, queue, flow, action, write_id,
    size, {HAS_FAILED}, {table.HAS_KEYS}, changed_at FROM runs
    WHERE id = ANY ($1) AND lock_uuid IS NOT NULL AND {_OUTCOME}
    ORDER BY id FOR UPDATE"""
SHRINK: Final = """UPDATE runs SET bits = rest.bits, count = rest.count, first_item = rest.first
    FROM unnest($1::bigint[], $2::bytea[], $3::integer[], $4::integer[])
        AS rest (n, bits, count, first)
    WHERE runs.n = rest.n"""
