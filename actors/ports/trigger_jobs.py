"""Jobs of triggers: what a poll of a queue comes to in the cold store, and how a job is made.

A poll is one transaction: the trigger's lease is taken or kept, the next items of its queue are
claimed, a job item that lists them is created in the target, and the claimed rows have its id. So
a job exists if and only if its claim does. The claim is that of a consumer of its own
(`job_consumer`), so that nothing else finds the rows. What became of a job is counted as of a
write (a receipt of one item, under the job's run id), in the transaction that ends it, whoever
ends it: a worker, an operator, a purge. `end` finds that out, and in one transaction its items are
delivered, or given back, and the job is forgotten. It may be asked for again, by anybody. A dead
job's letter is marked in that transaction (`SPENT`): until then it may be tried again, and is the
same job; from then on it is refused. Items that have had as many dead jobs as their queue allows
are not given back, but dead letters of their own queue from that transaction on.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Protocol

from actors.config.triggers import TRIGGER_HEADER
from actors.model.keys import Offer
from actors.model.slices import ItemError
from actors.ports.tiers import ColdReceipt
from forebay.ids import format_item_id
from forebay.run import Run, encode_run, read_head
from forebay.stage_frames import WRITE_HEADER

TRIGGER_CONSUMER: Final = "trigger/"
"""The consumer that keeps a trigger's queue in stream mode: this, and the trigger's name."""
JOB_CONSUMER: Final = "trigger-job/"
SPENT: Final = ""
"""In the place of a job's id in the letter of a dead job whose items were given back: it is not
tried again, or they would be in two jobs."""
JOB_CLAIM: Final = 1
"""The number of a job's claim: it has one."""
JOBS_PAGE: Final = 500
"""So many jobs are read at once."""
IDS_TOLD_MAX: Final = 10
"""So many items that were given up are named to those who are told."""

Fate = Literal["done", "dead", "deleted", "unreadable"]


@dataclass(frozen=True, slots=True)
class Claim:
    """What is to be claimed, and what the job is to be like."""

    queue: str
    target: str
    items_max: int
    jobs_max: int
    priority: int
    run_id: bytes
    """Of the job, if there is one: asked for twice, it is made once."""
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
    """None: the lease alone."""
    is_forced: bool = False
    """Whenever the last poll was, and paused or not."""


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
        """The job item's."""
        return format_item_id(self.run_id, 0)


class Polled(NamedTuple):
    is_ours: bool
    """False: another daemon has the trigger's lease, and nothing was done."""
    wait_s: float = 0.0
    """Until the next poll; 0: nothing was claimed because there was no room, or no time."""
    made: TriggerJob | None = None
    is_paused: bool = False


class JobList(NamedTuple):
    now_ms: int
    jobs: Sequence[TriggerJob]
    after: bytes | None = None
    """Where the next page begins; None: these were the last."""


class FailedJob(NamedTuple):
    """A job that is dead, and what that means for its items."""

    job: TriggerJob
    error: ItemError | None
    """The last one of its letter; None: it has none any more."""
    retries_max: int
    """So many dead jobs an item may have had before this one, and is in the next."""
    now_ms: int

    def error_of(self, attempt: int) -> ItemError:
        """What its items remember of it. `attempt`: of theirs, this one included."""
        text = self.error.text if self.error is not None else "its letter is gone"
        said = f"trigger {self.job.trigger}: job {self.job.id} is dead: {text}"
        reason = self.error.failure_reason if self.error is not None else "application"
        who = (job_consumer(self.job.run_id), self.job.made_ms)
        return ItemError(attempt, self.now_ms, said, reason, *who)


class JobEnd(NamedTuple):
    """What has become of a job, and with it of its items."""

    job: TriggerJob
    error: str = ""
    """Why it is dead."""
    dead: int = 0
    """So many of its items are dead letters now."""
    dead_ids: tuple[str, ...] = ()
    """Of the first of them."""

    @property
    def fate(self) -> Fate | None:
        return self.job.fate


class TriggerStore(Protocol):
    """As with `ColdQueue`: each method is one transaction, carried through when it has begun;
    StoreUnavailable if it may not have happened."""

    async def poll(self, poll: Poll) -> Polled: ...

    async def jobs(self, after: bytes = b"", limit: int = JOBS_PAGE) -> JobList:
        """A page of those that were not ended, by their run id."""

    async def end(self, run_id: bytes, retries_max: int) -> JobEnd | None:
        """Settles or gives back what the job had claimed; of a dead one, what has failed more
        often than `retries_max` is given up. Durable on return. None: there is no such job any
        more, or it is not done yet."""

    async def let_go(self, name: str, holder: bytes) -> None:
        """Gives the lease up, if it is this daemon's."""

    async def pause(self, name: str, *, is_paused: bool) -> None:
        """Nothing is claimed for the trigger, by any daemon. Durable on return."""


def job_consumer(run_id: bytes) -> str:
    return JOB_CONSUMER + run_id.hex()


def fate_of(receipt: ColdReceipt) -> Fate | None:
    """What the job's receipt says of it."""
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


class Lease(NamedTuple):
    """Of a trigger, as it stands in the store."""

    holder: bytes
    until_ms: int
    polled_ms: int
    """When its queue was last polled."""
    is_paused: bool = False


class Step(NamedTuple):
    is_ours: bool
    is_time: bool
    """To poll."""
    is_to_keep: bool
    """The lease must be taken, or will soon run out."""
    wait_s: float


def next_step(lease: Lease | None, poll: Poll, now_ms: int) -> Step:
    """What is to be done, as the store stands."""
    lease_ms = round(poll.lease_s * 1000)
    is_held = lease is not None and lease.holder == poll.holder
    if lease is None:
        return Step(True, poll.claim is not None, True, 0.0)
    # A clock that was set back must not keep the others away for longer than a lease.
    is_valid = now_ms < lease.until_ms <= now_ms + lease_ms
    if is_valid and not is_held:
        return Step(False, False, False, 0.0)
    passed_ms = now_ms - lease.polled_ms
    wait_ms = poll.interval_ms - passed_ms if passed_ms >= 0 else 0
    is_wanted = poll.is_forced or (wait_ms <= 0 and not lease.is_paused)
    is_time = poll.claim is not None and is_wanted
    is_to_keep = not is_held or not is_valid or lease.until_ms - now_ms < lease_ms // 2
    return Step(True, is_time, is_to_keep, max(0, wait_ms) / 1000)


def is_spent(state: str, job_id: str | None) -> bool:
    """Of a row of the cold store."""
    return state == "FAILED" and job_id == SPENT
