"""The event logs of many hosts as one DataFrame: what the daemons write, both formats.

The columns are those of the daemon (docs/operations.md, "Event log"), and beside them `weight`:
how many events one stands for, where runs are sampled. Files that are still being written
(`.part`) are left alone.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

COLUMNS: Final = {
    "kind": "string",
    "at_ms": "bigint",
    "host": "string",
    "pid": "bigint",
    "queue": "string",
    "flow": "string",
    "action": "string",
    "priority": "bigint",
    "destination": "string",
    "run": "string",
    "items": "bigint",
    "bytes": "bigint",
    "attempt": "bigint",
    "outcome": "string",
    "error": "string",
    "enqueued_ms": "bigint",
    "started_ms": "bigint",
    "wait_ms": "bigint",
    "processing_ms": "double",
    "batch_items": "bigint",
    "sample": "double",
    "state": "string",
    "count": "bigint",
    "workers": "bigint",
    "batch_max": "bigint",
    "rate_limit": "double",
    "warm_max_items": "bigint",
}
SCHEMA: Final = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())


def read_events(
    spark: SparkSession,
    paths: Sequence[str],
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> DataFrame:
    """Directories (searched to any depth) or files. Nothing is read before it is used."""
    reader = spark.read.schema(SCHEMA).option("recursiveFileLookup", "true")
    lines = reader.option("pathGlobFilter", "*.ndjson.gz").json(list(paths))
    columns = reader.option("pathGlobFilter", "*.parquet").parquet(*paths)
    events = lines.unionByName(columns).where("kind IS NOT NULL AND at_ms IS NOT NULL")
    if since_ms is not None:
        events = events.where(F.col("at_ms") >= since_ms)
    if until_ms is not None:
        events = events.where(F.col("at_ms") < until_ms)
    return events.withColumn(
        "weight", F.when(F.col("sample") > 0, 1 / F.col("sample")).otherwise(1.0)
    )
