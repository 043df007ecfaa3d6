"""A driver on a cluster of two hosts, which does as it is told: run as a script, by test_fleet.py.

    python fleet_driver.py MASTER DIRECTORY

Reads jobs from its input, a JSON object a line, runs them all at the same time, and answers each
with a line: its `id`, and the `error` if it has failed. It is run as a script so that what tasks
need of it is pickled by value. No socket is named: driver and tasks find that of their own host.
"""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from forebay.spark import ForebaySource
from forebay.spark.writer import ForebayWriter, Staged

MASTER, DIRECTORY = sys.argv[1:]
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    # Both hosts take part from the first task on.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.scheduler.mode": "FAIR",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "3",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    # A few rows are done before what would be compiled for them is.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}


def attempt() -> int:
    context = TaskContext.get()
    assert context is not None
    return int(context.attemptNumber())


def fail_twice(value: str) -> str:
    if value.endswith("77") and attempt() < 2:
        raise ValueError("not yet")
    return value


def hang_once(value: str) -> str:
    """The first attempt of the first task stops half-way, until Spark kills it."""
    while value == "77" and attempt() == 0:
        time.sleep(0.1)
    return value


def meet(value: str) -> str:
    """The first row of each task waits until both hosts have begun: both take part. A second
    attempt, which Spark makes if one of them is slow, must not overtake the first."""
    if int(value) % 500 == 0:
        while attempt() > 0:
            time.sleep(0.1)
        place = Path(DIRECTORY) / "met"
        place.mkdir(exist_ok=True)
        (place / os.environ["FOREBAY_SOCKET"].replace("/", "-")).touch()
        while len(list(place.iterdir())) < 2:
            time.sleep(0.01)
    return value


def await_copy(value: str) -> str:
    """The first attempt of the first task goes on half-way when there is a second one."""
    if value == "77":
        (begun := Path(DIRECTORY) / "begun").mkdir(exist_ok=True)
        (begun / str(attempt())).touch()
        while len(list(begun.iterdir())) < 2:
            time.sleep(0.01)
    return value


class TwiceWriter(ForebayWriter):
    """Neither copy of the first task ends before both have staged and sealed all of their rows."""

    def write(self, iterator: Iterator[Any]) -> Staged:
        staged = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0:
            (sealed := Path(DIRECTORY) / "sealed").mkdir(exist_ok=True)
            (sealed / str(attempt())).write_text(os.environ["FOREBAY_SOCKET"])
            while len(list(sealed.iterdir())) < 2:
                time.sleep(0.01)
        return staged


class TwiceSource(ForebaySource):
    @classmethod
    def name(cls) -> str:
        return "forebay_twice"

    def writer(self, schema: StructType, overwrite: bool) -> ForebayWriter:
        return TwiceWriter(super().writer(schema, overwrite)._plan)


CHANGES = {"fail": fail_twice, "hang": hang_once, "meet": meet, "twice": await_copy}


def write_rows(spark: SparkSession, job: dict[str, Any]) -> None:
    parts, rows = job["parts"], spark.range(0, job["rows"], 1, job["parts"])
    values = rows.select(F.col("id").cast("string").alias("value"))
    if job.get("shuffled"):
        values = values.repartition(parts)
    shutil.rmtree(Path(DIRECTORY) / "met", ignore_errors=True)
    change = CHANGES.get(job.get("change", ""))
    if change is not None:
        values = values.select(F.udf(change, useArrow=False)("value").alias("value"))
    name = "forebay_twice" if job.get("change") == "twice" else "forebay"
    writer = values.write.format(name).mode("append").option("queue", job["queue"])
    if "version" in job:
        writer = writer.options(txnAppId=job["queue"], txnVersion=str(job["version"]))
    writer.option("runItems", "20").save()


def write_stream(spark: SparkSession, job: dict[str, Any]) -> None:
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(job["source"])
    values: DataFrame = lines.repartition(job["parts"])
    writer = values.writeStream.format("forebay").trigger(availableNow=True)
    writer = writer.options(queue=job["queue"], checkpointLocation=job["checkpoint"])
    writer.start().awaitTermination()


def do(spark: SparkSession, job: dict[str, Any], speaking: threading.Lock) -> None:
    # Spark finds Python data sources through the thread's active session, and a new thread of
    # Python's has none.
    of_jvm: Any = spark._get_j_spark_session_class(spark._jvm)
    of_jvm.setActiveSession(spark._jsparkSession)
    error = None
    try:
        (write_stream if "source" in job else write_rows)(spark, job)
    except Exception as problem:
        error = str(problem)
    with speaking:
        print(json.dumps({"id": job["id"], "error": error}), flush=True)


def main() -> None:
    builder = SparkSession.builder.master(MASTER).appName("fleet")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.local.dir", DIRECTORY).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(TwiceSource)
    speaking = threading.Lock()
    for line in sys.stdin:
        job = json.loads(line)
        threading.Thread(target=do, args=(spark, job, speaking), daemon=True).start()
    spark.stop()


main()
