"""A save of many rows into forebay, durable, beside other ways to write them."""

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from bench.daemon_process import Daemon, Places, places
from bench.figures import Goal, Row, Samples
from bench.plan import Plan
from bench.redis_peer import redis_list
from bench.spark.discarding import discarding_daemon
from bench.spark.postgres import find_binaries, find_jar, postgres
from bench.spark.session import in_memory, payloads, rows_per_s

QUEUE: Final = "bench"
REDIS_BATCH: Final = 1000
JDBC_BATCH: Final = 10_000


def writing(spark: SparkSession, rows: int, plan: Plan) -> list[Row]:
    df = in_memory(payloads(spark, rows))
    found: dict[str, list[float]] = {}
    for _ in plan.each_round("writing"):
        for name, rate in _contenders(spark, df, rows).items():
            found.setdefault(name, []).append(rate)
    df.unpersist()
    ours = Samples.of(found["forebay"])

    def row(name: str, goal: Goal | None, unit: str = "items/s") -> Row:
        limit = Samples.of(found[name]) if name in found else None
        return Row("a", f"{rows:,} rows × 300 B, durable", unit, ours, name, limit, goal)

    return [
        row("into a socket that discards", Goal(ratio_min=0.8)),
        row("JDBC append, rewritten batches", Goal(ratio_min=3)),
        row("foreachPartition, Redis", Goal(ratio_min=5)),
        row("noop", None),
    ]


def _contenders(spark: SparkSession, df: DataFrame, rows: int) -> dict[str, float]:
    """One after the other, each with a fresh store."""
    rates = {"noop": rows_per_s(rows, df.write.format("noop").mode("overwrite").save)}
    with places("spark") as where:
        with discarding_daemon(where.sockets / "discard.sock") as path:
            _warm_up(spark, path)
            rates["into a socket that discards"] = rows_per_s(rows, _save(df, path))
        spool = {"max_bytes": "8Gi"}
        with Daemon(where, spool, queues={QUEUE: {"handler": {"type": "pull"}}}) as daemon:
            _warm_up(spark, daemon.socket)
            rates["forebay"] = rows_per_s(rows, _save(df, daemon.socket))
        rates["foreachPartition, Redis"] = _redis(df, rows, where)
        if (jdbc := _jdbc(spark, df, rows, where)) is not None:
            rates["JDBC append, rewritten batches"] = jdbc
    return rates


def _save(df: DataFrame, path: Path) -> Callable[[], None]:
    writer = df.write.format("forebay").option("queue", QUEUE).option("socket", str(path))
    return writer.mode("append").save


def _warm_up(spark: SparkSession, path: Path) -> None:
    """The first save starts Python workers, which later ones find running."""
    _save(payloads(spark, 1000), path)()


def _redis(df: DataFrame, rows: int, where: Places) -> float:
    with redis_list(where) as peer:
        path = str(peer.path)

        def push(partition: Iterator[Any]) -> None:
            client = import_module("valkey").Valkey(unix_socket_path=path)
            while batch := [row.payload for row in islice(partition, REDIS_BATCH)]:
                client.rpush("bench", *batch)

        df.limit(10).foreachPartition(push)
        return rows_per_s(rows, lambda: df.foreachPartition(push))


def _jdbc(spark: SparkSession, df: DataFrame, rows: int, where: Places) -> float | None:
    """None if this machine has no PostgreSQL, or no JDBC driver for it."""
    binaries = find_binaries()
    if binaries is None or find_jar() is None:
        return None
    with postgres(binaries, where.sockets / "postgres") as url:

        def save(frame: DataFrame) -> None:
            writer = frame.write.format("jdbc").option("url", url).option("dbtable", "bench")
            writer.option("driver", "org.postgresql.Driver").option(
                "batchsize", str(JDBC_BATCH)
            ).mode("append").save()

        save(payloads(spark, 1000))
        return rows_per_s(rows, lambda: save(df))
