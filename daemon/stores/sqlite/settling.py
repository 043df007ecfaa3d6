"""Outcomes of acquired rows: what was delivered leaves, what failed becomes rows of its own.

An outcome that is recorded twice counts once: items that are no longer in the row are ignored,
and rows that were moved already are not stored again, even if they have been settled since. An
outcome that is about items of which some have left the row and some have not is refused.

Delivered items go to history, as far as their queue keeps it, and let go of their keys. Where
nothing but that they were
delivered is to be said, daemon/stores/sqlite/delivered.py says it for many rows at once.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from actors.model.finished import Keeps, by_result, keeps_delivered
from actors.model.keys import KeyRules, no_keys, until
from actors.model.moves import ColdMove, guard
from actors.model.slices import lowest_bit
from actors.ports.tiers import NewRow, RowOutcome
from daemon.stores.cold.books import Place
from daemon.stores.cold.history import Cutter
from daemon.stores.cold.rows import (
    FAILED,
    HAS_FAILED,
    QUEUED,
    Unpacked,
    pack_bits,
    place_of,
    unpack_bits,
)
from daemon.stores.sqlite.books import Books
from daemon.stores.sqlite.delivered import SHRINK, settle_delivered
from daemon.stores.sqlite.history import Ended, note_ended
from daemon.stores.sqlite.keys import HAS_KEYS, follow, let_go
from daemon.stores.sqlite.rows import delete_row, drop_body, insert_row


class Change(NamedTuple):
    """What an outcome does to a row."""

    delivered: int
    moved: tuple[NewRow, ...]
    rest: int


class _Step:
    """What the outcomes of one transaction have in common."""

    def __init__(self, now: int, keeps: Keeps, rules: KeyRules) -> None:
        self.now = now
        self.keeps = keeps
        self.rules = rules
        self.books = Books()
        self.runs = Unpacked()
        self.cutter = Cutter()


def settle(
    db: sqlite3.Connection,
    outcomes: Sequence[RowOutcome],
    now: int,
    keeps: Keeps,
    rules: KeyRules = no_keys,
) -> list[bool]:
    """One answer for each outcome; ValueError if an outcome does not add up."""
    quick = settle_delivered(db, outcomes, keeps)
    if quick is not None:
        return quick
    step = _Step(now, keeps, rules)
    answers = [_settle_row(db, outcome, step) for outcome in outcomes]
    step.books.write(db)
    return answers


def change_of(bits: int, outcome: RowOutcome) -> Change | None:
    """What is to be done with a row that has these items; None: the outcome is out of date."""
    left = outcome.moved_bits & bits
    if left and left != outcome.moved_bits:
        return None
    moved = outcome.moved if left else ()
    delivered = outcome.delivered & bits & ~outcome.moved_bits
    return Change(delivered, moved, bits & ~delivered & ~left)


def check_outcome(outcome: RowOutcome) -> None:
    """ValueError if `moved` does not stand for as many items as it should."""
    items = sum(new.bits.bit_count() for new in outcome.moved)
    if items != outcome.moved_bits.bit_count():
        raise ValueError(f"{outcome.moved_bits.bit_count()} items are moved, as rows of {items}")


def _settle_row(db: sqlite3.Connection, outcome: RowOutcome, step: _Step) -> bool:
    check_outcome(outcome)
    row = db.execute(SELECT_LEASED, (outcome.row, outcome.lock)).fetchone()
    if row is None:
        return False
    n, body_id, packed, count, queue, flow, action, write, size, *more = row
    has_failed, has_keys, changed_ms = more
    change = change_of(unpack_bits(packed), outcome)
    if change is None:
        return False
    items = count - change.rest.bit_count()
    if not items:
        return True
    keep = step.keeps(queue)
    if change.delivered and keeps_delivered(keep, has_failed):
        for bits, result in by_result(change.delivered, outcome.results):
            ended = Ended(n, body_id, bits, size, "delivered", outcome.holder, result)
            note_ended(db, ended, keep, step.now, step.cutter)
    if change.delivered and has_keys:
        let_go(db, body_id, change.delivered, until(step.rules(queue), step.now))
    if change.rest:
        bits = change.rest
        db.execute(SHRINK, (pack_bits(bits), bits.bit_count(), lowest_bit(bits), n))
    else:
        # Before its items are stored anew: a row may be followed by one of the same id.
        delete_row(db, n)
    step.books.leave(Place(queue, flow, action), items, rows_gone=int(not change.rest))
    step.books.deliver(queue, change.delivered.bit_count(), write)
    for new in change.moved:
        if new.head.queue != queue:
            raise ValueError(f"an item of {queue} moves to {new.head.queue}")
        _insert_moved(db, replace(new, changed_ms=changed_ms or 0), step)
        if has_keys and new.head.run_id != body_id:
            follow(db, step.runs.run(new.head, new.data), new.bits)
    if not change.rest:
        drop_body(db, body_id)
    return True


def _insert_moved(db: sqlite3.Connection, new: NewRow, step: _Step) -> None:
    if not insert_row(db, new, FAILED if new.is_dead else QUEUED, step.now, step.runs):
        raise ValueError(f"there is a row {new.row.hex()} already")
    place, write = place_of(new.head), step.runs.write(new.head)
    step.books.enter(place, new.bits.bit_count(), write, is_dead=new.is_dead)


_OUTCOME: Final = guard(ColdMove.DELIVER, ColdMove.RETRY, ColdMove.DIE)
SELECT_LEASED: Final = f"""SELECT n, body_id, bits, count, queue, flow, action, write_id, size,
    {HAS_FAILED}, {HAS_KEYS}, changed_at FROM runs
    WHERE id = ? AND lock_uuid = ? AND {_OUTCOME}"""
