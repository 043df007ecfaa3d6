"""A client of a Spark Connect server: run as a script, by test_connect.py.

    python connect_driver.py REMOTE QUEUE DIRECTORY installed|shipped

Does with `format("forebay")` all that a user may, and prints what came of it as a JSON object. It
knows no socket: the server's environment does. It is run as a script so that what the server needs
of it is pickled by value, as in a notebook.
"""

import json
import logging
import sys
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import forebay.spark
from forebay.receipts import Receipt
from forebay.spark.listener import listen

HANG_S = 60
BATCH_ROWS = 3000
STREAM_ROWS = 200

Queues = SimpleQueue[str]


def main(remote: str, queue: str, directory: str, how: str) -> None:
    spark: SparkSession = SparkSession.builder.remote(remote).getOrCreate()
    try:
        found = use(spark, queue, Path(directory), how)
    finally:
        spark.stop()  # Else the listener's thread waits for ever.
    print(json.dumps(found))


def use(spark: SparkSession, queue: str, place: Path, how: str) -> dict[str, Any]:
    found: dict[str, Any] = {"session": type(spark).__module__}
    if how == "shipped":
        found["before"] = refused(numbers(spark, 1), queue)
        forebay.spark.register(spark)
    found["batch"] = batch(spark, queue)
    found["errors"] = [
        refused(numbers(spark, 1), queue, payload="nothing"),
        refused(numbers(spark, 1), queue, socket="/nowhere/f.sock"),
    ]
    found |= streams(spark, queue, place)
    found["for_each"] = for_each_batch(spark, f"{queue}-each", place)
    return found


def numbers(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(0, rows, 1, 3).select(F.col("id").cast("string").alias("value"))


def batch(spark: SparkSession, queue: str) -> dict[str, Any]:
    """Any DataFrame as items; their receipt; a look at them."""
    customers = spark.range(0, BATCH_ROWS, 1, 3).withColumn("tier", F.col("id") % 2)
    rows = forebay.spark.items(customers, queue=queue, key="id", priority=F.col("tier"))
    rows.write.format("forebay").mode("append").save()
    last = forebay.spark.last_receipt(spark)
    assert last is not None
    looked = spark.read.format("forebay").option("queue", queue).load()
    kept = F.get_json_object(F.col("payload").cast("string"), "$.id") == F.col("key")
    return {
        "receipt": counted(last),
        "same": counted(forebay.spark.receipt(spark, last.write)),
        "looked": looked.where(kept).groupBy("priority").count().orderBy("priority").collect(),
    }


def refused(rows: DataFrame, queue: str, **options: str) -> str:
    writer = rows.write.format("forebay").mode("append").option("queue", queue)
    try:
        writer.options(**options).save()
    except PySparkException as problem:
        return str(problem)
    return "it was not refused"


def streams(spark: SparkSession, queue: str, place: Path) -> dict[str, Any]:
    """From files into a queue, from queues into files, and what the listener says of both."""
    said: Queues = SimpleQueue()
    log = logging.getLogger("forebay.spark")
    log.setLevel(logging.INFO)
    handler = logging.Handler()
    handler.emit = lambda record: said.put(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    listener = listen(spark)
    (place / "lines").mkdir()
    (place / "lines" / "some.txt").write_text("".join(f"{at}\n" for at in range(STREAM_ROWS)))
    lines = spark.readStream.format("text").load(str(place / "lines"))
    written = lines.writeStream.format("forebay").option("queue", f"{queue}-lines")
    run(written.option("checkpointLocation", str(place / "into")))
    receipt = next_line(said, "receipt")
    items = spark.readStream.format("forebay").options(
        queue=queue, consumer="lake", maxItemsPerTrigger="2000"
    )
    drained = items.load().writeStream.format("parquet").option("path", str(place / "out"))
    run(drained.option("checkpointLocation", str(place / "out-of")))
    backlog = next_line(said, "items wait")
    spark.streams.removeListener(listener)
    out = spark.read.parquet(str(place / "out"))
    counts = out.select(F.count("*"), F.count_distinct("id")).first()
    assert counts is not None
    return {"receipt_said": receipt, "backlog_said": backlog, "drained": list(counts)}


def for_each_batch(spark: SparkSession, queue: str, place: Path) -> dict[str, int] | None:
    def save(rows: DataFrame, number: int) -> None:
        for _ in range(2):  # As after a crash: the second changes nothing.
            writer = rows.write.format("forebay").mode("append").option("queue", queue)
            writer.options(txnAppId="each", txnVersion=str(number)).save()

    lines = spark.readStream.format("text").load(str(place / "lines"))
    run(lines.writeStream.foreachBatch(save).option("checkpointLocation", str(place / "each")))
    return counted(forebay.spark.last_receipt(spark))


def run(writer: Any) -> None:
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(HANG_S)


def next_line(said: Queues, text: str) -> str:
    while True:
        if text in (line := said.get(timeout=HANG_S)):
            return line


def counted(receipt: Receipt | None) -> dict[str, int] | None:
    if receipt is None:
        return None
    return {"accepted": receipt.accepted, "pending": receipt.pending}


main(*sys.argv[1:])
