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

from collections.abc import Callable
from typing import Final

import trio

from actors.trigger_book import TriggerBook
from actors.trigger_jobs import JOB_CONSUMER, TriggerJob, TriggerStore, job_consumer
from actors.trigger_ports import TriggerPorts
from actors.trigger_watch import LIVE_S, LOOK_S, is_overdue
from forebay.errors import Refused

IDLE_S: Final = 60.0
"""So often jobs are looked for that nobody here has a trigger for."""


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
        for job in found.jobs:
            trigger = self._book.triggers.get(job.trigger)
            if self._is_anothers(job):
                continue
            if job.fate is not None:
                await self._end(job)
            elif trigger is not None and is_overdue(job, trigger, found.now_ms):
                await self._take_back(job)
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

    async def _take_back(self, job: TriggerJob) -> None:
        try:
            await self._ports.withdraw(job.id)
        except Refused:
            # Somebody has it, or it has just ended: the next sweep finds out how.
            return
        self._failed(job.trigger, f"job {job.id} was not done when its lease ended")
        await self._end(job)
