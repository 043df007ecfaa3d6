"""`drain`: a queue becomes partitioned Parquet, each item once.

    drain(spark, "crm", "/data/crm", checkpoint="/data/checkpoints/crm", consumer="lake")

Spark's file sink and forebay's claims share the checkpoint. After a crash the interrupted
micro-batch is read and written again, and readers of the directory see it once (through Spark,
which reads the sink's own list of files). Items are acknowledged when they are in the files.
`drain` ends when the queue is empty, or runs for ever with `every`.

It cannot start with an empty checkpoint if this consumer has acknowledged items before: that fails,
rather than lose or repeat items. Use another consumer's name then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from forebay.pipeline.progress import Say, say_nothing

LOOK_S: Final = 2.0
DATE: Final = "date"


@dataclass(frozen=True, slots=True)
class Drained:
    items: int
    batches: int


def drain(
    spark: SparkSession,
    queue: str,
    out: str,
    *,
    checkpoint: str,
    consumer: str,
    partition_by: Sequence[str] = (DATE,),
    body: str | None = None,
    every: str | None = None,
    options: Mapping[str, str] | None = None,
    say: Say = say_nothing,
) -> Drained:
    """Drains a queue into `out`; returns when it is empty, or never if `every` is given.

    Columns are those of a stream read, `date` (of `enqueued_at`), and with `body`, a schema in
    SQL's words (`"id BIGINT, email STRING"`), a struct `body` read from payloads that are JSON.
    """
    stream = spark.readStream.format("forebay").options(
        **{"queue": queue, "consumer": consumer, **dict(options or {})}
    )
    writer = (
        shaped(stream.load(), body)
        .writeStream.format("parquet")
        .partitionBy(*partition_by)
        .option("checkpointLocation", checkpoint)
        .queryName(f"forebay drain {queue}")
    )
    if every is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=every)
    say(f"draining {queue} to {out}")
    return follow(writer.start(out), say)


def shaped(rows: DataFrame, body: str | None) -> DataFrame:
    dated = rows.withColumn(DATE, F.to_date("enqueued_at"))
    if body is None:
        return dated
    text = F.col("payload").cast("string")
    return dated.withColumn("body", F.from_json(text, body))


def follow(query: StreamingQuery, say: Say) -> Drained:
    """Waits for the end, and says how far it is. A query that fails raises what it failed with."""
    batches: dict[int, int] = {}
    is_over: bool | None = False
    try:
        while not is_over:
            is_over = query.awaitTermination(int(LOOK_S))
            # As attributes: through Spark Connect the members have no numInputRows.
            news = {each.batchId: each.numInputRows for each in query.recentProgress}
            if any(rows and batch not in batches for batch, rows in news.items()):
                batches |= news
                say(f"{sum(batches.values()):,} items in {_with_rows(batches)} batches")
    finally:
        query.stop()
    return Drained(sum(batches.values()), _with_rows(batches))


def _with_rows(batches: Mapping[int, int]) -> int:
    return sum(1 for rows in batches.values() if rows)
