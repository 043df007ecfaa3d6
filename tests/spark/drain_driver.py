"""A Spark driver to be killed: reads two queues as streams, and says on stdout where it is.

`inside`: the query has written its second batch, and never gets to committing it. `between`: the
query has committed its first batch, and waits an hour for the next trigger.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.conftest import SETTINGS

ITEMS = "300"


def stream(
    spark: SparkSession, socket: Path | str, queue: str, consumer: str, **options: str
) -> DataFrame:
    reader = spark.readStream.format("forebay").option("socket", str(socket))
    return reader.options(queue=queue, consumer=consumer, **options).load()


def as_offset(text: str) -> dict[str, Any]:
    offset = json.loads(text)
    assert isinstance(offset, dict)
    return offset


def start_inside(
    spark: SparkSession, socket: str, place: Path, written: Callable[[int], None]
) -> StreamingQuery:
    """Each batch overwrites a directory of its own: as often as it runs, it is there once."""

    def each(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(str(place / "out" / f"batch={batch_id}"))
        written(batch_id)

    rows = stream(spark, socket, "killed-inside", "inside", maxItemsPerTrigger=ITEMS)
    writer = rows.writeStream.option("checkpointLocation", str(place / "checkpoint"))
    return writer.trigger(availableNow=True).foreachBatch(each).start()


def start_between(spark: SparkSession, socket: str, place: Path) -> StreamingQuery:
    rows = stream(spark, socket, "killed-between", "between", maxItemsPerTrigger=ITEMS)
    writer = rows.writeStream.option("checkpointLocation", str(place / "checkpoint"))
    writer = writer.queryName("between").trigger(processingTime="1 hour")
    return writer.format("parquet").start(str(place / "out"))


class Committed(StreamingQueryListener):
    """Sets its event when the query of this name has committed a batch."""

    def __init__(self, name: str) -> None:
        self.event = Event()
        self._name = name

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if event.progress.name == self._name:
            self.event.set()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def main(socket: str, directory: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    waits = Committed("between")
    spark.streams.addListener(waits)
    start_between(spark, socket, Path(directory) / "between")

    def written(batch_id: int) -> None:
        if batch_id == 1:
            print("inside", flush=True)
            Event().wait()

    start_inside(spark, socket, Path(directory) / "inside", written)
    waits.event.wait()
    print("between", flush=True)
    Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
