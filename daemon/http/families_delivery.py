"""What /metrics shows of delivery: sends, retries, how long all takes, workers, breakers."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import add
from typing import Any, Final

from actors.error_types import ErrorType
from actors.latencies import NOTHING, SHOWN_BOUNDS_S, Distribution
from actors.snapshot import QueueFigures, Snapshot
from actors.workers import Staff
from daemon.http.exposition import Family, Page, labelled
from daemon.http.label_values import Labels, add_counts, merged

PHASES: Final = ("closed", "open", "half_open")
BOUNDS: Final = (*(repr(bound) for bound in SHOWN_BOUNDS_S), "+Inf")


def delivery(
    page: Page, snapshot: Snapshot, name: Callable[[str], str], labels: Mapping[str, str]
) -> None:
    queues = merged(snapshot.tallies, name, _add_figures)
    for key, metric, text in _QUEUE_COUNTERS:
        family = page.family(f"{metric}_total", "counter", text)
        family.add_all((labels[queue], getattr(found, key)) for queue, found in queues.items())
    for key, metric, text in _ERROR_COUNTERS:
        for queue, figures in queues.items():
            found: Mapping[ErrorType, int] = getattr(figures, key)
            for kind, items in sorted(found.items()):
                page.counter(metric, text, items, labelled({"queue": queue, "error": kind}))
    text = "The pauses before retries, one for each slice that failed."
    backoff = page.family("backoff_seconds", "summary", text)
    text = "How long items took from the start of their send (a consumer's lease) to its end."
    processing = page.family("processing_duration_seconds", "histogram", text)
    text = "How long items waited from when they were ready until somebody leased them."
    dequeue = page.family("dequeue_latency_seconds", "histogram", text)
    for queue, figures in queues.items():
        backoff.add_summary(labels[queue], figures.backoff_slices, figures.backoff_s)
        _add_distribution(processing, labels[queue], figures.processing)
        _add_distribution(dequeue, labels[queue], figures.dequeue)


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


def staff(page: Page, snapshot: Snapshot, name: Callable[[str], str]) -> None:
    text = "Workers of a queue; where preparing is split off, senders and preparers."
    workers = page.family("workers", "gauge", text)
    active = page.family("workers_active", "gauge", "Those that are sending: sends in flight.")
    text = "How long a send takes, smoothed: the mean of the last few."
    latency = page.family("send_latency_ewma_seconds", "gauge", text)
    for queue, found in merged(snapshot.staff, name, _add_staff).items():
        role = "sender" if found.preparers else "worker"
        workers.add(labelled({"queue": queue, "role": role}), found.alive)
        if found.preparers:
            workers.add(labelled({"queue": queue, "role": "preparer"}), found.preparers)
        active.add(labelled({"queue": queue}), found.busy)
        if found.latency_s is not None:
            latency.add(labelled({"queue": queue}), found.latency_s)


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
