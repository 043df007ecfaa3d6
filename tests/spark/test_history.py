"""`spark.read` with `state` = `history`: what was finished, with how it ended in columns."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from forebay import Control, connect
from tests.daemon.cli.commands import HANG_S, Host
from tests.eventually import eventually_sync
from tests.spark.test_batch_reads import read, until_dead


def test_what_was_finished_is_read_with_its_outcome_and_errors(
    spark: SparkSession, host: Host, queue: str
) -> None:
    with connect(host.socket) as client:
        control = Control(client.control)
        settings = {"history": "all", "backoff": {"initial": "1ms", "jitter": 0.0}}
        control.create_queue(queue, settings)
        client.push(queue, [f"{n}" for n in range(2500)], flow="feed", headers={"a": "b"})
        left = 2500
        while left:
            with client.lease(queue, 2500, wait_s=HANG_S, lease_s=3600) as leased:
                assert leased, f"{left} items are left"
                first = [item for item in leased if not item.attempt]
                never = [item for item in first if item.text == "8"]
                later = [item for item in first if item.text == "7"]
                leased.nack(never, error="never", permanent=True)
                leased.nack(later, error="not now")
                left -= len(leased) - len(later)
        until_dead(control, queue, 1)
        assert control.dead_remove({"queue": queue}) == 1

    def whole() -> DataFrame:
        """The last rows are written a moment after they were settled."""
        rows = read(spark, host, queue, state="history").cache()
        found = rows.count()
        if found < 2500:
            rows.unpersist()
        assert found >= 2500
        return rows

    past = eventually_sync(whole)
    found = past.agg(
        F.count("*").alias("items"),
        F.countDistinct("id").alias("ids"),
        F.sum(F.expr("cast(cast(payload AS STRING) AS INT)")).alias("sum"),
        F.count(F.when(F.col("finished_at") >= F.col("enqueued_at"), 1)).alias("ordered"),
    ).first()
    assert found is not None
    assert found.asDict() == {
        "items": 2500,
        "ids": 2500,
        "sum": sum(range(2500)),
        "ordered": 2500,
    }
    ends = past.groupBy("outcome", "attempt", "error", "flow").count().collect()
    assert {tuple(row) for row in ends} == {
        ("delivered", 1, None, "feed", 2498),
        ("delivered", 2, "not now", "feed", 1),
        ("deleted", 1, "never", "feed", 1),
    }
    (failed,) = past.filter("outcome = 'deleted'").select("headers", "errors", "payload").collect()
    assert failed.headers["a"] == "b"
    assert [(error.attempt, error.text) for error in failed.errors] == [(1, "never")]
    assert [error.failure_reason for error in failed.errors] == ["application"]
    assert bytes(failed.payload) == b"8"
    past.unpersist()


def test_a_queue_without_history_has_no_rows(spark: SparkSession, host: Host, queue: str) -> None:
    rows = read(spark, host, queue, state="history")
    said = ["locked_by", "locked_at", "result", "job", "error", "errors"]
    assert rows.columns[-8:] == ["outcome", "finished_at", *said]
    assert rows.count() == 0
