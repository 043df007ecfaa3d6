"""A queue's figures: items by state, exceptions, and how long processing takes.

The counts are the books' (docs/operations.md); exceptions and processing times are the metrics',
of this life of the daemon.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from actors.latencies import Percentiles
from actors.metrics import Metrics

STATES: Final[Mapping[str, str]] = {
    "SPOOLED": "spooled",
    "SCHEDULED": "scheduled",
    "QUEUED": "warm",
    "COLD_QUEUED": "cold",
    "RUNNING": "running",
    "DONE": "delivered",
    "FAILED": "dead",
    "DELETED": "deleted",
}
"""Of an item, and what the books call how many there are."""


class Processing(BaseModel):
    """How long one item took from the start of its send to its outcome, in milliseconds."""

    items: int
    average_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


class Exceptions(BaseModel):
    """Attempts that failed: for want of the destination, or because it refused the item."""

    application: int = Field(description="Timeouts, connections, exits, 5xx, rate limits")
    business: int = Field(description="The destination looked at the item and refused it: 4xx")


class QueueStats(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "queue": "crm",
                    "states": {"SPOOLED": 0, "QUEUED": 1200, "RUNNING": 40, "DONE": 98000},
                    "books": {"accepted": 99240, "delivered": 98000, "held": 1240},
                    "exceptions": {"application": 12, "business": 3},
                    "processing": {
                        "items": 98015,
                        "average_ms": 41.0,
                        "p50_ms": 32.0,
                        "p95_ms": 120.5,
                        "p99_ms": 310.0,
                    },
                }
            ]
        }
    )

    queue: str
    states: dict[str, int]
    books: dict[str, int] = Field(
        description="accepted + moved_in = delivered + dead + dropped + deleted + held + moved_out"
    )
    exceptions: Exceptions
    processing: Processing | None = Field(description="null: nothing was processed yet")


def queue_stats(queue: str, report: Mapping[str, Any], metrics: Metrics) -> QueueStats:
    books: dict[str, int] = report["queues"].get(queue) or dict.fromkeys(report["daemon"], 0)
    failed = metrics.failed(queue)
    return QueueStats(
        queue=queue,
        states={state: books.get(name, 0) for state, name in STATES.items()},
        books=books,
        exceptions=Exceptions(application=failed.application, business=failed.business),
        processing=_processing(metrics.processing(queue)),
    )


def _processing(found: Percentiles | None) -> Processing | None:
    if found is None:
        return None
    return Processing(
        items=found.items,
        average_ms=round(found.average_s * 1000, 3),
        p50_ms=round(found.p50_s * 1000, 3),
        p95_ms=round(found.p95_s * 1000, 3),
        p99_ms=round(found.p99_s * 1000, 3),
    )
