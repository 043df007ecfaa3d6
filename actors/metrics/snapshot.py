"""What the metrics show at one moment: frozen, so that a thread can render it.

The books come from the report and add up as they do there. The tiers' counts per flow are read a
moment later and may differ by what has moved meanwhile.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from actors.breaker.breaker import BreakerFigures
from actors.model.error_types import ErrorType
from actors.model.latencies import Distribution
from actors.observers.tallies import QueueTally
from actors.ports.tiers import Fill, FlowCount, Limits, WarmFlow
from actors.spooler.upkeep import SpoolCounts
from actors.workers.group import Staff
from forebay.item import FailureReason

FlowKey = tuple[str, str, str]
"""Queue, flow and action."""


class FlowState(NamedTuple):
    """Waiting items of one queue, flow and action, by tier."""

    queue: str
    flow: str
    action: str
    warm: int
    cold: int
    """Items that are not in warm."""
    dead: int
    warm_oldest_ms: int | None
    cold_oldest_ms: int | None

    @property
    def oldest_ms(self) -> int | None:
        known = [at for at in (self.warm_oldest_ms, self.cold_oldest_ms) if at is not None]
        return min(known, default=None)


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """A queue's tally, frozen."""

    batches: int
    failed_batches: int
    retried: Mapping[ErrorType, int]
    retry_successes: int
    suspect_answers: int
    retry_failures: Mapping[ErrorType, int]
    died: Mapping[ErrorType, int]
    failed: Mapping[FailureReason, int]
    backoff_slices: int
    backoff_s: float
    lost_leases: int
    processing: Distribution
    dequeue: Distribution


@dataclass(frozen=True, slots=True)
class Snapshot:
    at_ms: int
    report: Mapping[str, Any]
    """As `forebay stats --json`."""
    defined: frozenset[str]
    """Queues that are configured or were defined at run time."""
    fills: Mapping[str, Fill]
    limits: Mapping[str, Limits]
    flows: Sequence[FlowState]
    tallies: Mapping[str, QueueFigures]
    staff: Mapping[str, Staff]
    """Of queues that have workers."""
    breakers: Mapping[str, BreakerFigures]
    spool: SpoolCounts
    """A copy."""
    stores: Mapping[str, bool]
    """Whether each store is up."""
    ingest: Mapping[str, Any]
    sends_in_flight: int
    sends_waiting: int
    pull_leases: int


def freeze(tally: QueueTally) -> QueueFigures:
    return QueueFigures(
        batches=tally.batches,
        failed_batches=tally.failed_batches,
        retried=dict(tally.retried),
        retry_successes=tally.retry_successes,
        suspect_answers=tally.suspect_answers,
        retry_failures=dict(tally.retry_failures),
        died=dict(tally.died),
        failed=dict(tally.failed),
        backoff_slices=tally.backoff_slices,
        backoff_s=tally.backoff_s,
        lost_leases=tally.lost_leases,
        processing=tally.processing.frozen(),
        dequeue=tally.dequeue.frozen(),
    )


def merge_flows(
    warm: Iterable[WarmFlow], cold: Iterable[FlowCount], oldest: Mapping[FlowKey, int]
) -> list[FlowState]:
    """Counts by queue, flow and action. Rows in warm still belong to the cold store; they are
    counted once, as warm."""
    in_warm = {(flow.queue, flow.flow, flow.action): flow for flow in warm}
    in_cold = {(flow.queue, flow.flow, flow.action): flow for flow in cold}
    merged = []
    for key in sorted(in_warm.keys() | in_cold.keys()):
        here, there = in_warm.get(key), in_cold.get(key)
        waiting = here.waiting if here else 0
        in_store = max(0, there.items - (here.from_cold if here else 0)) if there else 0
        dead = there.dead if there else 0
        if waiting or in_store or dead:
            merged.append(
                FlowState(
                    *key,
                    warm=waiting,
                    cold=in_store,
                    dead=dead,
                    warm_oldest_ms=here.oldest_ms if here else None,
                    cold_oldest_ms=oldest.get(key) if in_store else None,
                )
            )
    return merged
