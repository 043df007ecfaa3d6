"""Outcomes of acquired rows: what was delivered leaves, what failed becomes rows of its own.

The rows are locked and read, everything is worked out in plain code, and then written by kind:
history, rows that shrink, rows that go, rows that come, keys, bodies, books.

An outcome that is recorded twice counts once: items that are no longer in the row are ignored, and
rows that were moved already are not stored again, even if they have been settled since. An outcome
is refused if some of the items that it moves have left the row and some have not.

Delivered items go to the history, as far as their queue keeps it, and let go of their keys. Where
an outcome says nothing but that items were delivered, a store may have a shorter way
(`Connection.settle_delivered`).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from actors.model.finished import Keeps, by_result, keeps_delivered
from actors.model.keys import KeyRules
from actors.model.moves import ColdMove, guard
from actors.ports.tiers import NewRow, RowOutcome
from daemon.stores.cold.books import Books, Place
from daemon.stores.cold.connection import Connection
from daemon.stores.cold.history import Ended, note_ended
from daemon.stores.cold.keyed import Released, window_of
from daemon.stores.cold.keys import follow
from daemon.stores.cold.rows import HAS_FAILED, Unpacked, place_of, unpack_bits
from daemon.stores.cold.statement import Statement


class _Change(NamedTuple):
    """What an outcome does to a row."""

    delivered: int
    moved: tuple[NewRow, ...]
    rest: int


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
class _Plan:
    """What the outcomes of one step come to."""

    rows: dict[bytes, _Row]
    keeps: Keeps
    rules: KeyRules
    books: Books = field(default_factory=Books)
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
        change = _change_of(row.bits, outcome)
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
    con: Connection, outcomes: Sequence[RowOutcome], keeps: Keeps, rules: KeyRules
) -> list[bool]:
    """One answer for each outcome; ValueError if an outcome does not add up."""
    quick = await con.settle_delivered(outcomes, keeps)
    if quick is not None:
        return quick
    for outcome in outcomes:
        _check(outcome)
    rows = await _lock(con, {outcome.row for outcome in outcomes})
    known_bodies = {row.body_id for row in rows.values()}
    plan = _Plan(rows, keeps, rules)
    answers = [plan.take(outcome) for outcome in outcomes]
    if plan.ended or plan.moved:
        await con.rows.lock_bodies(known_bodies)
    await note_ended(con, plan.ended)
    await con.rows.shrink(plan.shrunk)
    # Before their items are stored anew: a row may be followed by one of the same id.
    await con.rows.delete([row.n for row in plan.gone])
    await _insert_moved(con, plan, known_bodies)
    await con.keys.let_go(plan.keyed)
    await follow(con, [(plan.runs.run(new.head, new.data), new.bits) for new in plan.followed])
    await con.rows.drop_bodies(row.body_id for row in plan.gone)
    await con.record(plan.books)
    return answers


def _change_of(bits: int, outcome: RowOutcome) -> _Change | None:
    """What is to be done with a row that has these items; None: the outcome is out of date."""
    left = outcome.moved_bits & bits
    if left and left != outcome.moved_bits:
        return None
    moved = outcome.moved if left else ()
    delivered = outcome.delivered & bits & ~outcome.moved_bits
    return _Change(delivered, moved, bits & ~delivered & ~left)


def _check(outcome: RowOutcome) -> None:
    """ValueError if `moved` does not stand for as many items as it should."""
    items = sum(new.bits.bit_count() for new in outcome.moved)
    if items != outcome.moved_bits.bit_count():
        raise ValueError(f"{outcome.moved_bits.bit_count()} items are moved, as rows of {items}")


async def _lock(con: Connection, ids: Iterable[bytes]) -> dict[bytes, _Row]:
    rows = {}
    for id_, n, lock, body_id, packed, queue, flow, action, *more in await con.fetch(
        SELECT_LEASED, sorted(ids)
    ):
        write, size, has_failed, has_keys, changed_ms = more
        place = Place(queue, flow, action)
        said = (write, size, has_failed, has_keys, changed_ms or 0)
        rows[id_] = _Row(n, lock, body_id, unpack_bits(packed), place, *said)
    return rows


async def _insert_moved(con: Connection, plan: _Plan, known_bodies: Collection[bytes]) -> None:
    # The rows' own bodies are there: they are dropped later, if nobody needs them then.
    inserted = await con.rows.insert(plan.moved, plan.runs, known_bodies=known_bodies)
    if len(inserted) != len(plan.moved):
        raise ValueError("an outcome's items move to a row that is there already")


_OUTCOME: Final = guard(ColdMove.DELIVER, ColdMove.RETRY, ColdMove.DIE)
SELECT_LEASED: Final = Statement(f"""SELECT id, n, lock_uuid, body_id, bits, queue, flow, action,
    write_id, size, {HAS_FAILED}, :has_keys, changed_at FROM runs
    WHERE id = ANY ($1) AND lock_uuid IS NOT NULL AND {_OUTCOME}
    ORDER BY id FOR UPDATE""")
