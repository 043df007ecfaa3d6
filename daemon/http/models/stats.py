"""The statistics of a queue: the answer of `queue.stats` (actors/control/stats.py)."""

from pydantic import BaseModel, ConfigDict, Field


class Processing(BaseModel):
    """How long one item took from the start of its send to its outcome, in milliseconds."""

    items: int
    average_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


class Exceptions(BaseModel):
    """Attempts that failed, by their `failure_reason`."""

    application: int = Field(description="Timeouts, connections, exits, 5xx; also the default")
    business: int = Field(
        description="The handler or consumer said that the item asks for something impossible"
    )


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
        description="accepted + moved_in = delivered + dead + dropped + deleted + lost + held "
        "+ moved_out"
    )
    exceptions: Exceptions
    processing: Processing | None = Field(description="null: nothing was processed yet")
