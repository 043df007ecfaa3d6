"""The daemons of the fleet in PostgreSQL: one row each, which the daemon itself writes.

Times are the server's. A row is updated every few seconds, by one daemon alone, and no index has a
column that changes: such an update stays within its page.

Reports are JSON, so that daemons of different versions read each other's: members that are not
known are ignored, and missing ones have their defaults.

What it cannot do: tell a daemon that is gone from one that does not reach this server.
"""

import json
import socket
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Final, get_args

from actors.ports.fleet import (
    Member,
    MemberList,
    MemberNote,
    MemberReport,
    MemberState,
    SharedCounts,
)
from daemon.stores.postgres.connection import Database
from daemon.stores.postgres.rows import NOW


class PostgresMembers:
    """Made by PostgresCold, whose connections it shares."""

    def __init__(self, db: Database, daemon: bytes, now_ms: Callable[[], int | None]) -> None:
        self._db = db
        self._daemon = daemon
        self._now_ms = now_ms
        self._host = socket.gethostname()
        self._version = version("forebayd")

    async def counts(self) -> SharedCounts:
        row = await self._db.read(lambda con: con.fetchrow(SELECT_COUNTS, self._daemon))
        return SharedCounts(*row)

    async def note(self, note: MemberNote) -> None:
        values = (
            self._now_ms(),
            self._daemon,
            self._host,
            self._version,
            note.up_ms,
            note.hand_over_age_ms,
            json.dumps(asdict(note.report)),
            note.is_first,
        )
        await self._db.write(lambda con: con.execute(NOTE, *values), is_durable=False)

    async def all(self) -> MemberList:
        rows = await self._db.read(lambda con: con.fetch(SELECT_MEMBERS, self._now_ms()))
        return MemberList(rows[0]["now_ms"], [_member(row) for row in rows if row["id"]])

    async def forget(self, daemon: bytes, unseen_ms: int) -> bool:
        values = (self._now_ms(), daemon, unseen_ms)
        done = await self._db.write(lambda con: con.execute(FORGET, *values), is_durable=False)
        return done == "DELETE 1"

    async def sweep(self, unseen_ms: int) -> int:
        values = (self._now_ms(), unseen_ms)
        gone = await self._db.write(lambda con: con.fetch(SWEEP, *values), is_durable=False)
        return len(gone)


def _member(row: Any) -> Member:
    _, daemon, host, version_, started_ms, seen_ms, last_ms, report = row
    return Member(daemon, host, version_, started_ms, seen_ms, last_ms, read_report(report))


def read_report(text: str) -> MemberReport:
    found, usual = json.loads(text), MemberReport()
    state = found.get("state")
    return MemberReport(
        state if state in get_args(MemberState) else usual.state,
        found.get("backlog", usual.backlog),
        found.get("accepted_per_s", usual.accepted_per_s),
        found.get("delivered_per_s", usual.delivered_per_s),
        tuple(found.get("unreachable", usual.unreachable)),
    )


SELECT_COUNTS: Final = """SELECT coalesce(sum(accepted), 0)::bigint,
    coalesce(sum(delivered), 0)::bigint FROM totals WHERE daemon = $1"""
NOTE: Final = f"""INSERT INTO daemons AS known
        (id, host, version, started_ms, seen_ms, last_hand_over_ms, report)
    SELECT $2, $3, $4, now_ms - $5::bigint, now_ms, coalesce(now_ms - $6::bigint, 0), $7::jsonb
    FROM (SELECT {NOW} AS now_ms) AS clock
    ON CONFLICT (id) DO UPDATE SET host = excluded.host, version = excluded.version,
        started_ms = CASE WHEN $8 THEN excluded.started_ms ELSE known.started_ms END,
        seen_ms = excluded.seen_ms,
        last_hand_over_ms = CASE WHEN $6 IS NULL THEN known.last_hand_over_ms
            ELSE excluded.last_hand_over_ms END,
        report = excluded.report"""
# The time is of the same statement: a pause between two would make every row look old.
SELECT_MEMBERS: Final = f"""SELECT now_ms, id, host, version, started_ms, seen_ms,
        last_hand_over_ms, report
    FROM (SELECT {NOW} AS now_ms) AS clock LEFT JOIN daemons ON true ORDER BY id"""
FORGET: Final = f"DELETE FROM daemons WHERE id = $2 AND seen_ms < {NOW} - $3::bigint"
SWEEP: Final = f"""DELETE FROM daemons
    WHERE report ->> 'state' = 'stopped' AND (report ->> 'backlog')::bigint = 0
        AND seen_ms < {NOW} - $2::bigint
    RETURNING id"""
