"""Ends the jobs of triggers, in the transaction in which their outcome is recorded.

A job item can end in many steps: it is settled, deleted, purged, set aside as unreadable,
acknowledged by the consumer of a stream, or it belongs to another trigger's job that ends. All of
them record its outcome in the receipt of its write, so `JobEnding` looks at what each step has
recorded (`Connection.jobs`) before the step is committed. The items of a job that is done are
delivered; those of a job that is dead or has stalled have failed once more; in any other case they
are given back as they were.

PostgreSQL locks the job's row, then its consumer, then the claimed rows.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from actors.model.books import ColdReceipt
from actors.model.finished import Keeps
from actors.model.keys import KeyRules
from actors.ports.trigger_jobs import (
    JOB_CLAIM,
    SPENT,
    FailedJob,
    JobEnd,
    JobWatch,
    NoWatch,
    TriggerJob,
    fate_of,
    job_consumer,
)
from daemon.stores.cold import claims
from daemon.stores.cold.books import RECEIPT
from daemon.stores.cold.connection import Connection, Database, Step
from daemon.stores.cold.job_failures import fail_claimed, letter_error
from daemon.stores.cold.keyed import window_of
from daemon.stores.cold.statement import Statement

T = TypeVar("T")


class JobEnding:
    """The cold store's `Database`: ends jobs with the steps that it runs."""

    def __init__(
        self, db: Database, keeps: Callable[[], Keeps], rules: Callable[[], KeyRules]
    ) -> None:
        self._db = db
        self._keeps = keeps
        self._rules = rules
        self.watch: JobWatch = NoWatch()

    async def read(self, step: Step[T]) -> T:
        return await self._db.read(step)

    async def write(
        self,
        step: Step[T],
        *,
        is_durable: bool = True,
        is_new_work: bool = False,
        may_fill_disk: bool = False,
        is_repeatable: bool = True,
    ) -> T:
        async def work(con: Connection) -> tuple[T, list[JobEnd]]:
            result = await step(con)
            return result, await self._end_all(con) if con.jobs else []

        result, ends = await self._db.write(
            work,
            is_durable=is_durable,
            is_new_work=is_new_work,
            may_fill_disk=may_fill_disk,
            is_repeatable=is_repeatable,
        )
        for end in ends:
            self.watch.ended(end)
        return result

    async def sync(self) -> None:
        await self._db.sync()

    async def _end_all(self, con: Connection) -> list[JobEnd]:
        ends: list[JobEnd] = []
        while con.jobs:
            # Ending one may end another: the items of a job may be jobs themselves.
            run_id = min(con.jobs)
            con.jobs.remove(run_id)
            end = await self._end(con, run_id)
            if end is not None:
                ends.append(end)
        return ends

    async def _end(self, con: Connection, run_id: bytes) -> JobEnd | None:
        """None: it is not done, or has been ended."""
        job = await self._find(con, run_id)
        if job is None or job.fate is None:
            return None
        letters = await con.fetch(LOCK_LETTERS, job.id) if job.fate == "dead" else []
        if letters:
            await con.execute(MARK_SPENT, [n for n, _ in letters], SPENT)
        consumer, ended = job_consumer(run_id), JobEnd(job)
        n = await claims.lock_open(con, job.queue, consumer, JOB_CLAIM)
        # An operator may have dropped it: others have its items then.
        if n is not None and job.fate == "done":
            window = window_of(self._rules()(job.queue))
            await claims.acknowledge(con, n, job.queue, self._keeps()(job.queue), window)
        elif n is not None and job.fate in ("dead", "stalled"):
            error = letter_error(letters[0][1]) if letters else None
            retries_max = self.watch.retries_max(job.queue)
            ended = await fail_claimed(con, n, FailedJob(job, error, retries_max, await con.now()))
        await claims.drop(con, job.queue, consumer)
        await con.execute(DELETE_JOB, run_id)
        await con.execute(FORGET_RECEIPT, run_id)
        return ended

    async def _find(self, con: Connection, run_id: bytes) -> TriggerJob | None:
        found = await con.first(LOCK_JOB, run_id)
        receipt = await con.first(SELECT_RECEIPT, run_id)
        if found is None or receipt is None:
            return None
        job, fate = TriggerJob(*found), fate_of(ColdReceipt(*receipt))
        if fate == "deleted" and self.watch.is_overdue(job, await con.now()):
            fate = "stalled"
        return job._replace(fate=fate)


LOCK_JOB: Final = Statement("""SELECT run_id, name, queue, target, items, made_ms FROM trigger_jobs
    WHERE run_id = $1 FOR UPDATE""")
SELECT_RECEIPT: Final = Statement(
    f"""SELECT {", ".join(f"coalesce(sum({name}), 0)::bigint" for name in RECEIPT)}
    FROM receipts WHERE write_id = $1"""
)
DELETE_JOB: Final = Statement("DELETE FROM trigger_jobs WHERE run_id = $1")
FORGET_RECEIPT: Final = Statement("DELETE FROM receipts WHERE write_id = $1")
LOCK_LETTERS: Final = Statement("""SELECT n, :raw(error_history)
    FROM runs INDEXED BY runs_dead_item WHERE state = 'FAILED' AND item_id = $1
    ORDER BY n DESC FOR UPDATE""")
MARK_SPENT: Final = Statement("UPDATE runs SET job_id = $2 WHERE n = ANY ($1)")
