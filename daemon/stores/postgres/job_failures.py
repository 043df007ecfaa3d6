"""What becomes of the items of a trigger's job that is dead, in PostgreSQL.

As in daemon/stores/sqlite/job_failures.py: rows that are tried again change in one statement, those
that are given up in a few for each `ROWS_AT_ONCE` of them.
"""

from collections.abc import Sequence
from typing import Final

from actors.model.moves import ColdMove, guard
from actors.ports.tiers import NewRow
from actors.ports.trigger_jobs import FailedJob, JobEnd
from daemon.stores.cold.books import Place
from daemon.stores.cold.claims import BadClaimed, set_aside
from daemon.stores.cold.rows import BadRow, Unpacked
from daemon.stores.cold.text import from_text
from daemon.stores.postgres.books import SharedBooks
from daemon.stores.postgres.connection import Connection
from daemon.stores.postgres.rows import insert_rows, lock_bodies, read_bodies
from daemon.stores.postgres.steps import PostgresConnection
from daemon.stores.sqlite.job_failures import FailedRow, Letters, Spent, bad_claimed, sort_failed

ROWS_AT_ONCE: Final = 100
"""So many bodies are in memory at once."""


async def fail_claimed(con: Connection, consumer: int, failed: FailedJob, daemon: bytes) -> JobEnd:
    found = await con.fetch(SELECT_FAILED, consumer)
    again, spent, bad = sort_failed((FailedRow(*row) for row in found), failed)
    await con.execute(FAIL_ROWS, [n for n, _ in again], [text for _, text in again])
    step = _Step(con, failed, daemon)
    # Of all of them at first: who locked them bit by bit could wait for one who waits for him.
    await lock_bodies(con, (each.row.body_id for each in spent))
    for at in range(0, len(spent), ROWS_AT_ONCE):
        await step.give_up(spent[at : at + ROWS_AT_ONCE])
    await step.books.record(con, daemon)
    if bad or step.bad:
        connection = PostgresConnection(con, daemon, failed.now_ms)
        await set_aside(connection, failed.job.queue, [*bad, *step.bad])
    return step.told.end(failed)


class _Step:
    def __init__(self, con: Connection, failed: FailedJob, daemon: bytes) -> None:
        self._con = con
        self._failed = failed
        self._daemon = daemon
        self.books = SharedBooks()
        self.told = Letters()
        self.bad: list[BadClaimed] = []

    async def give_up(self, spent: Sequence[Spent]) -> None:
        bodies = await read_bodies(self._con, (each.row.body_id for each in spent))
        runs = Unpacked()
        letters: list[NewRow] = []
        gone: list[int] = []
        for each in spent:
            row = each.row
            try:
                new = each.letters(*bodies.get(row.body_id))
            except BadRow as error:
                self.bad.append(bad_claimed(row, error))
                continue
            letters += new
            gone.append(row.n)
            self._count(row)
            self.told.add(new, runs)
        if letters:
            known = {each.row.body_id for each in spent}
            now_ms = self._failed.now_ms
            await insert_rows(
                self._con, letters, self._daemon, now_ms, runs, is_stored=False, known_bodies=known
            )
            await self._con.execute(DROP_ROWS, gone)

    def _count(self, row: FailedRow) -> None:
        place = Place(self._failed.job.queue, from_text(row.flow), from_text(row.action))
        self.books.leave(place, row.items, rows_gone=1)
        self.books.enter(place, row.items, row.write, is_dead=True)


_FAILED: Final = guard(ColdMove.FAIL_JOB, ColdMove.UNCLAIM)
SELECT_FAILED: Final = f"""SELECT n, body_id, bits, count, size, flow, action, write_id, attempt,
    due_ms, error_history
    FROM runs WHERE {_FAILED} AND consumer = $1 ORDER BY place"""
FAIL_ROWS: Final = f"""UPDATE runs SET attempt = attempt + 1, error_history = failed.history
    FROM unnest($1::bigint[], $2::text[]) AS failed (n, history)
    WHERE runs.n = failed.n AND {_FAILED}"""
DROP_ROWS: Final = f"DELETE FROM runs WHERE n = ANY ($1) AND {_FAILED}"
