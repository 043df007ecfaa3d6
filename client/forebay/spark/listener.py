"""What streaming queries do with forebay, in the log and as gauges: backlog and receipts.

    forebay.spark.listen(spark)

For each micro-batch of a query that reads a queue there is a line of the logger `forebay.spark`:
the claim it has read, and how many items wait behind it. For a query that writes to a queue there
is one with the receipt of its newest write, at most every `receipt_every_s` seconds and when the
query ends: asking for it is a small Spark job, and Spark's events wait for the listener meanwhile.
If `prometheus_client` is installed, the figures are gauges of its registry as well; the application
serves them.

Spark calls the listener in a thread of its own, some time after the event. The listener owns
nothing. A failure here is logged, and the query goes on.

It does not see the receipts of writes inside foreachBatch: those are not the query's own.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from forebay.receipts import Receipt
from forebay.spark.receipts import last_receipt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

log = logging.getLogger("forebay.spark")

RECEIPT_EVERY_S: Final = 30.0
OUTCOMES: Final = ("accepted", "delivered", "dead", "dropped", "deleted", "lost", "pending")
_PYTHON_SINK: Final = "PythonTable"
"""All that Spark tells of a sink in Python; whether it is a queue, the receipt tells."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The position of a stream's reader."""

    queue: str
    consumer: str
    claim: int
    items: int
    """How many wait behind the claim."""


def listen(spark: "SparkSession", *, receipt_every_s: float = RECEIPT_EVERY_S) -> "ForebayListener":
    """Follows all streaming queries of this session from now on."""
    listener = ForebayListener(
        lambda: last_receipt(spark), receipt_every_s=receipt_every_s, gauges=Gauges()
    )
    spark.streams.addListener(listener)
    return listener


class ForebayListener(StreamingQueryListener):
    """Made by `listen`; `spark.streams.removeListener` ends it."""

    def __init__(
        self,
        ask_receipt: Callable[[], Receipt | None],
        *,
        receipt_every_s: float = RECEIPT_EVERY_S,
        gauges: "Gauges | None" = None,
    ) -> None:
        self._ask_receipt = ask_receipt
        self._receipt_every_s = receipt_every_s
        self._gauges = gauges
        self._asked_at: dict[str, float] = {}
        """When the receipt was last asked for, by query that writes."""

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:
        pass

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:
        progress = event.progress
        for backlog in backlogs(progress):
            log.info(
                "query %s batch %d: claim %d of queue %s is read by %s, %d items wait behind it",
                progress.name or progress.id,
                progress.batchId,
                backlog.claim,
                backlog.queue,
                backlog.consumer,
                backlog.items,
            )
            if self._gauges is not None:
                self._gauges.show_backlog(backlog)
        if _PYTHON_SINK in progress.sink.description:
            query, now = str(progress.id), monotonic()
            asked_at = self._asked_at.get(query)
            if asked_at is None or now - asked_at >= self._receipt_every_s:
                self._asked_at[query] = now
                self._tell_receipt(query)

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:
        query = str(event.id)
        if self._asked_at.pop(query, None) is not None:
            self._tell_receipt(query)

    def _tell_receipt(self, query: str) -> None:
        try:
            receipt = self._ask_receipt()
        except Exception as problem:  # Spark's errors have no common root; the query goes on.
            log.warning("query %s: its receipt cannot be asked for: %s", query, problem)
            return
        if receipt is None or not is_of(receipt, query):
            return
        log.info(
            "query %s batch %s: receipt %s: %s",
            query,
            receipt.version,
            receipt.write.hex(),
            ", ".join(f"{outcome} {getattr(receipt, outcome)}" for outcome in OUTCOMES),
        )
        if self._gauges is not None:
            self._gauges.show_receipt(query, receipt)


class Gauges:
    """In the default registry of prometheus_client; nothing where that is not installed."""

    _made: dict[str, Any] = {}  # noqa: RUF012  A registry takes each name once.

    def __init__(self) -> None:
        try:
            from prometheus_client import Gauge
        except ImportError:
            return
        for name, text, labels in (
            ("backlog", "Items that wait behind a stream's claim", ["queue", "consumer"]),
            (
                "receipt",
                "Items of a query's newest write",
                ["query", "outcome"],
            ),
        ):
            if name not in self._made:
                self._made[name] = Gauge(f"forebay_spark_{name}_items", text, labels)

    def show_backlog(self, backlog: Backlog) -> None:
        if gauge := self._made.get("backlog"):
            gauge.labels(backlog.queue, backlog.consumer).set(backlog.items)

    def show_receipt(self, query: str, receipt: Receipt) -> None:
        if gauge := self._made.get("receipt"):
            for outcome in OUTCOMES:
                gauge.labels(query, outcome).set(getattr(receipt, outcome))


def backlogs(progress: "StreamingQueryProgress") -> list[Backlog]:
    """Of the query's sources that are queues: their latest offset has just these members."""
    found = []
    for source in progress.sources:
        try:
            offset = json.loads(source.latestOffset)
            found.append(
                Backlog(offset["queue"], offset["consumer"], offset["claim"], offset["backlog"])
            )
        except (ValueError, KeyError, TypeError):  # Another kind of source.
            continue
    return found


def is_of(receipt: Receipt, query: str) -> bool:
    """Whether the write is a micro-batch of this query: its transaction names it."""
    return receipt.app is not None and receipt.app.endswith(f"-{query}")
