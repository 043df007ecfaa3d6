"""The sweep over jobs of triggers: those that have ended end their claims, the overdue go back.

Owns which jobs are not done, as they were last seen: of all triggers of the cold store. What became
of a job is the store's to say (actors/ports/trigger_jobs.py), and each end is one transaction of
it, which may be asked for again: a sweep that is cancelled, or a life that ends in the middle of
one, leaves the rest to the next. Jobs are read a page at a time, and end as they are read. Those of
a trigger that another daemon runs are left to that one; those of triggers that nobody here knows,
or that are disabled here, are ended by whoever comes.

The consumers of jobs that were there when this life began are known to actors/tiers/streams.py, and
would keep their queue in stream mode: they are forgotten when their job is over, whoever ended it.

What it can't do: take back a job that somebody has in hand.
"""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from actors.config.book import Book
from actors.config.triggers import QueueTrigger
from actors.cron.trigger_ports import TriggerPorts
from actors.cron.trigger_watch import LIVE_S, LOOK_S, is_overdue
from actors.ports.trigger_jobs import JOB_CONSUMER, JobEnd, TriggerJob, TriggerStore, job_consumer
from forebay.errors import Refused

IDLE_S: Final = 60.0
"""So often jobs are looked for that nobody here has a trigger for."""
TAKE_BACK_S: Final = 2.0
"""So long a sweep asks for overdue jobs: one that another daemon has near its workers is refused
after 0.4 s, there may be many, and the leases of the triggers must be kept meanwhile."""


class JobSweep:
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
        """When overdue jobs were last asked for in vain: the others come first."""

    def made(self, job: TriggerJob) -> None:
        self.live[job.run_id] = job
        self.sweep_soon()

    def sweep_soon(self) -> None:
        self.due_at = min(self.due_at, trio.current_time() + LIVE_S)

    async def sweep(self) -> None:
        """If it is time."""
        if trio.current_time() < self.due_at:
            return
        overdue = await self._look_at_all()
        await self._take_back(overdue)
        await self._forget_consumers()
        # What others end is of interest to whoever asks, and to nothing here: a fleet must not
        # read all jobs each second because one daemon has some.
        is_waiting = not all(map(self._is_anothers, self.live.values()))
        idle_s = LOOK_S if self._book.definitions else IDLE_S
        self.due_at = trio.current_time() + (LIVE_S if is_waiting else idle_s)

    async def _look_at_all(self) -> list[TriggerJob]:
        """A page at a time: those that have ended end their claims; the overdue are returned."""
        live: dict[bytes, TriggerJob] = {}
        overdue: list[TriggerJob] = []
        after: bytes | None = b""
        while after is not None:
            now_ms, jobs, after = await self._store.jobs(after)
            for job in jobs:
                is_ours = not self._is_anothers(job)
                if is_ours and job.fate is not None and await self._end(job):
                    continue
                live[job.run_id] = job
                if is_ours and self._is_overdue(job, now_ms):
                    overdue.append(job)
        self.live = live
        return overdue

    def _is_overdue(self, job: TriggerJob, now_ms: int) -> bool:
        trigger = self._book.definitions.get(job.trigger)
        return trigger is not None and is_overdue(job, trigger, now_ms)

    def _is_anothers(self, job: TriggerJob) -> bool:
        trigger = self._book.definitions.get(job.trigger)
        return trigger is not None and trigger.enabled and not self._is_ours(job.trigger)

    async def _forget_consumers(self) -> None:
        live = {job_consumer(run_id) for run_id in self.live}
        for queue, consumer in self._ports.consumers():
            if consumer.startswith(JOB_CONSUMER) and consumer not in live:
                await self._ports.drop(queue, consumer)

    async def _end(self, job: TriggerJob) -> bool:
        """False: it was put back to work meanwhile, or somebody else has ended it."""
        ended = await self._store.end(job.run_id, self._ports.retries_max(job.queue))
        if ended is None:
            return False
        self.live.pop(job.run_id, None)
        if ended.fate == "done":
            self._done(job.trigger)
            return True
        self._ports.has_come(job.queue)
        if ended.dead:
            self._ports.dead(job.queue, ended.error, ended.dead, ended.dead_ids)
        if ended.fate != "deleted":
            self._failed(job.trigger, told(ended))
        return True

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
            # Somebody has it, or it has just ended: the next sweep finds out how.
            self._refused_at[job.run_id] = trio.current_time()
            return
        self._failed(job.trigger, f"job {job.id} was not done when its lease ended")
        await self._end(job)


def told(ended: JobEnd) -> str:
    """What is said of a job that has failed."""
    job, items = ended.job, ended.job.items
    if not ended.dead:
        rest = "its items are given back"
    elif ended.dead == items:
        rest = "its items are dead letters now"
    else:
        rest = f"{ended.dead} of its {items} items are dead letters now, the others are given back"
    return f"job {job.id} is {ended.fate}: {rest}"
