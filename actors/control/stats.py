"""A queue's figures: items by state, the books, failures by reason, and processing times.

The counts come from the books (docs/operations.md) and survive restarts. Failures and processing
times come from the metrics and start at 0 with the daemon. `queue.stats` over the socket and the
HTTP API return the same. It owns nothing and may be cancelled at any await.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from actors.metrics.books import BooksReport
from actors.metrics.metrics import Metrics, in_milliseconds

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
"""State of an item, and the name of its count in the books."""


def queue_stats(queue: str, report: BooksReport, metrics: Metrics) -> dict[str, Any]:
    books = cast(dict[str, int], report["queues"].get(queue) or dict.fromkeys(report["daemon"], 0))
    processing = metrics.processing(queue)
    return {
        "queue": queue,
        "states": {state: books.get(name, 0) for state, name in STATES.items()},
        "books": books,
        "exceptions": metrics.failed(queue)._asdict(),
        "processing": None if processing is None else in_milliseconds(processing),
    }
