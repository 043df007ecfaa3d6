"""The listener: backlog and receipts of streaming queries, in the log and as gauges."""

import logging
import re
from collections.abc import Iterator
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue

import pytest
from prometheus_client import REGISTRY
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from forebay import connect
from forebay.receipts import Receipt
from forebay.spark.listener import Backlog, ForebayListener, backlogs, is_of, listen
from tests.daemon.cli.commands import HANG_S, Host
from tests.eventually import eventually_sync
from tests.spark.drain_driver import stream

Said = SimpleQueue[logging.LogRecord]


@pytest.fixture
def said() -> Iterator[Said]:
    """What the listener says: Spark calls it in a thread of its own, some time."""
    records: Said = SimpleQueue()
    handler = QueueHandler(records)
    log = logging.getLogger("forebay.spark")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield records
    log.setLevel(level)
    log.removeHandler(handler)


def wait_for(said: Said, pattern: str) -> re.Match[str]:
    """The next line that is like this."""
    while True:
        if match := re.search(pattern, said.get(timeout=HANG_S).getMessage()):
            return match


def until_gauge(name: str, value: float, **labels: str) -> None:
    """A gauge is set after the line that says the same."""

    def shown() -> None:
        assert REGISTRY.get_sample_value(name, labels) == value

    eventually_sync(shown)


def copy(spark: SparkSession, host: Host, queue: str, place: Path) -> StreamingQuery:
    """From a queue to another."""
    rows = stream(spark, host.socket, queue, "copier", maxItemsPerTrigger="200")
    writer = rows.writeStream.format("forebay").queryName("copy")
    writer = writer.options(queue=f"{queue}-copy", payload="payload", socket=str(host.socket))
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_backlog_and_receipt_are_said(
    spark: SparkSession, host: Host, queue: str, tmp_path: Path, said: Said
) -> None:
    with connect(host.socket) as client:
        # All of it is there to be claimed when the query begins.
        client.claim(queue, "copier", after=0, items=0)
        client.push(queue, [b"%d" % number for number in range(300)], run_items=100)
    host.until_counts(queue, cold=300)
    listener = listen(spark)
    try:
        query = copy(spark, host, queue, tmp_path)
        batch = "query copy batch %d: claim %d of queue %s is read by copier, %d items wait"
        wait_for(said, batch % (0, 1, queue, 100))
        wait_for(said, batch % (1, 2, queue, 0))
        last = wait_for(said, rf"query {query.id} batch 1: receipt ([0-9a-f]{{32}}): accepted 100,")
        with connect(host.socket) as client:
            receipt = client.receipt(last[1])
        assert (receipt.accepted, receipt.pending, receipt.version) == (100, 100, 1)
        until_gauge("forebay_spark_backlog_items", 0, queue=queue, consumer="copier")
        until_gauge("forebay_spark_receipt_items", 100, query=str(query.id), outcome="pending")
    finally:
        spark.streams.removeListener(listener)


def test_a_receipt_that_cannot_be_had_is_said_and_nothing_more(
    spark: SparkSession, host: Host, queue: str, tmp_path: Path, said: Said
) -> None:
    with connect(host.socket) as client:
        client.push(queue, ["x"])
    progress = copy(spark, host, queue, tmp_path).lastProgress
    assert isinstance(progress, StreamingQueryProgress)
    asked = []

    def ask() -> Receipt | None:
        asked.append(1)
        raise ConnectionError("nobody there")

    listener = ForebayListener(ask, receipt_every_s=3600)
    listener.onQueryProgress(QueryProgressEvent(progress))
    wait_for(said, "its receipt cannot be asked for: nobody there")
    listener.onQueryProgress(QueryProgressEvent(progress))
    assert len(asked) == 1  # Not again before its time.
    assert backlogs(progress) == [Backlog(queue, "copier", 1, 0)]


def test_a_receipt_of_another_query_is_not_this_ones() -> None:
    receipt = Receipt(bytes(16), 0, "spark-stream-a", 3, ("q",), 0, 0, 0, 0, 0, 0, 0)
    assert is_of(receipt, "a")
    assert not is_of(receipt, "b")
    assert not is_of(Receipt(bytes(16), 0, None, None, ("q",), 0, 0, 0, 0, 0, 0, 0), "a")
