"""What is known about one QUEUE trigger between two looks, and when the next look is due. Pure.

Nothing is durable: what matters is in the cold store, where a restarted daemon finds it. A trigger
that fails waits longer each time, until one of its jobs is done.
"""

from dataclasses import dataclass
from typing import Final

from actors.config.triggers import QueueTrigger
from actors.ports.trigger_jobs import Polled, TriggerJob

LEASE_S: Final = 30.0
"""How long other daemons wait for a daemon that had a trigger and is gone."""
LOOK_S: Final = 5.0
"""How often a lease is checked, this daemon's or another's."""
LIVE_S: Final = 1.0
"""How often unfinished jobs are checked, and a queue of which no more may be claimed."""
BACKOFF_S_MAX: Final = 300.0

assert 2 * LOOK_S < LEASE_S


@dataclass(slots=True)
class Watch:
    look_at: float = 0.0
    poll_at: float = 0.0
    """No poll before this time: the trigger has failed."""
    is_ours: bool = False
    """This daemon had the lease at the last look."""
    is_held: bool = False
    """The queue is held for it."""
    is_paused: bool = False
    """No daemon claims for it."""
    failures: int = 0
    """Consecutive failures."""
    error: str = ""
    """The last error; empty: none."""
    last_job: TriggerJob | None = None


def backoff_s(interval_s: float, failures: int) -> float:
    """How long a trigger waits after this many consecutive failures."""
    if not failures:
        return 0.0
    return max(interval_s, min(BACKOFF_S_MAX, max(1.0, interval_s) * 2.0 ** min(failures, 30)))


def next_look_s(polled: Polled, backing_off_s: float) -> float:
    """How long until the next look. `backing_off_s`: the remaining wait after a failure."""
    if not polled.is_ours or polled.is_paused:
        return LOOK_S
    # 0: it was time, and there was no room. Try again soon.
    wait_s = backing_off_s if backing_off_s > 0 else polled.wait_s or LIVE_S
    return min(LOOK_S, wait_s)


def is_overdue(job: TriggerJob, trigger: QueueTrigger, now_ms: int) -> bool:
    """Whether the lease of an unfinished job has expired."""
    return job.fate is None and now_ms - job.made_ms > round(trigger.job_lease * 1000)
