"""A queue drained to Parquet by `readStream`, beside Spark copying the same Parquet."""

import time
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from bench.daemon_process import Daemon, places
from bench.figures import Goal, Row, Samples
from bench.plan import Plan
from bench.spark.session import payloads, rows_per_s

QUEUE: Final = "bench"
WARM_UP_ROWS: Final = 10_000
LOOK_S: Final = 0.1


def draining(spark: SparkSession, rows: int, plan: Plan) -> list[Row]:
    rates = [_round(spark, rows) for _ in plan.each_round("draining")]
    ours, copied = (Samples.of(values) for values in zip(*rates, strict=True))
    what = f"{rows:,} rows drained by readStream to Parquet"
    limit = "Spark copies that Parquet"
    return [Row("b", what, "items/s", ours, limit, copied, Goal(ratio_min=0.5))]


def _round(spark: SparkSession, rows: int) -> tuple[float, float]:
    with places("drain") as where:
        queues = {QUEUE: {"handler": {"type": "pull"}}}
        with Daemon(where, {"max_bytes": "8Gi"}, queues=queues) as daemon:
            _fill(spark, daemon.socket, WARM_UP_ROWS)
            _drain(spark, daemon.socket, where.state / "warm-up", "warm-up")
            _end(daemon, "warm-up")
            _fill(spark, daemon.socket, rows)
            _wait_until_placed(daemon)
            ours = rows_per_s(
                rows, lambda: _drain(spark, daemon.socket, where.state / "drained", "bench")
            )
        drained = spark.read.parquet(str(where.state / "drained" / "rows"))
        count = drained.count()
        if count != rows:
            raise RuntimeError(f"{count:,} of {rows:,} rows were drained")
        copy = drained.write.mode("overwrite")
        return ours, rows_per_s(rows, lambda: copy.parquet(str(where.state / "copy")))


def _fill(spark: SparkSession, socket: Path, rows: int) -> None:
    writer = payloads(spark, rows).write.format("forebay").option("queue", QUEUE)
    writer.option("socket", str(socket)).mode("append").save()


def _wait_until_placed(daemon: Daemon) -> None:
    """Until all of the queue is in warm and cold: a queue at rest is drained."""
    while daemon.stats()["queues"][QUEUE]["spooled"]:
        time.sleep(LOOK_S)


def _drain(spark: SparkSession, socket: Path, place: Path, consumer: str) -> None:
    rows = spark.readStream.format("forebay").option("queue", QUEUE)
    rows = rows.option("socket", str(socket)).option("consumer", consumer)
    writer = rows.load().writeStream.format("parquet").option("path", str(place / "rows"))
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def _end(daemon: Daemon, consumer: str) -> None:
    """The next consumer is the only one."""
    with daemon.connect() as client:
        client.stream_drop(QUEUE, consumer)
