"""Sizing: pure functions from measured figures to recommended settings.

The formulae are those of docs/operations.md, "Sizing by the event log": Little's law for workers,
and for warm the items that must be ready between two looks of the promoter. They do not know how
much load a destination can take: with more workers than it can serve, each answer only gets slower.
"""

import math
from dataclasses import dataclass
from typing import Final

UTILISATION: Final = 0.7
"""The share of the workers' time that may be planned: above it waits grow steeply."""
TICK_S: Final = 5.0
"""The promoter looks at the cold store at least that often."""
OUTAGE_S: Final = 3600.0
"""Disk is recommended for a destination that is away that long."""
BUSY: Final = 0.85
RATE_NEAR: Final = 0.9
SHARE_WORTH_SAYING: Final = 0.05
WAIT_WORTH_SAYING_MS: Final = 1000.0


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """The measured figures of a queue, all hosts together."""

    queue: str
    delivered: float
    retried: float
    dead: float
    arrival_mean: float
    """Items per second."""
    arrival_peak: float
    """The 95th percentile of the time steps."""
    sends: float
    send_s: float
    """Mean seconds per send."""
    batch: float
    """Mean items per send."""
    item_bytes: float
    busy_s: float
    """Of all workers together."""
    active_s: float
    """Time in which anything was sent."""
    wait_p95_ms: float
    processing_p95_ms: float
    workers: int
    """0: not known, or none, since consumers pull."""
    batch_max: int
    rate_limit: float
    warm_max_items: int
    open_share: float
    """The share of the time in which the breaker of its destination was not closed."""

    @property
    def is_pulled(self) -> bool:
        return not self.sends or not self.send_s

    @property
    def utilisation(self) -> float:
        """The share of the workers' time that was spent sending, while anything was sent."""
        if not self.workers or not self.active_s:
            return 0.0
        return self.busy_s / (self.workers * self.active_s)

    @property
    def capacity(self) -> float:
        """Items per second that the workers can send; 0: not known."""
        return 0.0 if self.is_pulled else self.workers * self.batch / self.send_s

    @property
    def tries(self) -> float:
        return self.delivered + self.retried + self.dead


@dataclass(frozen=True, slots=True)
class Recommendation:
    queue: str
    workers: int
    warm_max_items: int
    warm_max_bytes: int
    disk_bytes: int
    """For `OUTAGE_S` without the destination."""
    capacity: float
    """Of the recommended workers, in items per second."""
    catch_up_s: float
    """How long it takes to send what arrives in `OUTAGE_S`, while new items keep coming."""


def recommend(load: QueueLoad) -> Recommendation:
    disk_bytes = math.ceil(load.arrival_mean * load.item_bytes * OUTAGE_S)
    if load.is_pulled:
        warm = _rounded(load.arrival_peak * TICK_S)
        return Recommendation(
            load.queue, 0, warm, math.ceil(warm * load.item_bytes), disk_bytes, 0.0, 0.0
        )
    workers = max(1, math.ceil(load.arrival_peak * load.send_s / load.batch / UTILISATION))
    capacity = workers * load.batch / load.send_s
    if load.rate_limit:
        capacity = min(capacity, load.rate_limit)
    warm = _rounded(2 * workers * max(load.batch, load.batch_max) + load.arrival_peak * TICK_S)
    spare = capacity - load.arrival_mean
    catch_up_s = load.arrival_mean * OUTAGE_S / spare if spare > 0 else math.inf
    return Recommendation(
        queue=load.queue,
        workers=workers,
        warm_max_items=warm,
        warm_max_bytes=math.ceil(warm * load.item_bytes),
        disk_bytes=disk_bytes,
        capacity=capacity,
        catch_up_s=catch_up_s,
    )


def bottlenecks(load: QueueLoad) -> list[str]:
    """What slows the queue down, the most important first; empty if nothing does."""
    found: list[str] = []
    is_slow = load.wait_p95_ms > max(WAIT_WORTH_SAYING_MS, 2 * load.processing_p95_ms)
    if load.open_share > SHARE_WORTH_SAYING:
        found.append(
            f"Its destination was away: the breaker was not closed {load.open_share:.0%} of the "
            "time. Items wait meanwhile, and spend no attempt."
        )
    if load.rate_limit and load.delivered / max(load.active_s, 1e-9) > RATE_NEAR * load.rate_limit:
        found.append(
            f"The rate limit: {load.rate_limit:g} items a second are allowed, and used. Neither "
            "workers nor batches change that."
        )
    elif load.utilisation > BUSY:
        found.append(_workers_are_busy(load))
    elif is_slow and load.workers and load.open_share <= SHARE_WORTH_SAYING:
        found.append(
            f"Items wait although workers are idle {1 - load.utilisation:.0%} of the time: look "
            "for pauses, for warm_max_items that is too small, and at the disk of the cold store."
        )
    if load.tries and (load.retried + load.dead) / load.tries > SHARE_WORTH_SAYING:
        share = (load.retried + load.dead) / load.tries
        found.append(
            f"{share:.0%} of what is sent fails, and is mostly sent again: the errors below say "
            "why. That work is lost to items that wait."
        )
    return found


def _workers_are_busy(load: QueueLoad) -> str:
    text = (
        f"Its workers are busy {min(1.0, load.utilisation):.0%} of the time: at "
        f"{load.send_s * 1000:,.0f} ms a send they can do {load.capacity:,.0f} items a second."
    )
    if load.batch_max and load.batch > 0.8 * load.batch_max:
        return text + " Batches are full: larger ones (batch_items) may help as much as workers."
    return text + " More workers help, if the destination bears them."


def _rounded(items: float) -> int:
    """Rounded to two digits: the estimate is not more exact than that."""
    whole = max(100, math.ceil(items))
    unit: int = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // unit) * unit
