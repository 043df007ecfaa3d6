"""The unfinished jobs of triggers: what they end with, and those that are overdue.

The cold store ends a job in the transaction that records its outcome, and tells this actor
(`JobWatch`). In a fleet any daemon may deliver a job; the daemon that runs the trigger notices at
its next look that the job is gone, and asks whether it has left a dead letter. A look also takes
back jobs whose lease has ended, which counts as a failure of their items, unless a worker or a
consumer has the job.

Owns which jobs are not done, as last seen, of all triggers of the cold store. Jobs of a trigger
that another daemon runs are left to that daemon. Nothing here is durable: a look that is cancelled
is repeated.

actors/tiers/streams.py knows the consumers of jobs that were there when the daemon started, and
would keep their queue in stream mode. A look makes it forget those whose job has ended.

It cannot take back a job that a worker or consumer has.
"""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from actors.config.book import Book
from actors.config.triggers import QueueTrigger
from actors.cron.trigger_ports import TriggerPorts
from actors.cron.trigger_watch import LIVE_S, LOOK_S, is_overdue
from actors.ports.trigger_jobs import (
    JOB_CONSUMER,
    STALLED,
    JobEnd,
    TriggerJob,
    TriggerStore,
    job_consumer,
)
from forebay.errors import Refused

IDLE_S: Final = 60.0
"""How often a daemon without triggers looks for jobs."""
TAKE_BACK_S: Final = 2.0
"""How long one look takes jobs back. A job that another daemon has near its workers is refused
after 0.4 s, there may be many, and the leases of the triggers must be kept meanwhile."""


class Jobs:
    def __init__(
        self,
        book: Book[QueueTrigger],
        store: TriggerStore,
        ports: TriggerPorts,
        is_ours: Callable[[str], bool],
        done: Callable[[str], None],
        failed: Callable[[str, str], None],
    ) -> None:
        """`is_ours`: whether this daemon has a trigger's lease. `done` and `failed` are told of
        triggers one of whose jobs has ended so."""
        self._book = book
        self._store = store
        self._ports = ports
        self._is_ours = is_ours
        self._done = done
        self._failed = failed
        self.live: dict[bytes, TriggerJob] = {}
        self.due_at = 0.0
        self._refused_at: dict[bytes, float] = {}
        """When overdue jobs could not be taken back last: the others come first."""
        self._ended: set[bytes] = set()
        """What has ended since the look began: it may have read them before."""

    def made(self, job: TriggerJob) -> None:
        self.live[job.run_id] = job
        self.look_soon(LOOK_S)

    def look_soon(self, wait_s: float = LIVE_S) -> None:
        self.due_at = min(self.due_at, trio.current_time() + wait_s)

    # What the cold store asks and tells.

    def retries_max(self, queue: str) -> int:
        return self._ports.retries_max(queue)

    def is_overdue(self, job: TriggerJob, now_ms: int) -> bool:
        trigger = self._book.definitions.get(job.trigger)
        return trigger is not None and is_overdue(job, trigger, now_ms)

    def ended(self, end: JobEnd) -> None:
        job = end.job
        self._ended.add(job.run_id)
        if end.fate != "done":
            self._ports.has_come(job.queue)
        if end.dead:
            self._ports.dead(job.queue, end.error, end.dead, end.dead_ids)
        if self._is_anothers(job):
            # That daemon finds out by itself.
            return
        self.live.pop(job.run_id, None)
        self.look_soon()
        if end.fate == "done":
            self._done(job.trigger)
        elif end.fate != "deleted":
            self._failed(job.trigger, told(end))

    # Looking.

    async def look(self) -> None:
        """If it is time."""
        if trio.current_time() < self.due_at:
            return
        overdue = await self._look_at_all()
        await self._take_back(overdue)
        await self._forget_consumers()
        wait_s = LOOK_S if self._book.definitions or self.live else IDLE_S
        self.due_at = trio.current_time() + (LIVE_S if self._refused_at else wait_s)

    async def _look_at_all(self) -> list[TriggerJob]:
        """Reads a page at a time; returns the overdue jobs."""
        before = [job for job in self.live.values() if not self._is_anothers(job)]
        self._ended.clear()
        live: dict[bytes, TriggerJob] = {}
        overdue: list[TriggerJob] = []
        after: bytes | None = b""
        while after is not None:
            now_ms, jobs, after = await self._store.jobs(after)
            for job in jobs:
                is_ours = not self._is_anothers(job)
                if is_ours and job.fate is not None:
                    await self._store.end(job.run_id)
                    continue
                live[job.run_id] = job
                if is_ours and self.is_overdue(job, now_ms):
                    overdue.append(job)
        self.live = {run_id: job for run_id, job in live.items() if run_id not in self._ended}
        gone = [job for job in before if job.run_id not in live.keys() | self._ended]
        if gone:
            await self._note_gone(gone)
        return overdue

    async def _note_gone(self, gone: Sequence[TriggerJob]) -> None:
        """Other daemons have ended them."""
        died = await self._store.died([job.id for job in gone])
        for job in gone:
            if job.id in died:
                self._failed(job.trigger, f"job {job.id} is dead")
            else:
                self._done(job.trigger)

    def _is_anothers(self, job: TriggerJob) -> bool:
        trigger = self._book.definitions.get(job.trigger)
        return trigger is not None and trigger.enabled and not self._is_ours(job.trigger)

    async def _forget_consumers(self) -> None:
        live = {job_consumer(run_id) for run_id in self.live}
        for queue, consumer in list(self._ports.consumers()):
            if consumer.startswith(JOB_CONSUMER) and consumer not in live:
                await self._ports.drop(queue, consumer)

    async def _take_back(self, overdue: Sequence[TriggerJob]) -> None:
        deadline = trio.current_time() + TAKE_BACK_S
        before, self._refused_at = self._refused_at, {}
        for job in sorted(overdue, key=lambda job: before.get(job.run_id, 0.0)):
            if trio.current_time() < deadline:
                await self._take_one_back(job)
            elif job.run_id in before:
                self._refused_at[job.run_id] = before[job.run_id]

    async def _take_one_back(self, job: TriggerJob) -> None:
        try:
            await self._ports.withdraw(job.id)
        except Refused:
            # A worker or consumer has it, or it has just ended.
            self._refused_at[job.run_id] = trio.current_time()


def told(end: JobEnd) -> str:
    """What is said of a job that has failed."""
    job, items = end.job, end.job.items
    if not end.dead:
        rest = "its items are given back"
    elif end.dead == items:
        rest = "its items are dead letters now"
    else:
        rest = f"{end.dead} of its {items} items are dead letters now, the others are given back"
    outcome = STALLED if end.fate == "stalled" else f"is {end.fate}"
    return f"job {job.id} {outcome}: {rest}"
