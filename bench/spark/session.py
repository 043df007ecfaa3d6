"""The Spark session of the benchmark, its rows, and how long a job takes."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def start(jar: Path | None) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("forebay-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    if jar is not None:
        builder = builder.config("spark.jars", str(jar))
    return builder.getOrCreate()


def payloads(spark: SparkSession, rows: int) -> DataFrame:
    """JSON of about 300 bytes in a column `payload`, half of which is the same in all rows."""
    text = F.concat(
        F.lit('{"event_id":'),
        F.col("id").cast("string"),
        F.lit(',"customer":"'),
        F.xxhash64("id").cast("string"),
        F.lit(
            '","region":"emea-north","stage":"customer","note":"asked about the renewal of seats '
        ),
        F.lit("for the next quarter, budget and legal review moved, waiting for the contract"),
        F.lit('","channel":"mail","score":'),
        F.xxhash64("id", F.lit(1)).cast("string"),
        F.lit(',"is_partner":false,"source":"crm-feed"}'),
    )
    return spark.range(0, rows, 1, 4).select(text.alias("payload"))


def in_memory(df: DataFrame) -> DataFrame:
    """Rows that are there already: what is measured is where they go."""
    df = df.cache()
    df.count()
    return df


def rows_per_s(rows: int, job: Callable[[], object]) -> float:
    started = time.perf_counter()
    job()
    return rows / (time.perf_counter() - started)
