"""A queue's figures: items by state, the books, failures by reason, and processing times.

The counts come from the books (docs/operations.md). Failures and processing times are those of all
attempts of all daemons that share the cold store (actors/observers/attempts.py). Both survive
restarts. `queues.stats` over the socket and the HTTP API return the same.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from actors.metrics.books import BooksReport
from actors.metrics.metrics import in_milliseconds
from actors.model.attempts import Attempts

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


def queue_stats(queue: str, report: BooksReport, attempts: Attempts) -> dict[str, Any]:
    books = cast(dict[str, int], report["queues"].get(queue) or dict.fromkeys(report["daemon"], 0))
    took = attempts.processing
    return {
        "queue": queue,
        "states": {state: books.get(name, 0) for state, name in STATES.items()},
        "books": books,
        "exceptions": {"application": attempts.application, "business": attempts.business},
        "processing": in_milliseconds(took.percentiles()) if took.items else None,
    }
