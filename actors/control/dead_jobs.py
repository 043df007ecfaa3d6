"""Jobs: work on many dead letters that takes longer than an answer may, with progress.

A job retries or removes all matching dead letters, in bounded steps that other work can get
between. It covers the letters that existed when it began. The actor owns the jobs that wait or run
and the latest finished ones, at most `JOBS_MAX`, only in memory: a restart forgets them, but what
they had done is done. `job.start` begins one, `job.show` and `job.list` report progress,
`job.cancel` ends it after the current step.

Each step is durable when it is counted. While the cold store is away a job retries for `PATIENCE_S`
and then fails. If the actor is cancelled the jobs just end.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeVar

import structlog
import trio

from actors.control.fields import STOP_AT, Fields, Operation, read_filter
from actors.model.internal_errors import INTERNAL_ERRORS
from actors.model.refusals import bad_request
from actors.ports.tiers import DeadChange, DeadFilter, StoreCorrupt, StoreUnavailable
from actors.tiers.tiers import Tiers
from forebay.errors import Refused

log = structlog.get_logger()

T = TypeVar("T")

JOBS_MAX: Final = 100
WAITING_MAX: Final = 16
AT_ONCE: Final = 2
STEP_LETTERS: Final = 1000
PATIENCE_S: Final = 60.0
PAUSE_S: Final = 1.0

What = Literal["dead.retry", "dead.remove"]
Phase = Literal["waiting", "running", "done", "cancelled", "failed"]
_OVER: Final = frozenset({"done", "cancelled", "failed"})


@dataclass(slots=True, eq=False)
class Job:
    id: str
    what: What
    which: DeadFilter
    asked: Mapping[str, Any]
    """The filter, as given."""
    created_ms: int
    phase: Phase = "waiting"
    done: int = 0
    total: int | None = None
    """How many matched at the start; None if unknown."""
    ended_ms: int | None = None
    error: str | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def as_object(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "op": self.what,
            "which": dict(self.asked),
            "state": self.phase,
            "done": self.done,
            "total": self.total,
            "created_ms": self.created_ms,
            "ended_ms": self.ended_ms,
            "error": self.error,
        }


class Jobs:
    def __init__(
        self,
        tiers: Tiers,
    ) -> None:
        self._tiers = tiers
        self._dead = tiers.cold.dead_letters
        self._now_ms = tiers.now_ms
        self._jobs: dict[str, Job] = {}
        self._to_run, self._inbox = trio.open_memory_channel[Job](WAITING_MAX)
        self.operations: Mapping[str, Operation] = {
            "job.start": self._start_op,
            "job.show": self._show_op,
            "job.list": self._list_op,
            "job.cancel": self._cancel_op,
        }

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Never returns."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(self._work)

    # The operations.

    async def _start_op(self, fields: Fields) -> dict[str, Any]:
        what, asked = read_what(fields), fields.object("which")
        fields.end()
        which = read_filter(Fields({"which": asked}))
        job = Job(secrets.token_hex(8), what, which, asked, self._now_ms())
        try:
            self._to_run.send_nowait(job)
        except trio.WouldBlock:
            text = f"{WAITING_MAX} jobs wait already"
            raise Refused("BUSY", text, retry_after_ms=1000) from None
        self._remember(job)
        return job.as_object()

    async def _show_op(self, fields: Fields) -> dict[str, Any]:
        return self._job(fields).as_object()

    async def _list_op(self, fields: Fields) -> dict[str, Any]:
        fields.end()
        return {"jobs": [job.as_object() for job in reversed(self._jobs.values())]}

    async def _cancel_op(self, fields: Fields) -> dict[str, Any]:
        job = self._job(fields)
        if job.phase == "waiting":
            self._end(job, "cancelled")
        job.scope.cancel()
        return job.as_object()

    def _job(self, fields: Fields) -> Job:
        job_id = fields.text("id")
        fields.end()
        job = self._jobs.get(job_id)
        if job is None:
            raise Refused("NOT_FOUND", f"there is no job {job_id[:40]}, or it was forgotten")
        return job

    def _remember(self, job: Job) -> None:
        over = [known for known in self._jobs.values() if known.phase in _OVER]
        for known in over[: max(0, len(self._jobs) + 1 - JOBS_MAX)]:
            del self._jobs[known.id]
        self._jobs[job.id] = job

    # The work.

    async def _work(self) -> None:
        async for job in self._inbox.clone():
            if job.phase != "waiting":
                continue
            job.phase = "running"
            with job.scope:
                await self._carry_out(job)
            if job.phase == "running":
                self._end(job, "cancelled")

    async def _carry_out(self, job: Job) -> None:
        try:
            job.total = await self._patiently(lambda: self._dead.count(job.which, STOP_AT))
            cursor: bytes | None = None
            while True:
                change = await self._patiently(partial(self._step, job, cursor))
                job.done += change.done
                for queue in change.queues:
                    self._tiers.wake(queue)
                cursor = change.cursor
                if cursor is None:
                    break
        except (StoreUnavailable, StoreCorrupt, Refused) as problem:
            job.error = str(problem)
            self._end(job, "failed")
        except Exception as problem:
            job.error = str(INTERNAL_ERRORS.note(problem, job.what, job=job.id))
            self._end(job, "failed")
        else:
            self._end(job, "done")

    async def _step(self, job: Job, cursor: bytes | None) -> DeadChange:
        step = self._dead.retry if job.what == "dead.retry" else self._dead.remove
        return await step(job.which, STEP_LETTERS, cursor)

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeats the step while the store does not answer."""
        until = trio.current_time() + PATIENCE_S
        while True:
            try:
                return await call()
            except StoreUnavailable:
                if trio.current_time() >= until:
                    raise
            await trio.sleep(PAUSE_S)

    def _end(self, job: Job, phase: Phase) -> None:
        job.phase = phase
        job.ended_ms = self._now_ms()
        log.info("jobs.ended", job=job.id, what=job.what, state=phase, done=job.done)


def read_what(fields: Fields) -> What:
    match fields.text("what"):
        case "dead.retry":
            return "dead.retry"
        case "dead.remove":
            return "dead.remove"
        case _:
            raise bad_request("what must be dead.retry or dead.remove")
