"""History of claims in PostgreSQL; all other history is in daemon/stores/cold/history.py."""

from typing import Final

from actors.model.finished import Keep
from daemon.stores.postgres.connection import Connection
from daemon.stores.postgres.rows import NOW


async def note_claimed(con: Connection, consumer: int, keep: Keep, now_ms: int | None) -> None:
    """The rows of a claim that is acknowledged, however many, in one statement."""
    await con.execute(NOTE_CLAIMED if keep == "all" else NOTE_CLAIMED_FAILURES, now_ms, consumer)


_COLUMNS: Final = """body_id, queue, flow, action, priority, count, size, attempt, outcome,
    created_at, finished_at, bits, error_history, locked_by, locked_at, result,
    job_id"""
_OF_RUNS: Final = "runs.queue, runs.flow, runs.action, runs.priority"
NOTE_CLAIMED: Final = f"""INSERT INTO history ({_COLUMNS})
    SELECT body_id, {_OF_RUNS}, count, size, attempt + 1, 'delivered', created_at, {NOW},
        bits, error_history, (SELECT name FROM consumers WHERE n = $2), NULL, NULL,
        job_id
    FROM runs WHERE state = 'CLAIMED' AND consumer = $2"""
NOTE_CLAIMED_FAILURES: Final = f"{NOTE_CLAIMED} AND (attempt > 0 OR error_history <> '[]')"
