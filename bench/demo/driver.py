"""The demonstration's Spark driver: CRM events, cleaned, and pushed two ways as streams.

    python -m bench.demo.driver DIRECTORY SOCKET EVENTS

Raw events become Parquet; rows that make no sense go aside with the reason; of each customer the
latest event counts, with its region's service level. Those are pushed as a stream, once with
`format("forebay")` into `crm`, and once as people do it without, `foreachBatch` and a client in
`foreachPartition`, into `plain`. Started again after a kill, it goes on where its checkpoints are.
At the end `plain` is drained to Parquet, to see what is in it, and the daemon's event log becomes a
report.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import forebay
import forebay.spark
from forebay.pipeline import report

FILES: Final = 8
"""Of the cleaned events: each is a micro-batch."""
LOOK_S: Final = 0.1
DAEMON_S: Final = 60.0
"""How long the daemon may be unreachable."""
REGIONS: Final = (("emea", 1, 5), ("apac", 2, 5), ("americas", 3, 10), ("other", 4, 10))


class Driver:
    def __init__(self, directory: Path, socket: str, events: int) -> None:
        self._directory = directory
        self._socket = socket
        self._events = events
        self._spark = (
            SparkSession.builder.master("local[2]")
            .appName("forebay-demo")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )

    def run(self) -> None:
        if not (self._directory / "clean" / "_SUCCESS").exists():
            self._say("generating and cleaning events")
            self._prepare()
        self._say("pushing")
        ours = self._push()
        while ours.isActive and not ours.recentProgress:
            # The first batch has much to start; then the two run side by side.
            time.sleep(LOOK_S)
        plainly = self._push_plainly()
        for query in (ours, plainly):
            query.awaitTermination()
        self._say("draining what came through foreachPartition")
        self._drain()
        self._say("delivering the rest")
        self._wait_until_delivered()
        self._say("reporting")
        self._report()
        self._say("done")

    def _prepare(self) -> None:
        raw = str(self._directory / "raw")
        self._raw_events().write.mode("overwrite").parquet(raw)
        events = self._spark.read.parquet(raw)
        reason = (
            F.when(~F.col("email").contains("@"), "the e-mail has no @")
            .when(F.col("amount").isNull(), "there is no amount")
            .when(~F.col("consent"), "no consent")
        )
        judged = events.withColumn("reason", reason)
        aside = judged.where("reason IS NOT NULL")
        aside.write.mode("overwrite").parquet(str(self._directory / "aside"))
        latest = Window.partitionBy("customer_id").orderBy(F.desc("event_id"))
        clean = (
            judged.where("reason IS NULL")
            .drop("reason")
            .withColumn("place", F.row_number().over(latest))
            .where("place = 1")
            .drop("place")
            .join(F.broadcast(self._regions()), "region")
        )
        clean.repartition(FILES).write.parquet(str(self._directory / "clean"))
        counts = {
            "raw": events.count(),
            "aside": aside.count(),
            "clean": self._spark.read.parquet(str(self._directory / "clean")).count(),
        }
        _write(self._directory / "counts.json", counts)

    def _raw_events(self) -> DataFrame:
        """Everything follows from the number of the event."""
        dice = F.xxhash64("id")
        return self._spark.range(self._events).select(
            F.col("id").alias("event_id"),
            F.pmod(dice, F.lit(4 * self._events)).alias("customer_id"),
            F.when(F.pmod(dice, F.lit(50)) == 0, "nobody")
            .otherwise(F.concat(F.lit("c"), F.hex(dice), F.lit("@example.com")))
            .alias("email"),
            F.when(F.pmod(dice, F.lit(200)) != 1, F.pmod(dice, F.lit(100_000)) / 100).alias(
                "amount"
            ),
            (F.pmod(dice, F.lit(10)) != 3).alias("consent"),
            F.element_at(
                F.array(*(F.lit(name) for name, _, _ in REGIONS)),
                (F.pmod(dice, F.lit(len(REGIONS))) + 1).cast("int"),
            ).alias("region"),
            F.concat_ws(" ", F.lit("note"), F.hex(dice), F.hex(F.xxhash64(dice))).alias("note"),
        )

    def _regions(self) -> DataFrame:
        rows = [Row(region=name, sla_hours=hours, urgency=n) for name, hours, n in REGIONS]
        return self._spark.createDataFrame(rows)

    def _clean_stream(self) -> DataFrame:
        clean = str(self._directory / "clean")
        schema = self._spark.read.parquet(clean).schema
        return (
            self._spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(clean)
        )

    def _push(self) -> StreamingQuery:
        events = self._clean_stream()
        rows = forebay.spark.items(
            events.drop("urgency"),
            queue="crm",
            key="customer_id",
            flow="feed",
        )
        return (
            rows.writeStream.format("forebay")
            .option("socket", self._socket)
            .option("checkpointLocation", str(self._directory / "checkpoints" / "crm"))
            .trigger(availableNow=True)
            .start()
        )

    def _push_plainly(self) -> StreamingQuery:
        socket = self._socket

        def push(rows: Any) -> None:
            with (
                forebay.connect(socket, wait=DAEMON_S) as client,
                client.pusher("plain") as pusher,
            ):
                for row in rows:
                    pusher.send(row.payload.encode())

        def push_batch(batch: DataFrame, _number: int) -> None:
            batch.select(F.to_json(F.struct("*")).alias("payload")).foreachPartition(push)

        return (
            self._clean_stream()
            .writeStream.foreachBatch(push_batch)
            .option("checkpointLocation", str(self._directory / "checkpoints" / "plain"))
            .trigger(availableNow=True)
            .start()
        )

    def _drain(self) -> None:
        """What came through `foreachPartition`, to Parquet, exactly once; and what is in it."""
        drained = str(self._directory / "drained")
        query = (
            self._spark.readStream.format("forebay")
            .option("queue", "plain")
            .option("consumer", "demo")
            .option("socket", self._socket)
            .load()
            .writeStream.format("parquet")
            .option("path", drained)
            .option("checkpointLocation", str(self._directory / "checkpoints" / "drain"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        event = F.get_json_object(F.col("payload").cast("string"), "$.event_id")
        found = (
            self._spark.read.parquet(drained)
            .select(event.alias("event"))
            .agg(F.count("*").alias("items"), F.countDistinct("event").alias("events"))
            .first()
        )
        assert found is not None
        _write(self._directory / "drained.json", found.asDict())

    def _wait_until_delivered(self) -> None:
        with forebay.connect(self._socket, wait=DAEMON_S) as client:
            while client.stats()["queues"]["crm"]["held"]:
                time.sleep(LOOK_S)

    def _report(self) -> None:
        events = str(self._directory / "state" / "events")
        report(self._spark, [events], str(self._directory / "report"), title="forebay: make demo")

    def _say(self, phase: str) -> None:
        _write(self._directory / "phase.json", {"phase": phase})


def _write(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


if __name__ == "__main__":
    Driver(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])).run()
