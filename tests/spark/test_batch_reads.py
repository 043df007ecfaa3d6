"""`spark.read`: what waits and what has died, as DataFrames; looking changes nothing."""

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from forebay import Control, connect
from tests.daemon.cli.commands import HANG_S, Host
from tests.eventually import eventually_sync
from tests.spark.pulling import pull_all


def read(spark: SparkSession, host: Host, queue: str, **options: str) -> DataFrame:
    reader = spark.read.format("forebay").option("socket", str(host.socket))
    return reader.options(queue=queue, **options).load()


def until_dead(control: Control, queue: str, count: int) -> None:
    """A dead letter is one when the cold store has it, which is a little after it was settled."""

    def dead() -> None:
        found = control.dead_count({"queue": queue})
        assert found >= count, f"{found} of {count} letters"

    eventually_sync(dead)


def kill(host: Host, queue: str, items: int) -> set[str]:
    """Pushes items, and reports them as failed: the even ones at once for good, the odd ones when
    they are tried again. Their ids."""
    ids: set[str] = set()
    with connect(host.socket) as client:
        control = Control(client.control)
        control.create_queue(queue, {"backoff": {"initial": "1ms", "jitter": 0.0}})
        client.push(
            queue,
            [json.dumps({"n": n}) for n in range(items)],
            keys=[f"key-{n}" for n in range(items)],
            flow="feed",
            headers={"source": "test"},
            run_items=10,
        )
        left = items
        while left:
            with client.lease(queue, items, wait_s=HANG_S, lease_s=3600) as leased:
                assert leased, f"{left} of {items} items are left"
                ids |= {item.id for item in leased}
                first = [item for item in leased if item.attempt == 0]
                odd = [item for item in first if item.json()["n"] % 2]
                even = [item for item in first if not item.json()["n"] % 2]
                tried = [item for item in leased if item.attempt]
                leased.nack(odd, error="timeout")
                leased.nack(even, error="no such customer", permanent=True)
                leased.nack(tried, error="gone", permanent=True)
                left -= len(even) + len(tried)
        until_dead(control, queue, items)
    return ids


def test_what_waits_is_seen_and_stays(spark: SparkSession, host: Host, queue: str) -> None:
    with connect(host.socket) as client:
        client.push(queue, [b"%d" % n for n in range(2500)], priority=3, action="upsert")
        host.until_counts(queue, spooled=0)
        before = client.stats()["queues"][queue]
        rows = read(spark, host, queue, state="queued").union(
            read(spark, host, queue, state="cold")
        )
        found = rows.groupBy("priority", "action", "attempt").agg(
            F.count("*").alias("items"),
            F.countDistinct("id").alias("ids"),
            F.sum(F.expr("cast(cast(payload AS STRING) AS INT)")).alias("sum"),
            F.count("due_at").alias("due"),
        )
        assert [row.asDict() for row in found.collect()] == [
            {
                "priority": 3,
                "action": "upsert",
                "attempt": 0,
                "items": 2500,
                "ids": 2500,
                "sum": sum(range(2500)),
                "due": 0,
            }
        ]
        after = client.stats()["queues"][queue]
        assert after["held"] == before["held"] == 2500
        assert after["delivered"] == 0


def test_what_is_due_later_is_cold(spark: SparkSession, host: Host, queue: str) -> None:
    with connect(host.socket) as client:
        client.push(queue, ["later"], delay=3600)
    host.until_counts(queue, cold=1)
    (row,) = read(spark, host, queue, state="cold").collect()
    assert bytes(row.payload) == b"later"
    assert 3590 < (row.due_at - row.enqueued_at).total_seconds() <= 3601
    assert read(spark, host, queue).count() == 0


def test_dead_letters_have_their_errors_in_columns(
    spark: SparkSession, host: Host, queue: str
) -> None:
    ids = kill(host, queue, 40)
    rows = {row.id: row.asDict() for row in read(spark, host, queue, state="dead").collect()}
    assert set(rows) == ids
    by_number: dict[int, dict[str, Any]] = {
        json.loads(row["payload"])["n"]: row for row in rows.values()
    }
    once, twice = by_number[6], by_number[7]
    assert (once["key"], once["flow"], once["attempt"]) == ("key-6", "feed", 1)
    assert once["headers"]["source"] == "test"
    assert once["error"] == "no such customer"
    assert [error.text for error in once["errors"]] == ["no such customer"]
    assert twice["error"] == "gone"
    assert [(error.attempt, error.text) for error in twice["errors"]] == [
        (1, "timeout"),
        (2, "gone"),
    ]
    assert twice["enqueued_at"] <= twice["errors"][0].at <= twice["errors"][1].at
    assert twice["died_at"] >= twice["enqueued_at"]
    assert twice["due_at"] is None
    gone = read(spark, host, queue, state="dead", error="GONE")
    assert gone.count() == 20
    assert gone.select(F.explode("errors.text").alias("text")).distinct().count() == 2


def test_dead_letters_that_are_mended_and_written_back_keep_their_ids(
    spark: SparkSession, host: Host, queue: str
) -> None:
    ids = kill(host, queue, 40)
    mended = read(spark, host, queue, state="dead", error="gone").withColumn(
        "payload", F.concat(F.lit(b"mended "), "payload")
    )
    writer = mended.write.format("forebay").mode("append").option("socket", str(host.socket))
    writer.options(queue=queue, payload="payload", key="key", retryOf="id").save()
    again = {item.id: item for item in pull_all(host.socket, queue)}
    assert len(again) == 20
    assert set(again) < ids
    for item in again.values():
        assert item.payload.startswith(b"mended {")
        number = json.loads(item.payload.removeprefix(b"mended "))["n"]
        assert (item.key, item.attempt) == (f"key-{number}", 0)


def test_only_the_columns_of_a_given_schema_are_read(
    spark: SparkSession, host: Host, queue: str
) -> None:
    with connect(host.socket) as client:
        client.push(queue, ["x"])
    host.until_counts(queue, spooled=0)
    reader = spark.read.format("forebay").schema("payload BINARY, priority INT")
    rows = reader.options(queue=queue, socket=str(host.socket)).load()
    assert rows.columns == ["payload", "priority"]
    assert [(bytes(row.payload), row.priority) for row in rows.collect()] == [(b"x", 5)]
