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
        .config("spark.driver.memory", "2g")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    if jar is not None:
        builder = builder.config("spark.jars", str(jar))
    return builder.getOrCreate()


def payloads(spark: SparkSession, rows: int) -> DataFrame:
    """JSON of about 300 bytes in a column `payload`, half of which is the same in all rows."""
    dice = F.xxhash64("id")
    text = F.concat(
        F.lit('{"event_id":'),
        F.col("id").cast("string"),
        F.lit(',"customer":{"id":"'),
        F.hex(dice),
        F.lit('","region":"emea-north","stage":"customer","score":'),
        F.pmod(dice, F.lit(1000)).cast("string"),
        F.lit('},"note":"'),
        F.hex(F.xxhash64(dice)),
        F.lit(" asked about the renewal of seats for the next quarter, budget "),
        F.hex(F.xxhash64(dice, F.col("id"))),
        F.lit('","channel":"mail","is_partner":false,"source":"crm-feed"}'),
    )
    return spark.range(0, rows, 1, 4).select(text.alias("payload"))


def rows_per_s(rows: int, job: Callable[[], object]) -> float:
    started = time.perf_counter()
    job()
    return rows / (time.perf_counter() - started)
