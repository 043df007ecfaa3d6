"""Outcomes of acquired rows: what was delivered leaves, what failed becomes rows of its own.

An outcome that is recorded twice counts once: items that are no longer in the row are ignored,
and rows that were moved already are not stored again, even if they have been settled since. An
outcome that is about items of which some have left the row and some have not is refused.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final, NamedTuple

from actors.slices import lowest_bit
from actors.tiers import NewRow, RowOutcome
from daemon.cold.books import Books, Place
from daemon.cold.rows import (
    FAILED,
    QUEUED,
    Unpacked,
    delete_row,
    drop_body,
    insert_row,
    pack_bits,
    place_of,
    unpack_bits,
)


class Change(NamedTuple):
    """What an outcome does to a row."""

    delivered: int
    moved: tuple[NewRow, ...]
    rest: int


def settle(db: sqlite3.Connection, outcomes: Sequence[RowOutcome], now: int) -> list[bool]:
    """One answer for each outcome; ValueError if an outcome does not add up."""
    books = Books()
    runs = Unpacked()
    answers = [_settle_row(db, outcome, now, books, runs) for outcome in outcomes]
    books.write(db)
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


def _settle_row(
    db: sqlite3.Connection, outcome: RowOutcome, now: int, books: Books, runs: Unpacked
) -> bool:
    check_outcome(outcome)
    row = db.execute(SELECT_LEASED, (outcome.row, outcome.lock)).fetchone()
    if row is None:
        return False
    n, body_id, packed, count, queue, flow, action, write = row
    change = change_of(unpack_bits(packed), outcome)
    if change is None:
        return False
    items = count - change.rest.bit_count()
    if not items:
        return True
    if change.rest:
        bits = change.rest
        db.execute(SHRINK, (pack_bits(bits), bits.bit_count(), lowest_bit(bits), n))
    else:
        # Before its items are stored anew: a row may be followed by one of the same id.
        delete_row(db, n)
    books.leave(Place(queue, flow, action), items, rows_gone=int(not change.rest))
    books.deliver(queue, change.delivered.bit_count(), write)
    for new in change.moved:
        if new.head.queue != queue:
            raise ValueError(f"an item of {queue} moves to {new.head.queue}")
        if not insert_row(db, new, FAILED if new.is_dead else QUEUED, now, runs):
            raise ValueError(f"there is a row {new.row.hex()} already")
        place, moved_write = place_of(new.head), runs.write(new.head)
        books.enter(place, new.bits.bit_count(), moved_write, is_dead=new.is_dead)
    if not change.rest:
        drop_body(db, body_id)
    return True


SELECT_LEASED: Final = """SELECT n, body_id, bits, count, queue, flow, action, write_id
    FROM runs
    WHERE id = ? AND lock_uuid = ? AND state = 'COLD_QUEUED'"""
SHRINK: Final = "UPDATE runs SET bits = ?, count = ?, first_item = ? WHERE n = ?"
