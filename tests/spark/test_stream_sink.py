"""`df.writeStream.format("forebay")`: each micro-batch is visible once, however often it runs."""

import os
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from forebay import connect
from forebay.spark import last_receipt
from forebay.spark.plan import make_plan
from forebay.spark.stream_writer import ForebayStreamWriter
from forebay.spark.writer import WriteFailed
from tests.daemon.cli.commands import Host
from tests.spark.pulling import pull_all, texts, until_nothing_is_staged

FIRST_S = 1_700_000_000


class Feed:
    """A directory of text files that a query reads, one file in a micro-batch."""

    def __init__(self, directory: Path) -> None:
        self.source = directory / "source"
        self.source.mkdir()
        self.checkpoint = directory / "checkpoint"
        self.lines = 0

    def add(self, lines: int) -> None:
        text = "".join(f"{at}\n" for at in range(self.lines, self.lines + lines))
        path = self.source / f"{self.lines:08}.txt"
        path.write_text(text)
        self.lines += lines
        # Spark reads files in the order of their times, in milliseconds: no two may have the same.
        os.utime(path, (FIRST_S + self.lines, FIRST_S + self.lines))

    def rows(self, spark: SparkSession) -> DataFrame:
        return (
            spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(self.source))
        )

    def expected(self) -> list[str]:
        return sorted(str(at) for at in range(self.lines))

    def forget_last_commit(self) -> None:
        """As if the driver had died after publishing, before Spark noted that the batch is done."""
        commits = [at for at in (self.checkpoint / "commits").iterdir() if at.name.isdecimal()]
        last = max(commits, key=lambda at: int(at.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path)


def run(rows: DataFrame, feed: Feed, host: Host, queue: str, **options: str) -> None:
    writer = rows.writeStream.format("forebay").trigger(availableNow=True)
    writer = writer.options(queue=queue, socket=str(host.socket), **options)
    query = writer.option("checkpointLocation", str(feed.checkpoint)).start()
    query.awaitTermination()


def test_a_query_that_is_started_again_writes_every_row_once(
    spark: SparkSession, host: Host, queue: str, feed: Feed
) -> None:
    feed.add(300)
    feed.add(200)
    run(feed.rows(spark).repartition(3), feed, host, queue)
    feed.add(100)
    run(feed.rows(spark).repartition(1), feed, host, queue)
    found = pull_all(host.socket, queue)
    assert texts(found) == feed.expected()
    assert len({item.id for item in found}) == 600


def test_a_micro_batch_that_is_replayed_in_other_partitions_is_visible_once(
    spark: SparkSession, host: Host, queue: str, feed: Feed
) -> None:
    feed.add(300)
    feed.add(200)
    run(feed.rows(spark).repartition(4), feed, host, queue)
    receipt = last_receipt(spark)
    feed.forget_last_commit()
    feed.add(50)
    run(feed.rows(spark).repartition(2), feed, host, queue)
    assert texts(pull_all(host.socket, queue)) == feed.expected()
    until_nothing_is_staged(host.socket, queue)
    assert receipt is not None
    assert (receipt.accepted, receipt.version) == (200, 1)


def test_two_queries_of_one_feed_are_two_transactions(
    spark: SparkSession, host: Host, queue: str, feed: Feed, tmp_path: Path
) -> None:
    feed.add(20)
    run(feed.rows(spark), feed, host, queue)
    feed.checkpoint = tmp_path / "another"
    run(feed.rows(spark), feed, host, queue)
    assert Counter(texts(pull_all(host.socket, queue))) == {str(at): 2 for at in range(20)}


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_the_continuous_trigger_is_refused(
    spark: SparkSession, host: Host, queue: str, tmp_path: Path, scheme: str
) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    writer = rows.writeStream.format("forebay").trigger(continuous="1 second")
    writer = writer.options(queue=queue, socket=str(host.socket))
    query = writer.option("checkpointLocation", f"{scheme}{tmp_path / 'checkpoint'}").start()
    try:
        with pytest.raises(StreamingQueryException, match="with the trigger continuous"):
            assert query.awaitTermination(60), "it is still active"
    finally:
        query.stop()


def test_commit_knows_the_continuous_trigger_by_tasks_that_staged_nothing() -> None:
    schema = StructType([StructField("value", StringType())])
    writer = ForebayStreamWriter(make_plan({"queue": "q"}, schema))
    with pytest.raises(WriteFailed, match="with the trigger continuous"):
        writer.commit([None, None], 0)


def test_writes_in_foreach_batch_have_their_own_transactions(
    spark: SparkSession, host: Host, queue: str, feed: Feed
) -> None:
    socket = str(host.socket)
    runs = []

    def both(rows: DataFrame, batch: int) -> None:
        runs.append(batch)
        for name in ("a", "b"):
            writer = rows.write.format("forebay").mode("append").options(queue=queue, socket=socket)
            writer.options(txnAppId=f"{queue}-{name}", txnVersion=str(batch)).save()

    def run_both(rows: DataFrame) -> None:
        writer = rows.writeStream.foreachBatch(both).trigger(availableNow=True)
        writer.option("checkpointLocation", str(feed.checkpoint)).start().awaitTermination()

    feed.add(30)
    feed.add(10)
    run_both(feed.rows(spark))
    feed.forget_last_commit()
    run_both(feed.rows(spark).repartition(3))
    assert runs == [0, 1, 1]
    assert Counter(texts(pull_all(host.socket, queue))) == {str(at): 2 for at in range(40)}


def test_a_failed_micro_batch_leaves_nothing_and_succeeds_later(
    spark: SparkSession, host: Host, queue: str, feed: Feed
) -> None:
    feed.add(100)
    broken = feed.rows(spark).selectExpr("if(value = '77', null, value) as value")
    with pytest.raises(StreamingQueryException, match="column 'value' has 1 nulls"):
        run(broken, feed, host, queue)
    with connect(host.socket) as client:
        assert queue not in client.stats()["queues"] or not client.stats()["queues"][queue]["held"]
    run(feed.rows(spark), feed, host, queue)
    assert texts(pull_all(host.socket, queue)) == feed.expected()


def test_what_a_stream_cannot_have_is_told(
    spark: SparkSession, host: Host, queue: str, feed: Feed
) -> None:
    feed.add(1)
    rows = feed.rows(spark)
    with pytest.raises(StreamingQueryException, match="for writes inside foreachBatch"):
        run(rows, feed, host, queue, txnAppId="a", txnVersion="1")
    with pytest.raises(PySparkException, match="did you mean 'runItems'"):
        run(rows, feed, host, queue, runItem="1")
