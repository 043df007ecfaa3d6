"""The sweep over jobs of triggers: those that have ended end their claims, the overdue go back.

Owns which jobs are not done, as they were last seen: of all triggers of the cold store. What
became of a job is the store's to say (actors/trigger_jobs.py), and each end is one transaction of
it, which may be asked for again: a sweep that is cancelled, or a life that ends in the middle of
one, leaves the rest to the next. Jobs of a trigger that another daemon runs are left to that one;
those of triggers that nobody here knows, or that are disabled here, are ended by whoever comes.

The consumers of jobs that were there when this life began are known to actors/streams.py, and
would keep their queue in stream mode: they are forgotten when their job is over, whoever ended it.

What it can't do: take back a job that somebody has in hand.
"""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from actors.trigger_book import TriggerBook
from actors.trigger_jobs import JOB_CONSUMER, TriggerJob, TriggerStore, job_consumer
from actors.trigger_ports import TriggerPorts
from actors.trigger_watch import LIVE_S, LOOK_S, is_overdue
from forebay.errors import Refused

IDLE_S: Final = 60.0
"""So often jobs are looked for that nobody here has a trigger for."""
TAKE_BACK_S: Final = 2.0
"""So long a sweep asks for overdue jobs: one that another daemon has near its workers is refused
after 0.4 s, there may be many, and the leases of the triggers must be kept meanwhile."""


class JobSweep:
    def __init__(
        self,
        book: TriggerBook,
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
        found = await self._store.jobs()
        self.live = {job.run_id: job for job in found.jobs}
        ours = [job for job in found.jobs if not self._is_anothers(job)]
        for job in ours:
            if job.fate is not None:
                await self._end(job)
        await self._take_back_overdue(ours, found.now_ms)
        await self._forget_consumers()
        # What others end is of interest to whoever asks, and to nothing here: a fleet must not
        # read all jobs each second because one daemon has some.
        is_waiting = not all(map(self._is_anothers, self.live.values()))
        idle_s = LOOK_S if self._book.triggers else IDLE_S
        self.due_at = trio.current_time() + (LIVE_S if is_waiting else idle_s)

    def _is_anothers(self, job: TriggerJob) -> bool:
        trigger = self._book.triggers.get(job.trigger)
        return trigger is not None and trigger.enabled and not self._is_ours(job.trigger)

    async def _forget_consumers(self) -> None:
        live = {job_consumer(run_id) for run_id in self.live}
        for queue, consumer in self._ports.consumers():
            if consumer.startswith(JOB_CONSUMER) and consumer not in live:
                await self._ports.drop(queue, consumer)

    async def _end(self, job: TriggerJob) -> None:
        ended = await self._store.end(job.run_id)
        if ended is None:
            return
        self.live.pop(job.run_id, None)
        if ended.fate == "done":
            self._done(job.trigger)
            return
        self._ports.has_come(job.queue)
        if ended.fate != "deleted":
            self._failed(job.trigger, f"job {job.id} is {ended.fate}: its items are given back")

    async def _take_back_overdue(self, jobs: Sequence[TriggerJob], now_ms: int) -> None:
        triggers, deadline = self._book.triggers, trio.current_time() + TAKE_BACK_S
        overdue = [
            job
            for job in jobs
            if job.trigger in triggers and is_overdue(job, triggers[job.trigger], now_ms)
        ]
        before, self._refused_at = self._refused_at, {}
        for job in sorted(overdue, key=lambda job: before.get(job.run_id, 0.0)):
            if trio.current_time() < deadline:
                await self._take_back(job)
            elif job.run_id in before:
                self._refused_at[job.run_id] = before[job.run_id]

    async def _take_back(self, job: TriggerJob) -> None:
        try:
            await self._ports.withdraw(job.id)
        except Refused:
            # Somebody has it, or it has just ended: the next sweep finds out how.
            self._refused_at[job.run_id] = trio.current_time()
            return
        self._failed(job.trigger, f"job {job.id} was not done when its lease ended")
        await self._end(job)
