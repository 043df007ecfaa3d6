"""What is known of one QUEUE trigger between two looks, and when the next one is due. Pure.

Nothing of it is durable: what matters is in the cold store, and a daemon that starts anew finds it
there. A trigger that fails waits longer each time, until one of its jobs is done.
"""

from dataclasses import dataclass
from typing import Final

from actors.config.triggers import QueueTrigger
from actors.ports.trigger_jobs import Polled, TriggerJob

LEASE_S: Final = 30.0
"""So long the others wait for a daemon that had a trigger and is gone."""
LOOK_S: Final = 5.0
"""So often a lease is looked at, ours or another's."""
LIVE_S: Final = 1.0
"""So often jobs that are not done are looked at; and a queue of which no more may be claimed."""
BACKOFF_S_MAX: Final = 300.0

assert 2 * LOOK_S < LEASE_S


@dataclass(slots=True)
class Watch:
    look_at: float = 0.0
    poll_at: float = 0.0
    """Not before: the trigger has failed."""
    is_ours: bool = False
    """This daemon had the lease when it last looked."""
    is_held: bool = False
    """The queue is kept for it."""
    is_paused: bool = False
    """Nothing is claimed for it, by any daemon."""
    failures: int = 0
    """In a row."""
    error: str = ""
    """The last one; empty: all is well."""
    last_job: TriggerJob | None = None


def backoff_s(interval_s: float, failures: int) -> float:
    """How long a trigger waits that has failed so many times in a row."""
    if not failures:
        return 0.0
    return max(interval_s, min(BACKOFF_S_MAX, max(1.0, interval_s) * 2.0 ** min(failures, 30)))


def next_look_s(polled: Polled, backing_off_s: float) -> float:
    """How long until the trigger is looked at again. `backing_off_s`: it has failed, and waits."""
    if not polled.is_ours or polled.is_paused:
        return LOOK_S
    # 0: it was time, and there was no room. It is tried again soon.
    wait_s = backing_off_s if backing_off_s > 0 else polled.wait_s or LIVE_S
    return min(LOOK_S, wait_s)


def is_overdue(job: TriggerJob, trigger: QueueTrigger, now_ms: int) -> bool:
    """Whether the lease of a job that is not done has run out."""
    return job.fate is None and now_ms - job.made_ms > round(trigger.job_lease * 1000)
