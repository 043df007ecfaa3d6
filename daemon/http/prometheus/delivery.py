"""What /metrics shows of delivery: sends, retries, how long all takes, workers, breakers."""

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
from forebay.failure_reason import FAILURE_REASONS

PHASES: Final = ("closed", "open", "half_open")
BOUNDS: Final = (*(repr(bound) for bound in SHOWN_BOUNDS_S), "+Inf")


def delivered(snapshot: Snapshot, name: Callable[[str], str]) -> dict[str, QueueFigures]:
    """By label."""
    return merged(snapshot.tallies, name, _add_figures)


def delivery(page: Page, label: str, figures: QueueFigures) -> None:
    """The lines of one queue; every family is named, also where there is nothing to show."""
    inner = label[:-1]
    for key, metric, text in _QUEUE_COUNTERS:
        page.counter(metric, text, getattr(figures, key), label)
    for key, metric, text in _ERROR_COUNTERS:
        family = page.family(f"{metric}_total", "counter", text)
        found: Mapping[ErrorType, int] = getattr(figures, key)
        for kind, items in sorted(found.items()):
            family.add(f'{inner},error="{kind}"}}', items)
    text = "Attempts of items that failed, by whose fault it was."
    failed = page.family("failed_items_total", "counter", text)
    for reason in FAILURE_REASONS:
        failed.add(f'{inner},reason="{reason}"}}', figures.failed.get(reason, 0))
    text = "The pauses before retries, one for each slice that failed."
    backoff = page.family("backoff_seconds", "summary", text)
    backoff.add_summary(label, figures.backoff_slices, figures.backoff_s)
    text = "How long items took from the start of their send (a consumer's lease) to its end."
    processing = page.family("processing_duration_seconds", "histogram", text)
    _add_distribution(processing, label, figures.processing)
    text = "How long items waited from when they were ready until somebody leased them."
    dequeue = page.family("dequeue_latency_seconds", "histogram", text)
    _add_distribution(dequeue, label, figures.dequeue)


def _add_distribution(family: Family, label: str, found: Distribution) -> None:
    if found != NOTHING:
        family.add_distribution(label, BOUNDS, found.cumulated(), found.sum_s)


_QUEUE_COUNTERS: Final = (
    ("batches", "sent_batches", "Sends that have ended since the start."),
    ("failed_batches", "failed_batches", "Those of which something failed."),
    ("retry_successes", "retry_success_items", "Items delivered that had failed before."),
    ("lost_leases", "lost_leases", "Outcomes that came after their lease had run out."),
)
_ERROR_COUNTERS: Final = (
    ("retried", "retried_items", "Items that failed and are tried again, by error."),
    ("retry_failures", "retry_failure_items", "Items that failed once more, by error."),
    ("died", "died_items", "Items that became dead letters since the start, by error."),
)


def working(snapshot: Snapshot, name: Callable[[str], str]) -> dict[str, Staff]:
    """By label."""
    return merged(snapshot.staff, name, _add_staff)


def staff(page: Page, label: str, found: Staff) -> None:
    """The lines of one queue."""
    text = "Workers of a queue; where preparing is split off, senders and preparers."
    workers = page.family("workers", "gauge", text)
    role = "sender" if found.preparers else "worker"
    workers.add(f'{label[:-1]},role="{role}"}}', found.alive)
    if found.preparers:
        workers.add(f'{label[:-1]},role="preparer"}}', found.preparers)
    page.gauge("workers_active", "Those that are sending: sends in flight.", found.busy, label)
    text = "How long a send takes, smoothed: the mean of the last few."
    latency = page.family("send_latency_ewma_seconds", "gauge", text)
    if found.latency_s is not None:
        latency.add(label, found.latency_s)


def breakers(page: Page, snapshot: Snapshot, labels: Labels) -> None:
    state = page.family("breaker_state", "gauge", "1 for the state that a breaker is in.")
    counts = {
        name: page.family(f"breaker_{name}_total", "counter", text)
        for name, text in _BREAKER_COUNTERS.items()
    }
    text = "Failures in a row, until the breaker closes."
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
    "opened": "How often a breaker has opened.",
    "rejected": "How often somebody who wanted to send was made to wait.",
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
