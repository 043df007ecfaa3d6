"""Counts per queue since the daemon started: sends, retries and durations.

Plain numbers that workers, pull and settlement add to between awaits: one call per batch, a few
additions per slice, nothing per item. They outlive the worker groups that a change of settings
replaces. Nothing here is durable: these are rates to watch, and the books
(actors/model/books.py) are what must add up. What is to last of them is written by attempts.py.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from actors.model.error_types import ErrorType, error_type
from actors.model.latencies import Histogram
from actors.model.outcomes import Conclusion
from actors.model.slices import Slice
from actors.observers.batch import Batch
from actors.ports.tiers import Leased
from forebay.item import FailureReason

QUEUES_MAX: Final = 10_000
OTHER: Final = "other"
"""Where queues past that number are counted together. A queue of this name is not hidden: its own
counts are added to these."""


@dataclass(slots=True)
class QueueTally:
    batches: int = 0
    """Sends that have ended."""
    failed_batches: int = 0
    """Batches with at least one failed item."""
    retried: Counter[ErrorType] = field(default_factory=Counter)
    """Items that failed and will be retried, by kind of error."""
    retry_successes: int = 0
    """Items delivered on a later attempt. A dead letter that was retried starts at attempt 0 again
    and is not among them."""
    suspect_answers: int = 0
    """Batches whose answer seems to report errors in a form that is not understood."""
    retry_failures: Counter[ErrorType] = field(default_factory=Counter)
    """Items that failed again after an earlier failure."""
    died: Counter[ErrorType] = field(default_factory=Counter)
    """Items that became dead letters."""
    failed: Counter[FailureReason] = field(default_factory=Counter)
    """Failed attempts of items, retried or not, by whose fault it was."""
    backoff_slices: int = 0
    backoff_s: float = 0.0
    """The sum of their pauses."""
    lost_leases: int = 0
    """Outcomes that came after their lease had expired and changed nothing."""
    processing: Histogram = field(default_factory=Histogram)
    dequeue: Histogram = field(default_factory=Histogram)


class Tallies:
    def __init__(self) -> None:
        self.queues: dict[str, QueueTally] = {}

    def of(self, queue: str) -> QueueTally:
        tally = self.queues.get(queue)
        if tally is None:
            if len(self.queues) >= QUEUES_MAX:
                queue = OTHER
            tally = self.queues.setdefault(queue, QueueTally())
        return tally

    def leased(self, queue: str, leased: Sequence[Leased], now_ms: int) -> None:
        """Counts how long leased items had waited since they were ready."""
        dequeue = self.of(queue).dequeue
        for lease in leased:
            dequeue.add((now_ms - ready_ms(lease.slice)) / 1000, lease.slice.items)

    def sent(self, queue: str, items: int, took_s: float, *, is_failed: bool) -> None:
        """Counts a send that has ended, successfully or not."""
        tally = self.of(queue)
        tally.batches += 1
        tally.failed_batches += is_failed
        tally.processing.add(took_s, items)

    def pulled(self, queue: str, items: int, took_s: float) -> None:
        """Counts the report of a consumer on its lease."""
        self.of(queue).processing.add(took_s, items)

    def settled(self, batch: Batch) -> None:
        tally = self.of(batch.queue)
        for leased, conclusion in batch.ours:
            _conclude(tally, leased.slice, conclusion, batch.at_ms)
        tally.lost_leases += batch.answers.count(False)


def ready_ms(slice_: Slice) -> int:
    """Since when a slice waited only for a worker."""
    head = slice_.run.head
    return max(head.enqueued_ms, head.due_ms, slice_.due_ms)


def _conclude(tally: QueueTally, slice_: Slice, conclusion: Conclusion, now_ms: int) -> None:
    is_retry = slice_.attempt > 0
    if is_retry:
        tally.retry_successes += conclusion.delivered.bit_count()
    for again in conclusion.again:
        if again.attempt <= slice_.attempt:
            continue
        kind = error_type(again.errors[-1].text)
        tally.failed[again.errors[-1].failure_reason] += again.items
        tally.retried[kind] += again.items
        tally.backoff_slices += 1
        tally.backoff_s += max(0, again.due_ms - now_ms) / 1000
        if is_retry:
            tally.retry_failures[kind] += again.items
    for dead in conclusion.dead:
        kind = error_type(dead.errors[-1].text)
        tally.failed[dead.errors[-1].failure_reason] += dead.items
        tally.died[kind] += dead.items
        if is_retry:
            tally.retry_failures[kind] += dead.items
