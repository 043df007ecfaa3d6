"""Rows of which items were delivered and nothing else happened: settled in a handful of statements.

That is what most of settling is. Each step of a statement lets another thread have the interpreter,
and gets it back half a millisecond later while workers keep it busy: a statement for each row made
out of cold 0.6 of the rate from warm, one for each table 0.75. So rows are read as one value, and
what goes leaves in one step together with its part of the books
(daemon/stores/sqlite/settled_view.py). Whatever needs more than that is left to
daemon/stores/cold/settling.py.
"""

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from actors.model.finished import Keeps, keeps_delivered
from actors.model.moves import ColdMove, guard
from actors.model.slices import lowest_bit
from actors.ports.tiers import RowOutcome
from daemon.stores.cold.books import Place
from daemon.stores.cold.rows import HAS_FAILED, pack_bits, unpack_bits
from daemon.stores.cold.statement import padded
from daemon.stores.sqlite.keys import HAS_KEYS
from daemon.stores.sqlite.rows import SHRINK
from daemon.stores.sqlite.settled_view import SETTLE

ROWS_MAX: Final = 256


class _Share(NamedTuple):
    """What the books count apart."""

    place: Place
    write: bytes | None


class _Row(NamedTuple):
    n: int
    bits: int
    share: _Share


def settle_delivered(
    db: sqlite3.Connection, outcomes: Sequence[RowOutcome], keeps: Keeps
) -> list[bool] | None:
    """One answer for each outcome; None: this is not as simple as that, and nothing was changed."""
    if not 0 < len(outcomes) <= ROWS_MAX or any(
        outcome.moved or outcome.moved_bits for outcome in outcomes
    ):
        return None
    rows = _read(db, outcomes, keeps)
    if rows is None:
        return None
    answers = []
    delivered: Counter[_Share] = Counter()
    left = {row.n: row.bits for row in rows.values()}
    for outcome in outcomes:
        row = rows.get((outcome.row, outcome.lock))
        # Nothing left: an outcome before this one was the row's last.
        if row is None or not left[row.n]:
            answers.append(False)
            continue
        answers.append(True)
        before, left[row.n] = left[row.n], left[row.n] & ~outcome.delivered
        delivered[row.share] += before.bit_count() - left[row.n].bit_count()
    _write(db, [(row, left[row.n]) for row in rows.values()], delivered)
    return answers


def _read(
    db: sqlite3.Connection, outcomes: Sequence[RowOutcome], keeps: Keeps
) -> dict[tuple[bytes, bytes], _Row] | None:
    """By id and lock; None if one of them has more to it."""
    ids = padded([outcome.row for outcome in outcomes])
    found = json.loads(db.execute(read_sql(len(ids)), ids).fetchone()[0])
    rows = {}
    for id_, lock, n, bits, queue, flow, action, write, has_failed, has_more in found:
        if has_more or keeps_delivered(keeps(queue), has_failed):
            return None
        rows[bytes.fromhex(id_), bytes.fromhex(lock)] = _Row(
            n,
            unpack_bits(bytes.fromhex(bits)),
            _Share(Place(queue, flow, action), bytes.fromhex(write) if write is not None else None),
        )
    return rows


def _write(
    db: sqlite3.Connection, rows: Sequence[tuple[_Row, int]], delivered: Counter[_Share]
) -> None:
    gone: defaultdict[_Share, list[int]] = defaultdict(list)
    for row, bits in rows:
        if not bits:
            gone[row.share].append(row.n)
    db.executemany(
        SETTLE,
        [
            (json.dumps(gone[share]), len(gone[share]), *share.place, share.write, items)
            for share, items in delivered.items()
            if items
        ],
    )
    db.executemany(
        SHRINK,
        [
            (pack_bits(bits), bits.bit_count(), lowest_bit(bits), row.n)
            for row, bits in rows
            if bits and bits != row.bits
        ],
    )


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def read_sql(count: int) -> str:
    return f"""SELECT json_group_array(json_array(
            hex(id), hex(lock_uuid), n, hex(bits), queue, flow, action,
            CASE WHEN write_id IS NULL THEN NULL ELSE hex(write_id) END,
            {HAS_FAILED}, {HAS_MORE}
        )) FROM runs
        WHERE id IN ({_marks(count)}) AND lock_uuid IS NOT NULL AND {guard(ColdMove.DELIVER)}"""


HAS_MORE: Final = f"""({HAS_KEYS}
    OR EXISTS (SELECT 1 FROM trigger_jobs WHERE trigger_jobs.run_id = runs.write_id))"""
"""Whether something else hangs on a row, which ends with it. Then it is settled by itself."""
