"""Leases on the rows of the cold tier: taking the next ones, keeping them, giving them back.

A row's lock stays until the row is acquired again or released: whoever held a lease that ran out
may still settle or renew it, as long as nobody else has taken the row.

Two clocks are at work (actors/model/clock.py). `scheduled_at` is a time of the wall clock, but of
the clock of leases in a row that is leased: each kind has an index, and is compared with its own
clock. The clock of leases means nothing to another life: `release_all` comes before anything else.

Where flows are paused, their rows are skipped within the index, without being read: about 5
million a second.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

import structlog

from actors.model.clock import JUMP_MS
from actors.model.moves import ColdMove, guard, set_state
from actors.model.slices import first_bits, lowest_bit
from actors.ports.tiers import ColdRow, Outlook, StoreCorrupt
from daemon.stores.cold.rows import BadRow, LeasedRow, pack_bits, place_of
from daemon.stores.cold.statement import Now, padded
from daemon.stores.sqlite import due
from daemon.stores.sqlite.books import Books, lose_row
from daemon.stores.sqlite.rows import read_bodies, read_body
from forebay.ids import new_run_id
from forebay.run import RunHead

log = structlog.get_logger()

ROWS_MAX: Final = 10_000
"""So many rows are acquired in one step, whatever the limits allow."""

_Bodies = dict[bytes, tuple[RunHead, bytes]]


class _Pick(NamedTuple):
    n: int
    body_id: bytes
    items: int
    size: int


class Wanted:
    """What is still wanted. Counted are items and bytes in memory: a body that rows share, once."""

    def __init__(self, items: int, size: int, *, cuts: bool = False) -> None:
        """`cuts`: a row with more items than are wanted is cut."""
        self.items = items
        self.cuts = cuts
        self._size = size
        self._bodies: set[bytes] = set()
        self._is_first = True

    def fits(self, pick: _Pick) -> bool:
        if self._is_first:
            return True
        enough = 1 if self.cuts else pick.items
        return enough <= self.items and self._cost(pick) <= self._size

    def take(self, pick: _Pick) -> None:
        self.items -= pick.items
        self._size -= self._cost(pick)
        self._bodies.add(pick.body_id)
        self._is_first = False

    def copy(self) -> "Wanted":
        copy = Wanted(self.items, self._size, cuts=self.cuts)
        copy._bodies = set(self._bodies)
        copy._is_first = self._is_first
        return copy

    def _cost(self, pick: _Pick) -> int:
        return 1 if pick.body_id in self._bodies else 1 + pick.size


def acquire(
    db: sqlite3.Connection,
    queue: str,
    lock: bytes,
    wanted: Wanted,
    lease_ms: int,
    except_flows: frozenset[str],
    now: Now,
) -> list[ColdRow]:
    """Leases the next rows. Those that cannot be read are set aside, and the next ones taken."""
    bodies: _Bodies = {}
    rows: list[ColdRow] = []
    while True:
        picks = _pick(db, queue, wanted, except_flows, now)
        found = _lease(db, picks, lock, now.lease + lease_ms)
        _read_bodies(db, picks, bodies)
        bad: list[tuple[_Pick, str]] = []
        for pick, row in zip(picks, found, strict=True):
            try:
                rows.append(_read(db, pick, row, bodies))
            except BadRow as error:
                bad.append((pick, str(error)))
            else:
                wanted.take(pick)
        if not bad:
            break
        _set_aside(db, queue, bad)
    if wanted.cuts and wanted.items < 0:
        rows[-1] = _cut(db, rows[-1], rows[-1].bits.bit_count() + wanted.items, now.wall)
    return rows


def _cut(db: sqlite3.Connection, row: ColdRow, items: int, now: int) -> ColdRow:
    """Keeps the first `items` of a leased row; the others become a free row on the same body."""
    kept = first_bits(row.bits, items)
    rest = row.bits & ~kept
    split = (new_run_id(), pack_bits(rest), rest.bit_count(), lowest_bit(rest), now)
    db.execute(SPLIT_OFF, (*split, row.row))
    db.execute(SHRINK, (pack_bits(kept), kept.bit_count(), row.row))
    books = Books()
    books.cut(place_of(row.head))
    books.write(db)
    return replace(row, bits=kept)


def put_off_anew(db: sqlite3.Connection, now: int) -> None:
    """Retries that failed at a time that is still to come wait for their pause from now on
    (actors/model/clock.py, `retry_due_ms`)."""
    db.execute(PUT_OFF_ANEW, {"now": now, "jump": JUMP_MS})


def renew(db: sqlite3.Connection, locks: Sequence[bytes], until: int) -> list[int]:
    return [db.execute(RENEW, (until, lock)).rowcount for lock in locks]


def release(db: sqlite3.Connection, lock: bytes, rows: Sequence[bytes], now: int) -> None:
    db.executemany(RELEASE, [(now, row, lock) for row in rows])


def release_all(db: sqlite3.Connection, now: int) -> int:
    return db.execute(RELEASE_ALL, (now,)).rowcount


def outlook(db: sqlite3.Connection, queue: str, now: Now, except_flows: frozenset[str]) -> Outlook:
    """In wall time: the end of a lease is told as it will be unless the wall clock is set."""
    flows = sorted(except_flows)

    def first(sql: str, *values: str | int) -> int | None:
        found = db.execute(sql, (*values, *flows)).fetchone()
        return None if found is None else int(found[0])

    has_due = (
        first(has_due_sql(len(flows)), queue)
        or first(came_due_sql(len(flows)), queue, now.wall)
        or first(ran_out_sql(len(flows)), queue, now.lease)
    )
    due_at = first(later_sql(len(flows)), queue, now.wall)
    ends_at = first(ends_sql(len(flows)), queue, now.lease)
    if ends_at is not None:
        ends_at += now.wall - now.lease
    coming = [at for at in (due_at, ends_at) if at is not None]
    return Outlook(has_due is not None, min(coming, default=None))


def _pick(
    db: sqlite3.Connection, queue: str, wanted: Wanted, except_flows: frozenset[str], now: Now
) -> list[_Pick]:
    """The next rows in order, as many as fit; the first that does not fit ends it."""
    trial = wanted.copy()
    picks: list[_Pick] = []
    cursor = db.execute(*due.NEXT.sqlite((queue, sorted(except_flows), ROWS_MAX), now))
    for pick in map(_Pick._make, cursor):
        if not trial.fits(pick):
            break
        trial.take(pick)
        picks.append(pick)
    # The index must not be walked while rows leave it.
    cursor.close()
    return picks


def _lease(
    db: sqlite3.Connection, picks: Sequence[_Pick], lock: bytes, until: int
) -> list[LeasedRow]:
    """All of them in one statement, also those that will turn out to be bad."""
    if not picks:
        return []
    marks = padded([pick.n for pick in picks])
    leased = db.execute(lease_sql(len(marks)), (lock, until, *marks)).fetchall()
    found = {n: LeasedRow(*row) for n, *row in leased}
    if len(found) < len(picks):
        # Setting a row aside would not take it out of the index: there is no going on.
        raise StoreCorrupt("the index of what is due and the rows disagree")
    return [found[pick.n] for pick in picks]


def _read_bodies(db: sqlite3.Connection, picks: Sequence[_Pick], bodies: _Bodies) -> None:
    """As many as can be read together; the others are missing, and then read one by one."""
    wanted = list({pick.body_id: None for pick in picks if pick.body_id not in bodies})
    if wanted:
        ids = padded(wanted)
        with suppress(BadRow):
            bodies.update(read_bodies(db, ids))


def _read(db: sqlite3.Connection, pick: _Pick, row: LeasedRow, bodies: _Bodies) -> ColdRow:
    if pick.body_id not in bodies:
        bodies[pick.body_id] = read_body(db, pick.body_id)
    return row.of(*bodies[pick.body_id])


def _set_aside(db: sqlite3.Connection, queue: str, bad: Sequence[tuple[_Pick, str]]) -> None:
    books = Books()
    for pick, error in bad:
        changed = db.execute(SET_ASIDE, (pick.n,)).rowcount
        if not changed:
            raise StoreCorrupt("the index of what is due and the rows disagree")
        lose_row(db, books, pick.n, pick.items)
        run_id = pick.body_id.hex()
        log.error("cold.row_corrupt", queue=queue, run=run_id, items=pick.items, error=error)
    books.write(db)


_DUE: Final = "FROM runs INDEXED BY runs_due WHERE state = 'COLD_QUEUED' AND is_due = 1"
_LATER: Final = """FROM runs INDEXED BY runs_later
    WHERE state = 'COLD_QUEUED' AND is_due = 0 AND lock_uuid IS NULL"""
_LEASED: Final = """FROM runs INDEXED BY runs_leased
    WHERE state = 'COLD_QUEUED' AND is_due = 0 AND lock_uuid IS NOT NULL"""


_FAILED_AT: Final = """CASE WHEN json_valid(error_history)
    THEN json_extract(error_history, '$[#-1][1]') END"""
PUT_OFF_ANEW: Final = f"""WITH retries AS (
        SELECT n AS number, :now + due_ms - {_FAILED_AT} AS anew FROM runs
        WHERE state IN ('STORED', 'COLD_QUEUED') AND is_due = 0 AND lock_uuid IS NULL
        AND attempt > 0 AND {_FAILED_AT} > :now + :jump AND {_FAILED_AT} <= due_ms
    )
    UPDATE runs SET scheduled_at = anew, due_ms = anew FROM retries WHERE n = number"""
SET_ASIDE: Final = f"""UPDATE runs SET {set_state(ColdMove.SET_ASIDE)}, is_due = 0,
    lock_uuid = NULL WHERE n = ? AND {guard(ColdMove.SET_ASIDE)}"""
_SAME: Final = """body_id, state, queue, flow, flow_type, action, key, priority,
    scheduled_at_initially, due_ms, size, attempt, created_at, origin, error_history, write_id,
    changed_at"""
SPLIT_OFF: Final = f"""INSERT INTO runs (
        id, bits, count, first_item, scheduled_at, is_due, {_SAME}
    ) SELECT ?, ?, ?, ?, ?, 1, {_SAME} FROM runs WHERE id = ?"""
"""A free row that is due, of items of a leased one."""
SHRINK: Final = "UPDATE runs SET bits = ?, count = ? WHERE id = ?"
RENEW: Final = f"""UPDATE runs INDEXED BY runs_lock SET is_due = 0, scheduled_at = ?
    WHERE lock_uuid = ? AND {guard(ColdMove.ACQUIRE)}"""
RELEASE: Final = f"""UPDATE runs SET is_due = 1, lock_uuid = NULL, scheduled_at = ?
    WHERE id = ? AND lock_uuid = ? AND {guard(ColdMove.RELEASE)}"""
RELEASE_ALL: Final = f"""UPDATE runs SET is_due = 1, lock_uuid = NULL, scheduled_at = ?
    WHERE lock_uuid IS NOT NULL AND {guard(ColdMove.RELEASE)}"""


def lease_sql(rows: int) -> str:
    # Bytes that are no UTF-8 would fail in the driver, and with them everything behind.
    return (
        "UPDATE runs SET is_due = 0, lock_uuid = ?, scheduled_at = ? "
        f"WHERE n IN ({', '.join('?' * rows)}) AND {guard(ColdMove.ACQUIRE)} AND is_due = 1 "
        "RETURNING n, id, bits, attempt, due_ms, CAST(error_history AS BLOB)"
    )


def has_due_sql(flows: int) -> str:
    return f"SELECT 1 {_DUE} AND queue = ?{_except(flows)} LIMIT 1"


def came_due_sql(flows: int) -> str:
    return _past_sql(_LATER, flows)


def ran_out_sql(flows: int) -> str:
    return _past_sql(_LEASED, flows)


def later_sql(flows: int) -> str:
    return _future_sql(_LATER, flows)


def ends_sql(flows: int) -> str:
    return _future_sql(_LEASED, flows)


def _past_sql(these: str, flows: int) -> str:
    return f"SELECT 1 {these} AND queue = ? AND scheduled_at <= ?{_except(flows)} LIMIT 1"


def _future_sql(these: str, flows: int) -> str:
    return (
        f"SELECT scheduled_at {these} AND queue = ? AND scheduled_at > ?{_except(flows)} "
        "ORDER BY scheduled_at LIMIT 1"
    )


def _except(flows: int) -> str:
    return f" AND flow NOT IN ({', '.join('?' * flows)})" if flows else ""
