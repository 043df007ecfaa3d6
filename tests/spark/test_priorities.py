"""Labels of priorities in a save: the daemon's own, asked for on the driver."""

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.daemon.cli.commands import Host, running
from tests.spark.pulling import pull_all

LABELS = {"now": 1, "whenever": 200}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    directory = tmp_path_factory.mktemp("labels")
    with running(Host(directory, {"priorities": LABELS})) as host:
        yield host


def test_labels_of_an_option_and_of_a_column(
    spark: SparkSession, labelled: Host, queue: str
) -> None:
    rows = spark.range(4).select(
        F.col("id").cast("string").alias("payload"),
        F.when(F.col("id") == 0, "now").when(F.col("id") == 1, "7").alias("tier"),
    )
    writer = rows.write.format("forebay").mode("append")
    writer = writer.options(queue=queue, socket=str(labelled.socket))
    writer.option("priority", "whenever").save()
    assert {item.priority for item in pull_all(labelled.socket, queue)} == {200}
    writer.option("priority", "tier").save()
    found = {item.text: item.priority for item in pull_all(labelled.socket, queue)}
    assert found == {"0": 1, "1": 7, "2": 5, "3": 5}


def test_a_label_of_another_configuration_is_refused_before_data_moves(
    spark: SparkSession, labelled: Host, queue: str
) -> None:
    rows = spark.range(1).select(F.lit("x").alias("payload"))
    writer = rows.write.format("forebay").mode("append").option("queue", queue)
    writer = writer.option("socket", str(labelled.socket)).option("priority", "high")
    with pytest.raises(PySparkException, match=r"'priority' is 'high'.*now \(1\), whenever"):
        writer.save()
