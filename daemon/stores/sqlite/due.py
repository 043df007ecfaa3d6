"""The next rows of a queue in SQLite: the walk along the order of delivery.

Rows whose time has come, or whose lease has run out, join that order first. `scheduled_at` is a
time of the wall clock, but of the clock of leases in a row that is leased: each kind has an index,
and is compared with its own clock.

Where flows are paused, their rows are skipped within the index, without being read: about 5
million a second.
"""

import sqlite3
from collections.abc import Collection
from typing import Final

from actors.model.clock import JUMP_MS
from daemon.stores.cold.connection import Room
from daemon.stores.cold.statement import Now, Statement

MOVED_MAX: Final = 2000
"""At most this many rows that have come due are moved in one transaction; others wait for it."""


def pick(
    db: sqlite3.Connection, queue: str, except_flows: Collection[str], room: Room, now: Now
) -> list[int] | None:
    """As `Connection.pick`."""
    if not move_due(db, queue, now):
        return None
    picked: list[int] = []
    items, size, last_body = room.items_max, room.bytes_max, None
    is_first = not room.must_fit
    cursor = db.execute(*NEXT.sqlite((queue, sorted(except_flows), room.rows_max), now))
    for n, body_id, count, body_size in cursor:
        # Rows that share a body are neighbours in this order.
        cost = 1 if body_id == last_body else 1 + body_size
        if not is_first and ((1 if room.cuts else count) > items or cost > size):
            break
        picked.append(n)
        items -= count
        size -= cost
        last_body, is_first = body_id, False
    # The index must not be walked while rows leave it.
    cursor.close()
    return picked


def move_due(db: sqlite3.Connection, queue: str, now: Now) -> bool:
    """False: there are more."""
    moved: int = db.execute(*MOVE_DUE.sqlite((queue, MOVED_MAX), now)).rowcount
    return moved < MOVED_MAX


def put_off_anew(db: sqlite3.Connection, now: int) -> None:
    """Retries that failed at a time that is still to come wait for their pause from now on
    (actors/model/clock.py, `retry_due_ms`)."""
    db.execute(PUT_OFF_ANEW, {"now": now, "jump": JUMP_MS})


_QUEUED: Final = "WHERE state = 'COLD_QUEUED' AND is_due"
_LATER: Final = f"FROM runs INDEXED BY runs_later {_QUEUED} = 0 AND lock_uuid IS NULL"
_LEASED: Final = f"FROM runs INDEXED BY runs_leased {_QUEUED} = 0 AND lock_uuid IS NOT NULL"
NEXT: Final = Statement(f"""SELECT n, body_id, count, size FROM runs INDEXED BY runs_due
    {_QUEUED} = 1 AND queue = $1 AND flow <> ALL ($2)
    ORDER BY priority, scheduled_at_initially, body_id, first_item LIMIT $3""")
MOVE_DUE: Final = Statement(f"""UPDATE runs SET is_due = 1 WHERE n IN (
    SELECT n FROM (SELECT n {_LATER} AND queue = $1 AND scheduled_at <= :now
        ORDER BY scheduled_at LIMIT $2)
    UNION ALL
    SELECT n FROM (SELECT n {_LEASED} AND queue = $1 AND scheduled_at <= :lease_now
        ORDER BY scheduled_at LIMIT $2)
    LIMIT $2
)""")
_FAILED_AT: Final = """CASE WHEN json_valid(error_history)
    THEN json_extract(error_history, '$[#-1][1]') END"""
PUT_OFF_ANEW: Final = f"""WITH retries AS (
        SELECT n AS number, :now + due_ms - {_FAILED_AT} AS anew FROM runs
        WHERE state IN ('STORED', 'COLD_QUEUED') AND is_due = 0 AND lock_uuid IS NULL
        AND attempt > 0 AND {_FAILED_AT} > :now + :jump AND {_FAILED_AT} <= due_ms
    )
    UPDATE runs SET scheduled_at = anew, due_ms = anew FROM retries WHERE n = number"""
