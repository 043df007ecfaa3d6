"""A client of a Spark Connect server: run as a script, by test_connect.py.

    python connect_driver.py REMOTE QUEUE DIRECTORY

Does with `format("forebay")` what a user does, and prints what came of it as a JSON object. It
knows no socket: the server's environment does. It is run as a script so that what the server needs
of it is pickled by value, as in a notebook.
"""

import json
import logging
import sys
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import forebay.spark
from forebay.receipts import Receipt

HANG_S = 600
BATCH_ROWS = 3000
STREAM_ROWS = 200

Said = SimpleQueue[logging.LogRecord]


def main(remote: str, queue: str, directory: str) -> None:
    spark: SparkSession = SparkSession.builder.remote(remote).getOrCreate()
    try:
        found = use(spark, queue, Path(directory))
    finally:
        spark.stop()  # Else a listener's thread keeps the process after a failure.
    print(json.dumps(found))


def use(spark: SparkSession, queue: str, place: Path) -> dict[str, Any]:
    lines = place / "lines"
    lines.mkdir()
    (lines / "some.txt").write_text("".join(f"{at}\n" for at in range(STREAM_ROWS)))
    text = spark.range(1).select(F.lit("x").alias("value"))
    before = refusal(text, queue)
    forebay.spark.register(spark)
    return {
        "before": before,
        **batch(spark, queue),
        "no column": refusal(text, queue, payload="nothing"),
        "no daemon": refusal(text, queue, socket="/nowhere/f.sock"),
        **streams(spark, queue, place),
    }


def batch(spark: SparkSession, queue: str) -> dict[str, Any]:
    """Any DataFrame as items; their receipt; a look at them."""
    customers = spark.range(0, BATCH_ROWS, 1, 3).withColumn("tier", F.col("id") % 2)
    rows = forebay.spark.items(customers, queue=queue, key="id", priority=F.col("tier"))
    rows.write.format("forebay").mode("append").save()
    last = forebay.spark.last_receipt(spark)
    assert last is not None
    looked = spark.read.format("forebay").option("queue", queue).load()
    id_within = F.get_json_object(F.col("payload").cast("string"), "$.id")
    looked = looked.where(id_within == F.col("key")).groupBy("priority").count()
    return {
        "last receipt": counts(last),
        "receipt": counts(forebay.spark.receipt(spark, last.write)),
        "looked": sorted(looked.collect()),
    }


def refusal(rows: DataFrame, queue: str, **options: str) -> str:
    writer = rows.write.format("forebay").mode("append").option("queue", queue)
    try:
        writer.options(**options).save()
    except PySparkException as problem:
        return str(problem)
    return "it was not refused"


def streams(spark: SparkSession, queue: str, place: Path) -> dict[str, Any]:
    """From files into queues, from a queue into files, and what the listener says of it."""
    said: Said = SimpleQueue()
    log = logging.getLogger("forebay.spark")
    log.setLevel(logging.INFO)
    log.addHandler(QueueHandler(said))
    # It stays until the session ends: to remove the last one may block for ever (SPARK-59623).
    forebay.spark.listen(spark)
    lines = spark.readStream.format("text").load(str(place / "lines"))
    sink = lines.writeStream.format("forebay").option("queue", f"{queue}-lines")
    finish(start(sink, place / "sink"))
    receipt_said = next_line(said, "receipt")

    each = start(lines.writeStream.foreachBatch(save_twice(f"{queue}-each")), place / "each")
    source = spark.readStream.format("forebay").options(queue=queue, consumer="lake")
    drained = source.option("maxItemsPerTrigger", "2000").load().writeStream.format("parquet")
    drain = start(drained.option("path", str(place / "out")), place / "drain")
    finish(each)
    finish(drain)
    backlog_said = next_line(said, "items wait")
    out = spark.read.parquet(str(place / "out"))
    return {
        "receipt said": receipt_said,
        "backlog said": backlog_said,
        "drained": out.select(F.count("*"), F.count_distinct("id")).collect()[0],
    }


def save_twice(queue: str) -> Any:
    def save(rows: DataFrame, number: int) -> None:
        """In the server's Python. The second is as after a crash, and changes nothing."""
        for _ in range(2):
            writer = rows.write.format("forebay").mode("append").option("queue", queue)
            writer.options(txnAppId=queue, txnVersion=str(number)).save()

    return save


def start(writer: Any, checkpoint: Path) -> Any:
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def finish(query: Any) -> None:
    assert query.awaitTermination(HANG_S)


def next_line(said: Said, text: str) -> str:
    while text not in (line := said.get(timeout=HANG_S).getMessage()):
        pass
    return line


def counts(receipt: Receipt | None) -> list[int] | None:
    return None if receipt is None else [receipt.accepted, receipt.pending]


if __name__ == "__main__":
    main(*sys.argv[1:])
