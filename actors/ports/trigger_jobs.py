"""Jobs of triggers: what a poll of a queue does in the cold store, and how a job is made.

A poll is one transaction: it takes or keeps the trigger's lease, claims the next items of its
queue, creates a job item that lists them in the target queue, and writes the job's id into the
claimed rows. So a job exists if and only if its claim does. Each job claims as a consumer of its
own (`job_consumer`), so that nothing else finds the rows. The job's outcome is counted like a write
(a receipt of one item, under the job's run id), in the transaction that ends it, whether a worker,
an operator or a purge does. That transaction also delivers the job's items or gives them back, and
forgets the job. The letter of a dead job is marked (`SPENT`), because a retry would put its items
into two jobs. Items that have failed with as many jobs as their queue allows are not given back but
become dead letters of their own queue.

A job that is deleted after its lease has ended has stalled: its items have failed once more, like
those of a dead job.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Protocol

from actors.config.triggers import TRIGGER_HEADER
from actors.model.books import ColdReceipt
from actors.model.keys import Offer
from actors.model.slices import ItemError
from forebay.ids import format_item_id
from forebay.run import Run, encode_run, read_head
from forebay.stage_frames import WRITE_HEADER

TRIGGER_CONSUMER: Final = "trigger/"
"""Prefix, followed by the trigger's name, of the consumer that keeps its queue in stream mode."""
JOB_CONSUMER: Final = "trigger-job/"
SPENT: Final = ""
"""Replaces the job id in the letter of a dead job whose items were given back: the job is not
retried, or its items would be in two jobs."""
JOB_CLAIM: Final = 1
"""The number of a job's only claim."""
JOBS_PAGE: Final = 500
"""How many jobs are read at once."""
IDS_TOLD_MAX: Final = 10
"""How many of the items that were given up a notice names."""

STALLED: Final = "was not done when its lease ended"

Fate = Literal["done", "dead", "stalled", "deleted", "unreadable"]


@dataclass(frozen=True, slots=True)
class Claim:
    """What to claim, and the properties of the job."""

    queue: str
    target: str
    items_max: int
    jobs_max: int
    priority: int
    run_id: bytes
    """The job's run id, if one is made: asked for twice, it is made once."""
    flow: str = ""
    action: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    except_flows: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Poll:
    name: str
    holder: bytes
    """The daemon that asks."""
    lease_s: float
    interval_ms: int
    claim: Claim | None
    """None: only take or keep the lease."""
    is_forced: bool = False
    """Poll even if it is not time yet or the trigger is paused."""


class TriggerJob(NamedTuple):
    run_id: bytes
    trigger: str
    queue: str
    target: str
    items: int
    made_ms: int
    fate: Fate | None = None
    """None: it is not done yet."""

    @property
    def id(self) -> str:
        """The id of the job item."""
        return format_item_id(self.run_id, 0)


class Polled(NamedTuple):
    is_ours: bool
    """False: another daemon has the trigger's lease, and nothing was done."""
    wait_s: float = 0.0
    """Until the next poll; 0: it was time, but nothing could be claimed."""
    made: TriggerJob | None = None
    is_paused: bool = False


class JobList(NamedTuple):
    now_ms: int
    jobs: Sequence[TriggerJob]
    after: bytes | None = None
    """Where the next page begins; None: these were the last."""


class FailedJob(NamedTuple):
    """A job that is dead or has stalled, and the consequences for its items."""

    job: TriggerJob
    error: ItemError | None
    """The last error of its letter; None: it has none that can be read."""
    retries_max: int
    """How many failed jobs an item may have had before this one and still be in the next."""
    now_ms: int

    def error_of(self, attempt: int) -> ItemError:
        """The error its items remember. `attempt`: theirs, including this one."""
        said = f"trigger {self.job.trigger}: job {self.job.id} {self._outcome}"
        reason = self.error.failure_reason if self.error is not None else "application"
        who = (job_consumer(self.job.run_id), self.job.made_ms)
        return ItemError(attempt, self.now_ms, said, reason, *who)

    @property
    def _outcome(self) -> str:
        if self.job.fate == "stalled":
            return STALLED
        return f"is dead: {self.error.text}" if self.error is not None else "is dead"


class JobEnd(NamedTuple):
    """The outcome of a job and of its items."""

    job: TriggerJob
    error: str = ""
    """Why its items are dead letters."""
    dead: int = 0
    """How many of its items are dead letters now."""
    dead_ids: tuple[str, ...] = ()
    """The ids of the first of them."""

    @property
    def fate(self) -> Fate | None:
        return self.job.fate


class JobWatch(Protocol):
    """What the cold store asks of the daemon's triggers when a job ends, and tells them then. The
    questions are asked in the store's own thread."""

    def retries_max(self, queue: str) -> int:
        """How many failed jobs an item of a queue may have had and still be in the next one."""

    def is_overdue(self, job: TriggerJob, now_ms: int) -> bool:
        """Whether the job's lease has ended."""

    def ended(self, end: JobEnd) -> None:
        """A step of this daemon has ended a job, and is committed. A crash before this call loses
        nothing but the call."""


class NoWatch:
    """Before there are triggers."""

    def retries_max(self, _: str) -> int:
        return sys.maxsize

    def is_overdue(self, _: TriggerJob, __: int) -> bool:
        return False

    def ended(self, _: JobEnd) -> None:
        """Nobody wants to know."""


class TriggerStore(Protocol):
    """As with `ColdQueue`: each method is one transaction, completed once it has begun; raises
    StoreUnavailable if it may not have happened."""

    async def poll(self, poll: Poll) -> Polled: ...

    def watch(self, watch: JobWatch) -> None:
        """From now on this one is asked and told."""

    async def jobs(self, after: bytes = b"", limit: int = JOBS_PAGE) -> JobList:
        """A page of jobs that were not ended, by run id."""

    async def died(self, ids: Sequence[str]) -> set[str]:
        """Those of the jobs that have left a dead letter."""

    async def end(self, run_id: bytes) -> None:
        """Ends a job that has a fate and is still there, because an older version of this program
        recorded its outcome. Durable on return."""

    async def let_go(self, name: str, holder: bytes) -> None:
        """Gives the lease up, if this daemon holds it."""

    async def pause(self, name: str, *, is_paused: bool) -> None:
        """Stops or resumes claims for the trigger in all daemons. Durable on return."""


def job_consumer(run_id: bytes) -> str:
    return JOB_CONSUMER + run_id.hex()


def fate_of(receipt: ColdReceipt) -> Fate | None:
    """The job's fate according to its receipt."""
    if receipt.delivered:
        return "done"
    if receipt.deleted:
        return "deleted"
    if receipt.dead:
        return "dead"
    return "unreadable" if receipt.lost else None


def job_offer(name: str, claim: Claim, ids: Sequence[str], now_ms: int) -> Offer:
    """The job item, as it is pushed."""
    content = {"trigger": name, "queue": claim.queue, "ids": ids, "count": len(ids)}
    data = encode_run(
        [json.dumps(content, separators=(",", ":")).encode()],
        queue=claim.target,
        run_id=claim.run_id,
        flow=claim.flow,
        action=claim.action,
        priority=claim.priority,
        enqueued_ms=now_ms,
        headers={**claim.headers, TRIGGER_HEADER: name, WRITE_HEADER: claim.run_id.hex()},
    )
    return Offer(Run(read_head(data), data))


class TriggerLease(NamedTuple):
    """The lease of a trigger, as it is in the store."""

    holder: bytes
    until_ms: int
    polled_ms: int
    """When its queue was last polled."""
    is_paused: bool = False


class PollStep(NamedTuple):
    is_ours: bool
    is_time: bool
    """Whether to poll now."""
    is_to_keep: bool
    """Whether the lease must be taken, or will soon expire."""
    wait_s: float


def next_step(lease: TriggerLease | None, poll: Poll, now_ms: int) -> PollStep:
    """What to do, given the state of the store."""
    lease_ms = round(poll.lease_s * 1000)
    is_held = lease is not None and lease.holder == poll.holder
    if lease is None:
        return PollStep(True, poll.claim is not None, True, 0.0)
    # After the clock was set back, a lease must not keep other daemons away for longer than itself.
    is_valid = now_ms < lease.until_ms <= now_ms + lease_ms
    if is_valid and not is_held:
        return PollStep(False, False, False, 0.0)
    passed_ms = now_ms - lease.polled_ms
    wait_ms = poll.interval_ms - passed_ms if passed_ms >= 0 else 0
    is_wanted = poll.is_forced or (wait_ms <= 0 and not lease.is_paused)
    is_time = poll.claim is not None and is_wanted
    is_to_keep = not is_held or not is_valid or lease.until_ms - now_ms < lease_ms // 2
    return PollStep(True, is_time, is_to_keep, max(0, wait_ms) / 1000)


def is_spent(state: str, job_id: str | None) -> bool:
    """For a row of the cold store."""
    return state == "FAILED" and job_id == SPENT
