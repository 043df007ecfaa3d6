"""A driver of its own: a Spark application that a test can kill.

    python -m tests.spark.driver DIRECTORY '[{"socket": …, "queue": …, "rows": "1000"}]'

Each job writes to a queue, all of them at the same time: rows of numbers in a transaction, or with
`source` and `checkpoint` a directory of text files as a stream.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.spark.quick import FEW_ROWS

HANG_S = 600
"""Nothing is measured by it: a driver that hangs should fail the test."""

Job = dict[str, str]


def start(jobs: Sequence[Job], directory: Path) -> subprocess.Popen[bytes]:
    """In a process group of its own, with its JVM."""
    command = [sys.executable, "-m", "tests.spark.driver", str(directory), json.dumps(jobs)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    return subprocess.Popen(command, env=environment, start_new_session=True)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Python and the JVM, with no time for last words."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def do(spark: SparkSession, job: Job) -> None:
    # Spark finds Python data sources through the thread's active session, and a new thread of
    # Python's has none.
    of_jvm: Any = spark._get_j_spark_session_class(spark._jvm)
    of_jvm.setActiveSession(spark._jsparkSession)
    if "source" in job:
        stream(spark, **job)
    else:
        batch(spark, **job)


def batch(spark: SparkSession, socket: str, queue: str, rows: str) -> None:
    values = spark.range(0, int(rows), 1, 3).select(F.col("id").cast("string").alias("value"))
    writer = values.write.format("forebay").mode("append").options(queue=queue, socket=socket)
    writer.options(txnAppId=queue, txnVersion="1").save()


def stream(spark: SparkSession, socket: str, queue: str, source: str, checkpoint: str) -> None:
    values = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(source)
    writer = values.repartition(3).writeStream.format("forebay").trigger(availableNow=True)
    writer = writer.options(queue=queue, socket=socket, checkpointLocation=checkpoint)
    writer.start().awaitTermination()


def main() -> None:
    directory, jobs = sys.argv[1:]
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.driver.host", "127.0.0.1")
    for name, value in FEW_ROWS.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.local.dir", directory).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with ThreadPoolExecutor() as threads:
        for begun in [threads.submit(do, spark, job) for job in json.loads(jobs)]:
            begun.result()


if __name__ == "__main__":
    main()
