"""`spark.readStream`: every item once, by claims, whatever is killed on the way."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, StructField, StructType

from forebay import ForebayError, connect
from forebay.spark.stream_reader import ForebayStreamReader
from tests.daemon.cli.commands import Host, running
from tests.eventually import eventually_sync
from tests.spark import drain_driver
from tests.spark.drain_driver import stream

Each = Callable[[DataFrame, int], None]


def push(
    host: Host, queue: str, consumer: str, numbers: Iterable[int], run_items: int = 100
) -> None:
    """To a queue that this consumer reads: returns when all of it can be claimed, so that what is
    in a claim does not depend on how much was on its way."""
    with connect(host.socket) as client:
        if not client.stream_status(queue, consumer).acknowledged:
            client.claim(queue, consumer, after=0, items=0)
        client.push(queue, (b"%d" % number for number in numbers), run_items=run_items)
    host.until_counts(queue, spooled=0, warm=0)


def drain(rows: DataFrame, directory: Path, each: Each | None = None) -> StreamingQuery:
    """Reads what there is, to Parquet by Spark's own sink, or as `each` says."""
    writer = rows.writeStream.option("checkpointLocation", str(directory / "checkpoint"))
    writer = writer.trigger(availableNow=True)
    if each is None:
        query = writer.format("parquet").start(str(directory / "out"))
    else:
        query = writer.foreachBatch(each).start()
    query.awaitTermination()
    return query


def numbers(rows: DataFrame) -> list[int]:
    """What was pushed, in order; the ids of as many different items."""
    found = rows.select(F.col("payload").cast("string").cast("int").alias("n"), "id").collect()
    assert len({row.id for row in found}) == len({row.n for row in found})
    return sorted(row.n for row in found)


def until_delivered(host: Host, queue: str, items: int) -> None:
    """Waits until so many are; the books balance at every look."""

    def delivered() -> None:
        with connect(host.socket) as client:
            books = client.stats()["queues"][queue]
        if books["accepted"] != books["delivered"] + books["held"]:
            pytest.fail(f"the books do not balance: {books}")
        assert books["delivered"] == items, books

    eventually_sync(delivered)


def wait_until_said(driver: "subprocess.Popen[bytes]", lines: set[bytes]) -> None:
    assert driver.stdout is not None
    said: set[bytes] = set()
    while said != lines:
        line = driver.stdout.readline()
        assert line, f"the driver ended with {driver.wait()}"
        said.add(line.strip())


def test_a_driver_killed_inside_a_batch_or_between_two_leaves_each_item_once(
    host: Host, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One driver with two queries: one has written a batch and not committed it, the other waits
    for its next trigger."""
    inside, between = tmp_path / "inside", tmp_path / "between"
    for name in ("inside", "between"):
        push(host, f"killed-{name}", name, range(1000))
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.drain_driver", str(host.socket), str(tmp_path)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        # The driver's session and this one take their time at the same time.
        spark: SparkSession = request.getfixturevalue("spark")
        wait_until_said(driver, {b"inside", b"between"})
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        assert driver.stdout is not None
        driver.stdout.close()
    until_delivered(host, "killed-inside", 300)
    until_delivered(host, "killed-between", 0)  # It is in Spark's commit log, and not asked on.

    query = drain_driver.start_inside(spark, str(host.socket), inside, lambda batch_id: None)
    query.awaitTermination()
    drain(stream(spark, host.socket, "killed-between", "between"), between)
    for place, name in ((inside, "inside"), (between, "between")):
        assert numbers(spark.read.parquet(str(place / "out"))) == list(range(1000))
        until_delivered(host, f"killed-{name}", 1000)


def test_a_queue_is_drained_to_parquet_exactly_once(
    spark: SparkSession, host: Host, queue: str, tmp_path: Path
) -> None:
    push(host, queue, "drain", range(2500))
    rows = stream(spark, host.socket, queue, "drain", maxItemsPerTrigger="1000", partitions="3")
    query = drain(rows, tmp_path)
    assert [progress.numInputRows for progress in query.recentProgress] == [1000, 1000, 500]
    # The last claim is acknowledged although nothing came after it.
    until_delivered(host, queue, 2500)

    push(host, queue, "drain", range(2500, 2600))
    again = drain(rows, tmp_path)
    assert [progress.numInputRows for progress in again.recentProgress] == [100]
    assert numbers(spark.read.parquet(str(tmp_path / "out"))) == list(range(2600))
    until_delivered(host, queue, 2600)


def test_the_progress_of_a_query_shows_the_backlog(
    spark: SparkSession, host: Host, queue: str, tmp_path: Path
) -> None:
    push(host, queue, "watched", range(500))
    rows = stream(spark, host.socket, queue, "watched", maxItemsPerTrigger="200")
    query = drain(rows, tmp_path)
    offsets = [progress.sources[0].latestOffset for progress in query.recentProgress]
    assert [drain_driver.as_offset(offset) for offset in offsets] == [
        {"queue": queue, "consumer": "watched", "claim": claim, "backlog": backlog}
        for claim, backlog in [(1, 300), (2, 100), (3, 0)]
    ]


def test_a_claim_is_read_by_several_tasks_and_again_by_every_action(
    spark: SparkSession, host: Host, queue: str, tmp_path: Path
) -> None:
    push(host, queue, "tasks", range(1000), run_items=50)
    seen: list[Any] = []

    def each(batch: DataFrame, batch_id: int) -> None:
        seen.append(batch.rdd.getNumPartitions())
        seen.append(numbers(batch))
        seen.append(numbers(batch))

    drain(stream(spark, host.socket, queue, "tasks", partitions="4"), tmp_path, each)
    assert seen == [4, list(range(1000)), list(range(1000))]


def test_what_came_after_the_start_is_left_for_the_next_run(
    spark: SparkSession, host: Host, queue: str, tmp_path: Path
) -> None:
    push(host, queue, "counted", range(300))
    seen: list[int] = []

    def each(batch: DataFrame, batch_id: int) -> None:
        seen.extend(numbers(batch))
        if batch_id < 5:  # A reader that does not count ends as well, with all of it.
            more = 1000 * (batch_id + 1)
            push(host, queue, "counted", range(more, more + 100))

    rows = stream(spark, host.socket, queue, "counted", maxItemsPerTrigger="100")
    drain(rows, tmp_path, each)
    assert sorted(seen) == list(range(300))
    until_delivered(host, queue, 300)


def test_two_consumers_share_a_queue(
    spark: SparkSession, host: Host, queue: str, tmp_path: Path
) -> None:
    push(host, queue, "other", range(1000))
    with connect(host.socket) as client:
        held = client.claim(queue, "other", after=0, items=300)
    drain(stream(spark, host.socket, queue, "mine"), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "out"))
    assert rows.count() == 700
    until_delivered(host, queue, 700)
    assert held.number is not None
    with connect(host.socket) as client:
        assert client.claim(queue, "other", after=held.number).number is None
    until_delivered(host, queue, 1000)


def test_another_checkpoint_is_refused_and_explained(
    spark: SparkSession, host: Host, queue: str, tmp_path: Path
) -> None:
    push(host, queue, "mine", range(10))
    rows = stream(spark, host.socket, queue, "mine")
    drain(rows, tmp_path / "first")
    push(host, queue, "mine", range(10))
    with pytest.raises(StreamingQueryException, match=r"up to claim 0, and is behind.*stream_drop"):
        drain(rows, tmp_path / "second")
    until_delivered(host, queue, 10)
    with connect(host.socket) as client:
        assert client.stream_drop(queue, "mine") == 0
    with pytest.raises(StreamingQueryException, match="is ahead: only claims up to 0"):
        drain(rows, tmp_path / "first")
    drain(rows, tmp_path / "second")
    until_delivered(host, queue, 20)


def test_the_loser_of_two_queries_with_one_consumer_is_told_of_the_other(
    host: Host, queue: str
) -> None:
    """A second query acknowledges what the first is just reading."""
    push(host, queue, "same", range(10))
    given = {"queue": queue, "consumer": "same", "socket": str(host.socket)}
    schema = StructType([StructField("payload", BinaryType())])
    one, other = (ForebayStreamReader(given, schema) for _ in range(2))
    begin = one.initialOffset()
    end = one.latestOffset(begin, one.getDefaultReadLimit())
    (part, *_) = one.partitions(begin, end)
    assert other.latestOffset(begin, other.getDefaultReadLimit()) == end
    assert other.latestOffset(end, other.getDefaultReadLimit()) == end
    told = f"another query reads queue '{queue}' as consumer 'same'"
    with pytest.raises(ForebayError, match=told):
        list(one.read(part))
    one.stop()
    other.stop()


def test_a_failed_batch_is_read_again_with_the_same_items(
    spark: SparkSession, host: Host, queue: str, tmp_path: Path
) -> None:
    push(host, queue, "failing", range(300))
    seen: list[list[int]] = []

    def failing(batch: DataFrame, batch_id: int) -> None:
        seen.append(numbers(batch))
        if batch_id == 1:
            raise ValueError("not today")

    rows = stream(spark, host.socket, queue, "failing", maxItemsPerTrigger="200")
    with pytest.raises(StreamingQueryException, match="not today"):
        drain(rows, tmp_path, failing)
    until_delivered(host, queue, 200)
    # More urgent items that came meanwhile do not change what the claim holds.
    with connect(host.socket) as client:
        client.push(queue, [b"%d" % number for number in range(300, 400)], priority=0)
    host.until_counts(queue, spooled=0, warm=0)
    drain(rows, tmp_path, lambda batch, batch_id: seen.append(numbers(batch)))
    assert seen == [
        list(range(200)),
        list(range(200, 300)),
        list(range(200, 300)),
        list(range(300, 400)),
    ]
    until_delivered(host, queue, 400)


def test_a_row_that_is_corrupt_is_missed_and_no_other_is_read_twice(
    spark: SparkSession, own_host: Host, queue: str, tmp_path: Path
) -> None:
    """It is set aside by the first task that sees it, which then has a row less to ask for."""
    push(own_host, queue, "mine", range(24), run_items=3)
    with connect(own_host.socket) as client:
        assert client.claim(queue, "mine", after=0).rows == 8
    own_host.stop()
    with closing(sqlite3.connect(own_host.state_dir / "cold.sqlite")) as db, db:
        changed = db.execute(
            "UPDATE bodies SET data = zeroblob(length(data)) WHERE id = "
            "(SELECT body_id FROM runs WHERE state = 'CLAIMED' AND place = 1)"
        )
        assert changed.rowcount == 1
    own_host.start()
    drain(stream(spark, own_host.socket, queue, "mine", partitions="2"), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "out"))
    assert numbers(rows) == [0, 1, 2, *range(6, 24)]


def test_a_queue_that_is_unknown_and_not_created_is_refused_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = {"auto_create_queues": False, "queues": {"crm": {}, "mail": {}}}
    says = r"option 'queue' is 'crn': the daemon has no such queue.*it has: crm, mail"
    (tmp_path / "host").mkdir()
    with running(Host(tmp_path / "host", settings)) as host:
        with pytest.raises(StreamingQueryException, match=says):
            drain(stream(spark, host.socket, "crn", "mine"), tmp_path)
        reader = spark.read.format("forebay").option("socket", str(host.socket))
        for state in ("queued", "cold", "dead", "history"):
            with pytest.raises(PySparkException, match=says):
                reader.options(queue="crn", state=state).load().collect()
        assert reader.options(queue="crm").load().collect() == []


def test_a_daemon_killed_between_claim_and_read_is_waited_for(
    spark: SparkSession, own_host: Host, queue: str, tmp_path: Path
) -> None:
    push(own_host, queue, "c", range(1000))
    seen: list[int] = []

    def each(batch: DataFrame, batch_id: int) -> None:
        own_host.stop(signal.SIGKILL)
        own_host.start()
        seen.extend(numbers(batch))

    drain(stream(spark, own_host.socket, queue, "c", maxItemsPerTrigger="600"), tmp_path, each)
    assert sorted(seen) == list(range(1000))
    until_delivered(own_host, queue, 1000)
