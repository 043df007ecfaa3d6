"""The delivery part of /metrics: sends, retries, latencies, workers and breakers."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import add
from typing import Any, Final

from actors.metrics.snapshot import QueueFigures, Snapshot
from actors.model.error_types import ErrorType
from actors.observers.latencies import NOTHING, SHOWN_BOUNDS_S, Distribution
from actors.workers.workers import Staff
from daemon.http.prometheus.exposition import Family, Page, labelled
from daemon.http.prometheus.label_values import Labels, add_counts, merged
from forebay.item import FAILURE_REASONS

PHASES: Final = ("closed", "open", "half_open")
BOUNDS: Final = (*(repr(bound) for bound in SHOWN_BOUNDS_S), "+Inf")


def delivered(snapshot: Snapshot, name: Callable[[str], str]) -> dict[str, QueueFigures]:
    """By label."""
    return merged(snapshot.tallies, name, _add_figures)


def delivery(page: Page, label: str, figures: QueueFigures) -> None:
    """Adds the lines of one queue. Names every family, even one without samples."""
    inner = label[:-1]
    for key, metric, text in _QUEUE_COUNTERS:
        page.counter(metric, text, getattr(figures, key), label)
    for key, metric, text in _ERROR_COUNTERS:
        family = page.family(f"{metric}_total", "counter", text)
        found: Mapping[ErrorType, int] = getattr(figures, key)
        for kind, items in sorted(found.items()):
            family.add(f'{inner},error="{kind}"}}', items)
    text = "Failed delivery attempts of items, by failure reason."
    failed = page.family("failed_items_total", "counter", text)
    for reason in FAILURE_REASONS:
        failed.add(f'{inner},reason="{reason}"}}', figures.failed.get(reason, 0))
    text = "Pauses before retries, one per failed slice."
    backoff = page.family("backoff_seconds", "summary", text)
    backoff.add_summary(label, figures.backoff_slices, figures.backoff_s)
    text = "Time per item from the start of its send (or a consumer's lease) to its end."
    processing = page.family("processing_duration_seconds", "histogram", text)
    _add_distribution(processing, label, figures.processing)
    text = "Time per item from when it was ready until a worker or consumer leased it."
    dequeue = page.family("dequeue_latency_seconds", "histogram", text)
    _add_distribution(dequeue, label, figures.dequeue)


def _add_distribution(family: Family, label: str, found: Distribution) -> None:
    if found != NOTHING:
        family.add_distribution(label, BOUNDS, found.cumulated(), found.sum_s)


_QUEUE_COUNTERS: Final = (
    ("batches", "sent_batches", "Sends that have ended since the daemon started."),
    ("failed_batches", "failed_batches", "Sends in which at least one item failed."),
    ("retry_successes", "retry_success_items", "Items delivered after an earlier failure."),
    ("lost_leases", "lost_leases", "Outcomes reported after their lease had expired."),
)
_ERROR_COUNTERS: Final = (
    ("retried", "retried_items", "Failed items that are retried, by error."),
    ("retry_failures", "retry_failure_items", "Items that failed again on a retry, by error."),
    ("died", "died_items", "Items that became dead letters since the daemon started, by error."),
)


def working(snapshot: Snapshot, name: Callable[[str], str]) -> dict[str, Staff]:
    """By label."""
    return merged(snapshot.staff, name, _add_staff)


def staff(page: Page, label: str, found: Staff) -> None:
    """The lines of one queue."""
    text = "Workers per queue; with pipeline_split, senders and preparers."
    workers = page.family("workers", "gauge", text)
    role = "sender" if found.preparers else "worker"
    workers.add(f'{label[:-1]},role="{role}"}}', found.alive)
    if found.preparers:
        workers.add(f'{label[:-1]},role="preparer"}}', found.preparers)
    page.gauge("workers_active", "Sends in flight per queue.", found.busy, label)
    text = "Duration of a send: moving average of the latest sends."
    latency = page.family("send_latency_ewma_seconds", "gauge", text)
    if found.latency_s is not None:
        latency.add(label, found.latency_s)


def breakers(page: Page, snapshot: Snapshot, labels: Labels) -> None:
    text = "1 for the current state of a breaker, 0 for the others."
    state = page.family("breaker_state", "gauge", text)
    counts = {
        name: page.family(f"breaker_{name}_total", "counter", text)
        for name, text in _BREAKER_COUNTERS.items()
    }
    text = "Consecutive failures of a destination."
    failures = page.family("breaker_failures", "gauge", text)
    together: dict[str, dict[str, int]] = {}
    for destination, figures in snapshot.breakers.items():
        entry = together.setdefault(labels.destination(destination), {})
        found = {phase: int(figures.phase == phase) for phase in PHASES}
        found |= {name: getattr(figures, f"{name}_total") for name in counts}
        found["failures"] = figures.failures
        for key, value in found.items():
            entry[key] = entry.get(key, 0) + value
    for destination, entry in together.items():
        label = labelled({"destination": destination})
        for phase in PHASES:
            state.add(labelled({"destination": destination, "state": phase}), entry[phase])
        for name, family in counts.items():
            family.add(label, entry[name])
        failures.add(label, entry["failures"])


_BREAKER_COUNTERS: Final = {
    "opened": "How many times a breaker has opened.",
    "rejected": "How many times a breaker made a sender wait.",
}


def _add_figures(one: QueueFigures, other: QueueFigures) -> QueueFigures:
    added: dict[str, Any] = {}
    for each in fields(QueueFigures):
        left, right = getattr(one, each.name), getattr(other, each.name)
        together = add_counts if isinstance(left, dict) else add
        added[each.name] = together(left, right)
    return QueueFigures(**added)


def _add_staff(one: Staff, other: Staff) -> Staff:
    latencies = [each.latency_s for each in (one, other) if each.latency_s is not None]
    return Staff(
        one.alive + other.alive,
        one.busy + other.busy,
        one.preparers + other.preparers,
        max(latencies, default=None),
    )
