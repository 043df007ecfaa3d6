"""`report`: the event logs of many hosts become Parquet tables and one page.

    report(spark, ["/var/log/forebay/events"], "/tmp/report")

It first writes the events as one Parquet table, which everything else reads. Then the cluster
computes and writes the tables. The driver gets aggregates of a bounded size: the page shows only
the largest queues, flows, errors and outages, and says how many there are. Tables of an earlier
report at the same place are replaced.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import forebay.pipeline.aggregates as aggregates
from forebay.pipeline.progress import Say, say_nothing
from forebay.pipeline.report_data import ErrorKind, Flow, Gap, Percentiles, ReportData, Step
from forebay.pipeline.report_page import render
from forebay.pipeline.sizing import QueueLoad

QUEUES_MAX: Final = 20
FLOWS_MAX: Final = 60
ERRORS_MAX: Final = 30
GAPS_MAX: Final = 300

COLUMNS: Final = {
    "kind": "string",
    "at_ms": "bigint",
    "host": "string",
    "pid": "bigint",
    "queue": "string",
    "flow": "string",
    "action": "string",
    "priority": "bigint",
    "destination": "string",
    "run": "string",
    "items": "bigint",
    "bytes": "bigint",
    "attempt": "bigint",
    "outcome": "string",
    "error": "string",
    "enqueued_ms": "bigint",
    "started_ms": "bigint",
    "wait_ms": "bigint",
    "processing_ms": "double",
    "batch_items": "bigint",
    "sample": "double",
    "state": "string",
    "count": "bigint",
    "workers": "bigint",
    "batch_max": "bigint",
    "rate_limit": "double",
    "warm_max_items": "bigint",
}
SCHEMA: Final = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())


class NoEvents(ValueError):
    """There is nothing to report about."""


@dataclass(frozen=True, slots=True)
class Report:
    page: str
    tables: dict[str, str]
    data: ReportData


def report(
    spark: SparkSession,
    events: Sequence[str],
    out: str,
    *,
    page: str | None = None,
    title: str = "forebay",
    since_ms: int | None = None,
    until_ms: int | None = None,
    say: Say = say_nothing,
) -> Report:
    """Reads `events` (directories or files), writes tables below `out` and the page (by default
    `out`/report.html). Raises NoEvents if there are none."""
    tables = Tables(out, say)
    say("reading the events")
    found = tables.keep("events", read_events(spark, events, since_ms, until_ms))
    data = gather(found, title, tables)
    page = page or f"{out.rstrip('/')}/report.html"
    say(f"writing {page}")
    write_text(spark, page, render(data))
    return Report(page, tables.paths, data)


def read_events(
    spark: SparkSession,
    paths: Sequence[str],
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> DataFrame:
    """The event logs of many hosts as one DataFrame, from directories (searched to any depth) or
    files, in both formats that daemons write. Nothing is read before it is used.

    The columns are the daemon's (docs/operations.md, "Event log") and `weight`: how many events a
    row stands for, where runs are sampled. Files that are still being written (`.part`) are left
    out.
    """
    reader = spark.read.schema(SCHEMA).option("recursiveFileLookup", "true")
    lines = reader.option("pathGlobFilter", "*.ndjson.gz").json(list(paths))
    columns = reader.option("pathGlobFilter", "*.parquet").parquet(*paths)
    events = lines.unionByName(columns).where("kind IS NOT NULL AND at_ms IS NOT NULL")
    if since_ms is not None:
        events = events.where(F.col("at_ms") >= since_ms)
    if until_ms is not None:
        events = events.where(F.col("at_ms") < until_ms)
    return events.withColumn(
        "weight", F.when(F.col("sample") > 0, 1 / F.col("sample")).otherwise(1.0)
    )


class Tables:
    """Writes tables, and gives back what was written, so that nothing is computed twice."""

    def __init__(self, out: str, say: Say) -> None:
        self._out = out.rstrip("/")
        self._say = say
        self.paths: dict[str, str] = {}

    def keep(self, name: str, table: DataFrame) -> DataFrame:
        path = f"{self._out}/tables/{name}"
        self._say(f"table {name}")
        table.write.mode("overwrite").parquet(path)
        self.paths[name] = path
        return table.sparkSession.read.schema(table.schema).parquet(path)


def gather(events: DataFrame, title: str, tables: Tables) -> ReportData:
    span = events.agg(
        F.min("at_ms").alias("first_ms"),
        F.max("at_ms").alias("last_ms"),
        F.count("*").alias("events"),
        F.countDistinct("host").alias("hosts"),
        F.min("sample").alias("sample"),
        F.sum(F.when(F.col("kind") == "lost", F.col("count")).otherwise(0)).alias("lost"),
    ).first()
    if span is None or not span.events:
        raise NoEvents(
            "there are no events there: is `events.mode` set, and has a file been rolled?"
        )
    step = aggregates.step_s(span.first_ms, span.last_ms)
    slices = aggregates.slices(events)
    by_step = tables.keep("steps", aggregates.by_step(slices, step))
    arrivals = tables.keep("arrivals", aggregates.arrivals(slices, step))
    by_flow = tables.keep("flows", aggregates.by_flow(slices))
    errors = tables.keep("errors", aggregates.errors(slices))
    gaps = _gaps(events, tables)
    queues = tables.keep("queues", _queues(events, slices, arrivals, gaps, step))
    loads = [
        _load(row, span) for row in _top(queues, F.col("delivered") + F.col("retried"), QUEUES_MAX)
    ]
    shown = [load.queue for load in loads]
    flows = _top(by_flow, F.col("tries"), FLOWS_MAX)
    longest = _top(gaps, F.col("to_ms") - F.col("from_ms"), GAPS_MAX)
    return ReportData(
        title=title,
        first_ms=span.first_ms,
        last_ms=span.last_ms,
        step_s=step,
        hosts=span.hosts,
        events=span.events,
        lost=span.lost,
        sample=span.sample or 1.0,
        steps=_steps(by_step, arrivals, shown),
        flows=tuple(_flow(row) for row in flows),
        flows_total=_total(by_flow, len(flows), FLOWS_MAX),
        errors=tuple(
            _error(row) for row in _top(errors, F.col("retried") + F.col("dead"), ERRORS_MAX)
        ),
        gaps=tuple(_gap(row) for row in longest),
        gaps_total=_total(gaps, len(longest), GAPS_MAX),
        loads=tuple(loads),
        tables=dict(tables.paths),
    )


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """To a plain path with Python, to anything with a scheme through Hadoop."""
    if "://" not in path and not path.startswith("file:"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
        return
    # Spark Connect has no JVM at hand, and says so.
    session: Any = spark
    where = session._jvm.org.apache.hadoop.fs.Path(path)
    stream = where.getFileSystem(session._jsc.hadoopConfiguration()).create(where, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def _gaps(events: DataFrame, tables: Tables) -> DataFrame:
    """All that was away, of whatever kind."""
    lived = aggregates.with_lives(events)
    lives = tables.keep("lives", aggregates.lives(lived))
    return tables.keep(
        "gaps",
        aggregates.breaker_openings(lived, lives)
        .unionByName(aggregates.store_outages(lived, lives))
        .unionByName(aggregates.daemon_gaps(lives)),
    )


def _queues(
    events: DataFrame, slices: DataFrame, arrivals: DataFrame, gaps: DataFrame, step: int
) -> DataFrame:
    """A row for each queue with all that sizing needs."""
    lasted_ms = F.sum(F.col("to_ms") - F.col("from_ms"))
    opened = (
        gaps.where("what = 'breaker'")
        .groupBy(F.col("name").alias("destination"))
        .agg((lasted_ms / F.countDistinct("host") / 1000).alias("open_s"))
    )
    return (
        aggregates.by_queue(slices, step)
        .join(aggregates.arrival_rates(arrivals, step), "queue", "left")
        .join(aggregates.staff(events), "queue", "left")
        .join(opened, "destination", "left")
        .fillna(0)
    )


def _top(table: DataFrame, weight: Any, limit: int) -> list[Any]:
    """The weightiest rows, a bounded number of them."""
    return table.orderBy(weight.desc_nulls_first()).limit(limit).collect()


def _total(table: DataFrame, found: int, limit: int) -> int:
    """How many rows there are, of which at most `limit` were found."""
    return found if found < limit else table.count()


def _steps(by_step: DataFrame, arrivals: DataFrame, queues: list[str]) -> tuple[Step, ...]:
    """At most `POINTS_MAX` steps of the queues that are shown."""
    came = arrivals.withColumnRenamed("items", "arrived")
    rows = (
        by_step.join(came, ["step_ms", "queue"], "full")
        .where(F.col("queue").isin(queues))
        .fillna(0.0, ["arrived", "delivered", "retried", "dead"])
        .orderBy("step_ms")
        .collect()
    )
    return tuple(
        Step(
            row.step_ms,
            row.queue,
            row.arrived,
            row.delivered,
            row.retried,
            row.dead,
            row.wait_p95_ms,
            row.processing_p95_ms,
        )
        for row in rows
    )


def _percentiles(row: Any, name: str) -> Percentiles:
    return Percentiles(*(row[f"{name}_p{p}_ms"] for p in (50, 95, 99)))


def _flow(row: Any) -> Flow:
    return Flow(
        row.queue,
        row.flow,
        row.tries,
        row.delivered,
        row.retried,
        row.dead,
        _percentiles(row, "wait"),
        _percentiles(row, "processing"),
    )


def _error(row: Any) -> ErrorKind:
    return ErrorKind(row.queue, row.destination, row.error, row.retried, row.dead, row.last_ms)


def _gap(row: Any) -> Gap:
    return Gap(row.what, row.host, row.name, row.from_ms, row.to_ms, row.error, row.is_over)


def _load(row: Any, span: Any) -> QueueLoad:
    span_s = max(1.0, (span.last_ms - span.first_ms) / 1000)
    return QueueLoad(
        queue=row.queue,
        delivered=row.delivered,
        retried=row.retried,
        dead=row.dead,
        arrival_mean=row.arrival_mean,
        arrival_peak=max(row.arrival_peak, row.arrival_mean),
        sends=row.sends,
        send_s=row.send_s,
        batch=row.batch,
        item_bytes=row.item_bytes,
        busy_s=row.busy_s,
        active_s=row.active_s,
        wait_p95_ms=row.wait_p95_ms,
        processing_p95_ms=row.processing_p95_ms,
        workers=int(row.workers),
        batch_max=int(row.batch_max),
        rate_limit=row.rate_limit,
        warm_max_items=int(row.warm_max_items),
        open_share=min(1.0, row.open_s / span_s),
    )
