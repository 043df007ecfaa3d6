"""What was counted of every queue since the daemon started: sends, retries, and how long all took.

Plain numbers that workers, consumers' leases and settlement add to between awaits: one call for a
batch, a few additions for each slice of it, nothing for an item. They outlive the groups of workers
that a change of settings replaces. Nothing is durable: these are rates to be watched, and the books
(actors/model/books.py) are what must add up.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from actors.model.error_types import ErrorType, error_type
from actors.model.outcomes import Conclusion
from actors.model.slices import Slice
from actors.observers.latencies import Histogram
from actors.observers.observers import Batch
from actors.ports.tiers import Leased
from forebay.failure_reason import FailureReason

QUEUES_MAX: Final = 10_000
OTHER: Final = "other"
"""What is counted of queues past that number, in one place. No queue of that name is hidden: its
own counts are added to these."""


@dataclass(slots=True)
class QueueTally:
    batches: int = 0
    """Sends that have ended."""
    failed_batches: int = 0
    """Those of which something failed."""
    retried: Counter[ErrorType] = field(default_factory=Counter)
    """Items that failed and will be tried again, by what they failed with."""
    retry_successes: int = 0
    """Items that were delivered after they had failed before."""
    retry_failures: Counter[ErrorType] = field(default_factory=Counter)
    """Items that had failed before and failed again."""
    died: Counter[ErrorType] = field(default_factory=Counter)
    """Items that became dead letters."""
    failed: Counter[FailureReason] = field(default_factory=Counter)
    """Attempts of items that failed, tried again or not, by whose fault it was."""
    backoff_slices: int = 0
    backoff_s: float = 0.0
    """The pauses that these were given, added up."""
    lost_leases: int = 0
    """Outcomes that came after their lease had run out, and changed nothing."""
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
        """Somebody has these in hand: how long they had waited, from when they were ready."""
        dequeue = self.of(queue).dequeue
        for lease in leased:
            dequeue.add((now_ms - ready_ms(lease.slice)) / 1000, lease.slice.items)

    def sent(self, queue: str, items: int, took_s: float, *, is_failed: bool) -> None:
        """A send has ended, well or not."""
        tally = self.of(queue)
        tally.batches += 1
        tally.failed_batches += is_failed
        tally.processing.add(took_s, items)

    def pulled(self, queue: str, items: int, took_s: float) -> None:
        """A consumer has reported on what it had leased."""
        self.of(queue).processing.add(took_s, items)

    def settled(self, batch: Batch) -> None:
        tally = self.of(batch.queue)
        for leased, conclusion in batch.ours:
            _conclude(tally, leased.slice, conclusion, batch.at_ms)
        tally.lost_leases += batch.answers.count(False)


def ready_ms(slice_: Slice) -> int:
    """From when on a slice waited for nothing but a worker."""
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
