"""`df.write.format("forebay")` on a real Spark: what is written is what can be taken."""

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from forebay import Item, connect
from forebay.receipts import Receipt, StillPending
from forebay.spark import items, last_receipt, receipt
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.spark.pulling import pull_all, texts, until_nothing_is_staged


def save(df: DataFrame, host: Host, queue: str, **options: str) -> None:
    writer = df.write.format("forebay").mode("append")
    writer.options(queue=queue, socket=str(host.socket), **options).save()


def numbers(spark: SparkSession, rows: int, partitions: int = 3) -> DataFrame:
    return spark.range(0, rows, 1, partitions).select(F.col("id").cast("string").alias("value"))


def test_every_row_is_one_item(spark: SparkSession, host: Host, queue: str) -> None:
    save(numbers(spark, 20_000), host, queue)
    found = pull_all(host.socket, queue)
    assert texts(found) == sorted(str(number) for number in range(20_000))
    assert len({item.id for item in found}) == 20_000
    until_nothing_is_staged(host.socket, queue)


def test_empty_partitions_and_an_empty_write(spark: SparkSession, host: Host, queue: str) -> None:
    save(numbers(spark, 3, 5).filter("value = '1'"), host, queue)
    assert texts(pull_all(host.socket, queue)) == ["1"]
    save(numbers(spark, 10).filter("value = 'none'"), host, queue)
    found = last_receipt(spark)
    assert found is not None
    assert found.accepted == 0
    until_nothing_is_staged(host.socket, queue)


def test_two_saves_are_two_writes(spark: SparkSession, host: Host, queue: str) -> None:
    rows = numbers(spark, 100)
    save(rows, host, queue)
    first = last_receipt(spark)
    save(rows, host, queue)
    second = last_receipt(spark)
    assert first is not None
    assert second is not None
    assert first.write != second.write
    assert Counter(texts(pull_all(host.socket, queue))) == {str(at): 2 for at in range(100)}


def test_the_receipt_of_a_write_says_what_became_of_it(
    spark: SparkSession, host: Host, queue: str
) -> None:
    save(numbers(spark, 1500), host, queue)
    found = last_receipt(spark)
    assert found is not None
    assert (found.accepted, found.pending, found.queues) == (1500, 1500, (queue,))
    pull_all(host.socket, queue)
    with connect(host.socket) as client:
        done = client.wait_receipt(found.write, timeout=HANG_S)
    assert (done.accepted, done.delivered, done.pending) == (1500, 1500, 0)
    assert receipt(spark, found.write, str(host.socket)) == done
    assert last_receipt(spark) == done


def test_a_receipt_from_spark_can_be_waited_for(
    spark: SparkSession, host: Host, queue: str
) -> None:
    save(numbers(spark, 100), host, queue)
    found = last_receipt(spark)
    assert found is not None
    with pytest.raises(StillPending) as late:
        found.wait(timeout=0)
    assert late.value.receipt == found
    seen: list[Receipt] = []

    def pull_once(figures: Receipt) -> None:
        if not seen:
            pull_all(host.socket, queue)
        seen.append(figures)

    done = found.wait(timeout=60, progress=pull_once)
    assert (done.write, done.delivered, done.pending) == (found.write, 100, 0)
    assert seen[-1] == done
    # Another write may have been the last since: it is found by its id, on the same socket.
    save(numbers(spark, 1), host, queue)
    assert found.wait() == done


def test_every_column_arrives(spark: SparkSession, host: Host, queue: str) -> None:
    rows = spark.range(0, 600, 1, 2).select(
        F.col("id").cast("string").cast("binary").alias("payload"),
        F.concat(F.lit("k"), "id").alias("name"),
        (F.col("id") % 3).cast("int").alias("tier"),
        F.when(F.col("id") % 2 == 0, F.lit("even")).alias("which"),
        F.concat(F.lit("do"), F.col("id") % 2).alias("todo"),
    )
    save(
        rows,
        host,
        queue,
        key="name",
        priority="tier",
        flowColumn="which",
        actionColumn="todo",
        headers=json.dumps({"source": "test"}),
        runItems="50",
    )
    found = pull_all(host.socket, queue)
    assert len(found) == 600
    for item in found:
        number = int(item.text)
        assert item.key == f"k{number}"
        assert item.priority == number % 3
        assert item.flow == ("" if number % 2 else "even")
        assert item.action == f"do{number % 2}"
        assert item.headers["source"] == "test"


def test_wide_rows_and_large_types(spark: SparkSession, host: Host, queue: str) -> None:
    rows = spark.range(0, 40, 1, 2).select(F.expr("repeat(cast(id as string), 20000)").alias("x"))
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        save(rows, host, queue, runBytes="100Ki")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert texts(pull_all(host.socket, queue)) == sorted(str(at) * 20_000 for at in range(40))


def test_items_makes_json_of_rows_in_the_jvm(spark: SparkSession, host: Host, queue: str) -> None:
    rows = spark.range(0, 50, 1, 2).withColumn("name", F.concat(F.lit("n"), "id"))
    made = items(rows, queue=queue, key="id", priority="high", flow="nightly", action=F.col("name"))
    made.filter("key <> '7'").write.format("forebay").mode("append").option(
        "socket", str(host.socket)
    ).save()
    found = pull_all(host.socket, queue)
    assert len(found) == 49
    for item in found:
        assert item.json() == {"id": int(item.key or ""), "name": f"n{item.key}"}
        assert (item.priority, item.flow, item.action) == (0, "nightly", f"n{item.key}")


def test_a_delay_column_puts_items_off(spark: SparkSession, host: Host, queue: str) -> None:
    rows = numbers(spark, 10).withColumn("wait", F.when(F.col("value") >= "5", 3600))
    save(rows, host, queue, delay="wait")
    taken: list[Item] = []
    with connect(host.socket) as client:
        while len(taken) < 5:
            with client.lease(queue, 100, wait_s=HANG_S, lease_s=3600) as lease:
                assert lease, texts(taken)
                taken += lease
    assert texts(taken) == ["0", "1", "2", "3", "4"]
    host.until_books({"accepted": 10, "delivered": 5, "held": 5}, queue)


def test_a_transaction_is_written_once(spark: SparkSession, host: Host, queue: str) -> None:
    for version, rows in ((7, 10), (7, 20), (6, 30), (8, 40)):
        save(numbers(spark, rows), host, queue, txnAppId=queue, txnVersion=str(version))
    assert Counter(texts(pull_all(host.socket, queue)))["3"] == 2
    until_nothing_is_staged(host.socket, queue)
    host.until_counts(queue, accepted=50)


@pytest.mark.parametrize(
    "options,says",
    [
        ({"runItem": "5"}, "did you mean 'runItems'"),
        ({"payload": "nothing"}, "there is no such column; there are: value"),
        ({"priority": "urgent"}, "0 to 255, or a label that the daemon knows"),
        ({"socket": "/nowhere/f.sock"}, "option 'socket' is '/nowhere/f.sock': no daemon answers"),
    ],
)
def test_mistakes_are_told_before_data_moves(
    spark: SparkSession, host: Host, queue: str, options: dict[str, str], says: str
) -> None:
    writer = numbers(spark, 10).write.format("forebay").mode("append")
    with pytest.raises(PySparkException) as raised:
        writer.options(**{"queue": queue, "socket": str(host.socket), **options}).save()
    assert says in str(raised.value)


def test_overwriting_and_no_mode_are_refused(spark: SparkSession, host: Host, queue: str) -> None:
    writer = numbers(spark, 10).write.format("forebay").option("queue", queue)
    writer = writer.option("socket", str(host.socket))
    with pytest.raises(PySparkException, match="a queue is never overwritten"):
        writer.mode("overwrite").save()
    with pytest.raises(PySparkException, match=r"(?i)append"):
        writer.mode("error").save()


def test_an_unknown_queue_is_told_before_data_moves(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"auto_create_queues": False, "queues": {"crm": {}, "mail": {}}}
    with running(Host(tmp_path, settings)) as host:
        with pytest.raises(PySparkException) as raised:
            save(numbers(spark, 10), host, "crn")
        assert "option 'queue' is 'crn'" in str(raised.value)
        assert "it has: crm, mail" in str(raised.value)
        save(numbers(spark, 10), host, "crm")
        assert len(pull_all(host.socket, "crm")) == 10


def test_a_name_that_two_columns_have_is_told_before_data_moves(
    spark: SparkSession, host: Host, queue: str
) -> None:
    rows = spark.range(10).select(*[F.col("id").cast("string").alias("value")] * 2)
    with pytest.raises(PySparkException, match="there are 2 columns of this name"):
        save(rows, host, queue)


def test_nulls_fail_the_job_with_the_columns_name(
    spark: SparkSession, host: Host, queue: str
) -> None:
    rows = spark.range(0, 100, 1, 2).select(
        F.when(F.col("id") != 70, F.col("id").cast("string")).alias("body")
    )
    with pytest.raises(PySparkException) as raised:
        save(rows, host, queue)
    assert "column 'body' has 1 nulls in 50 rows" in str(raised.value)
    until_nothing_is_staged(host.socket, queue)
    assert not pull_all(host.socket, queue)
