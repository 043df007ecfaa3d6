"""`replay`: puts dead letters back into a queue, changed or as they are, and removes the originals.

    replay(spark, "crm", work="/data/replays/2025-08-12",
           where="error LIKE '%timeout%'", payload="regexp_replace(payload, 'http:', 'https:')")

It has three steps. Each is done once, however often it is repeated with the same `work`:

1. Write the chosen letters to `work/letters`, as Parquet. This fixes which letters are replayed.
2. Push them in one write that is seen whole or not at all, under a transaction that belongs to
   `work`, so that a repetition is a duplicate. Items keep their ids (`retryOf`), and their attempts
   start at 0.
3. Remove the originals: exactly those of step 1, without letters that died again meanwhile.

To finish a replay that was killed, run it again. The next replay needs another `work`. A replay
cannot reach the dead letters of daemons that the tasks do not reach, and it does not keep the
headers and the error history of the letters.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

import forebay.spark.source_options as source_options
from forebay.client import connect
from forebay.control import Control
from forebay.pipeline.progress import Say, say_nothing, tasks_shown
from forebay.spark.options import OptionError
from forebay.spark.plan import make_plan

IDS_MAX: Final = 1000
"""Of one request."""
_LETTERS: Final = StructType(
    [
        StructField("id", StringType()),
        StructField("payload", BinaryType()),
        StructField("key", StringType()),
        StructField("priority", IntegerType()),
        StructField("flow", StringType()),
        StructField("action", StringType()),
    ]
)
"""What the write is planned with, before there are letters."""
COLUMNS: Final = tuple(_LETTERS.names)
_OWN: Final = {
    "payload": "payload",
    "key": "key",
    "priority": "priority",
    "flowColumn": "flow",
    "actionColumn": "action",
    "retryOf": "id",
}
"""Options of the write: letters become items again, each what it was."""


@dataclass(frozen=True, slots=True)
class Replayed:
    letters: int
    queue: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The letters that are replayed."""

    letters: DataFrame
    count: int
    died_ms: int
    """When the last of them died."""
    app: str
    """The transaction's: made with the snapshot, so that no other one is taken for its repetition,
    also if a directory is emptied and used again."""


def replay(
    spark: SparkSession,
    queue: str,
    *,
    work: str,
    to: str | None = None,
    where: str | None = None,
    payload: str | None = None,
    options: Mapping[str, str] | None = None,
    read_options: Mapping[str, str] | None = None,
    say: Say = say_nothing,
) -> Replayed:
    """Replays the dead letters of `queue` into `to` (by default the same queue).

    `where` is an SQL condition on the columns of a read with `state` dead, `payload` an SQL
    expression for the new payload; in both `payload` is the old one as text. Without an expression
    payloads stay as they are, byte for byte. Where an earlier run with the same `work` got so far
    as to choose letters, those are replayed, and both are ignored.

    `options` are further ones of the write, `read_options` of the read (`flow`, `action`, `error`);
    `socket` and `timeout` of the write hold for the read as well. What one of them does not know is
    refused before anything is read.
    """
    target, work = to or queue, work.rstrip("/")
    writing = write_options(target, options or {})
    reading = letter_options(queue, options or {}, read_options or {})
    chosen = _earlier(spark, work)
    if chosen is None:
        dead = choose(spark, where, payload, reading)
        with tasks_shown(spark, f"reading the dead letters of {queue}", say):
            chosen = _keep(spark, dead, work)
    else:
        say(f"going on with the letters in {work}/letters")
    if not chosen.count:
        say("there is nothing to replay")
        return Replayed(0, target)
    with tasks_shown(spark, f"pushing {chosen.count:,} letters to {target}", say):
        _push(chosen, writing)
    with tasks_shown(spark, "removing the originals", say):
        ids = chosen.letters.select("id")
        ids.foreachPartition(remover(queue, chosen.died_ms, reading.get("socket")))
    return Replayed(chosen.count, target)


def write_options(queue: str, given: Mapping[str, str]) -> dict[str, str]:
    """Of the write, but for its transaction; OptionError for what cannot be."""
    own = {"queue": queue, **_OWN}
    _check_own(given, (*own, "txnAppId", "txnVersion"))
    options = {**given, **own}
    make_plan(options, _LETTERS)
    return options


def letter_options(
    queue: str, written: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """Of the read; OptionError for what cannot be."""
    own = {"queue": queue, "state": "dead"}
    _check_own(given, own)
    shared = {
        name.lower(): value
        for name, value in written.items()
        if name.lower() in ("socket", "timeout")
    }
    options = {**shared, **{name.lower(): value for name, value in given.items()}, **own}
    source_options.read_options(options)
    return options


def _check_own(given: Mapping[str, str], own: Iterable[str]) -> None:
    names = {name.lower() for name in own}
    for name in given:
        if name.lower() in names:
            raise OptionError(name, given[name], "a replay sets it itself")


def choose(
    spark: SparkSession, where: str | None, payload: str | None, options: Mapping[str, str]
) -> DataFrame:
    """The dead letters that `where` chooses, with their new payloads."""
    reading = spark.read.format("forebay").options(**dict(options))
    dead = reading.load().withColumn("raw", F.col("payload"))
    dead = dead.withColumn("payload", F.col("payload").cast("string"))
    if where is not None:
        dead = dead.where(where)
    fresh = F.col("raw") if payload is None else F.expr(payload).cast("binary")
    return dead.withColumn("payload", fresh).select(*COLUMNS, "died_at")


def _earlier(spark: SparkSession, work: str) -> Snapshot | None:
    """What an earlier run has chosen. Its last word is a file of one row: without that, the letters
    may not be complete."""
    try:
        row = spark.read.parquet(f"{work}/chosen").first()
    except AnalysisException:
        return None
    return None if row is None else _snapshot(spark, work, row)


def _keep(spark: SparkSession, dead: DataFrame, work: str) -> Snapshot:
    dead.write.mode("overwrite").parquet(f"{work}/letters")
    letters = spark.read.schema(dead.schema).parquet(f"{work}/letters")
    summary = letters.agg(
        F.count("*").alias("count"),
        F.coalesce(F.unix_millis(F.max("died_at")), F.lit(0)).alias("died_ms"),
        F.lit(f"forebay-replay-{uuid.uuid4().hex}").alias("app"),
    )
    summary.coalesce(1).write.mode("overwrite").parquet(f"{work}/chosen")
    row = spark.read.parquet(f"{work}/chosen").first()
    assert row is not None
    return _snapshot(spark, work, row)


def _snapshot(spark: SparkSession, work: str, row: Row) -> Snapshot:
    letters = spark.read.parquet(f"{work}/letters")
    return Snapshot(letters, row["count"], row["died_ms"], row["app"])


def _push(chosen: Snapshot, options: Mapping[str, str]) -> None:
    (
        chosen.letters.select(*COLUMNS)
        .write.format("forebay")
        .options(**dict(options))
        .option("txnAppId", chosen.app)
        .option("txnVersion", "1")
        .mode("append")
        .save()
    )


def remover(queue: str, died_ms: int, socket: str | None) -> Callable[[Iterator[Row]], None]:
    """Removes letters of one partition, by their ids, and only those that were dead by then."""

    def remove(rows: Iterator[Row]) -> None:
        ids = (row.id for row in rows)
        chunk = list(islice(ids, IDS_MAX))
        if not chunk:
            return
        with connect(socket) as client:
            control = Control(client.control)
            while chunk:
                control.dead_remove({"queue": queue, "ids": chunk, "died_before_ms": died_ms + 1})
                chunk = list(islice(ids, IDS_MAX))

    return remove
