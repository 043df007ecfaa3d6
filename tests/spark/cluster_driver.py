"""A driver on a cluster whose Python does not have forebay: run as a script, by test_cluster.py.

    python cluster_driver.py MASTER CLIENT SOCKET QUEUE DIRECTORY

CLIENT is where this process alone finds the package; tasks look where its PYTHONPATH says. It is
run as a script so that what tasks need of it is pickled by value, as in a notebook.
"""

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

MASTER, CLIENT, SOCKET, QUEUE, DIRECTORY = sys.argv[1:]
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
}


def main() -> None:
    builder = SparkSession.builder.master(MASTER)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.local.dir", DIRECTORY).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    sys.path.append(CLIENT)
    from forebay.spark import last_receipt, register

    register(spark)
    directory = DIRECTORY

    def hang_once(value: str) -> str:
        """The first attempt of the first task stops half-way, until Spark kills it."""
        if value == "900":
            context = TaskContext.get()
            assert context is not None
            is_there = importlib.util.find_spec("forebay") is not None
            seen = f"attempt-{context.attemptNumber()}-{'with' if is_there else 'without'}"
            (Path(directory) / seen).touch()
            while context.attemptNumber() == 0:
                time.sleep(0.1)
        return value

    rows = spark.range(0, 4000, 1, 4).select(F.col("id").cast("string").alias("value"))
    rows = rows.select(F.udf(hang_once, useArrow=False)("value").alias("value"))
    writer = rows.write.format("forebay").mode("append").options(queue=QUEUE, socket=SOCKET)
    writer.option("runItems", "50").save()
    receipt = last_receipt(spark)

    source = Path(DIRECTORY) / "source"
    source.mkdir()
    (source / "lines.txt").write_text("".join(f"{at}\n" for at in range(4000, 4100)))
    stream = spark.readStream.format("text").load(str(source)).writeStream.format("forebay")
    stream = stream.options(queue=QUEUE, socket=SOCKET, checkpointLocation=f"{DIRECTORY}/points")
    stream.trigger(availableNow=True).start().awaitTermination()
    print(json.dumps({"accepted": receipt.accepted if receipt else None}))
    spark.stop()


main()
