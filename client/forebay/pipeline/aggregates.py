"""The report's tables, as DataFrames over the events: nothing here brings a row to the driver.

Percentiles are over items, not over events, and exact to three digits: times are rounded to three
digits, so that the state of a percentile stays small for any number of events. Counts are
multiplied by the event's weight, so that samples stand for all events.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600)
DAY_S: Final = 86400
POINTS_MAX: Final = 240
"""How many time steps fit into a plot."""
ERROR_CLASS_CHARS: Final = 90
STARTING_MS: Final = 250
"""A daemon that has items to send starts sending a few milliseconds before it logs `started`, and
it needs more than half a second from its start to that point. So events up to this long before
`started` belong to the new daemon, not to the one before it."""


def step_s(first_ms: int, last_ms: int) -> int:
    """The width of a step of time, so that there are not too many."""
    span_s = max(1.0, (last_ms - first_ms) / 1000)
    fitting = [step for step in STEPS_S if span_s / step <= POINTS_MAX]
    return fitting[0] if fitting else DAY_S * -(-int(span_s) // (DAY_S * POINTS_MAX))


def slices(events: DataFrame) -> DataFrame:
    """Outcomes, with what each stands for: `n` items, `sends` (its share of a send)."""
    share = F.col("items") / F.greatest(F.col("batch_items"), F.col("items"))
    return (
        events.where("kind = 'slice'")
        .withColumn("n", F.col("items") * F.col("weight"))
        .withColumn("sends", share * F.col("weight"))
    )


def by_step(slices: DataFrame, step: int) -> DataFrame:
    """The outcomes of items, by time step and queue."""
    return slices.groupBy(_step("at_ms", step).alias("step_ms"), "queue").agg(
        _of("delivered").alias("delivered"),
        _of("retry").alias("retried"),
        _of("dead").alias("dead"),
        *_times("wait_ms"),
        *_times("processing_ms"),
    )


def arrivals(slices: DataFrame, step: int) -> DataFrame:
    """When items were enqueued, by step of time and queue: each once, by its first attempt."""
    return (
        slices.where("attempt = 1")
        .groupBy(_step("enqueued_ms", step).alias("step_ms"), "queue")
        .agg(F.sum("n").alias("items"))
    )


def by_flow(slices: DataFrame) -> DataFrame:
    return slices.groupBy("queue", "flow").agg(
        F.sum("n").alias("tries"),
        _of("delivered").alias("delivered"),
        _of("retry").alias("retried"),
        _of("dead").alias("dead"),
        *_times("wait_ms"),
        *_times("processing_ms"),
    )


def errors(slices: DataFrame) -> DataFrame:
    """Errors alike but for their numbers, together."""
    alike = F.regexp_replace("error", r"[0-9a-fA-F-]{16,}|\d{4,}", "#")
    alike = F.substring(alike, 1, ERROR_CLASS_CHARS)
    return (
        slices.where("error IS NOT NULL")
        .groupBy("queue", "destination", alike.alias("error"))
        .agg(
            _of("retry").alias("retried"),
            _of("dead").alias("dead"),
            F.min("at_ms").alias("first_ms"),
            F.max("at_ms").alias("last_ms"),
        )
    )


def by_queue(slices: DataFrame, step: int) -> DataFrame:
    """The figures for sizing; queues that consumers pull have no sends."""
    sent = F.when(F.col("processing_ms").isNotNull(), F.col("sends"))
    busy_s = F.sum(sent * F.col("processing_ms")) / 1000
    return slices.groupBy("queue").agg(
        F.max_by("destination", "at_ms").alias("destination"),
        _of("delivered").alias("delivered"),
        _of("retry").alias("retried"),
        _of("dead").alias("dead"),
        F.coalesce(F.sum(sent), F.lit(0.0)).alias("sends"),
        F.coalesce(busy_s / F.sum(sent), F.lit(0.0)).alias("send_s"),
        F.coalesce(busy_s, F.lit(0.0)).alias("busy_s"),
        (F.sum("n") / F.sum("sends")).alias("batch"),
        (F.sum(F.col("bytes") * F.col("weight")) / F.sum("n")).alias("item_bytes"),
        (F.countDistinct(_step("at_ms", step)) * step).cast("double").alias("active_s"),
        *_times("wait_ms"),
        *_times("processing_ms"),
    )


def arrival_rates(arrivals: DataFrame, step: int) -> DataFrame:
    """Items a second by queue: the mean over its time, and the 95th percentile of the steps."""
    span_s = (F.max("step_ms") - F.min("step_ms")) / 1000 + step
    return arrivals.groupBy("queue").agg(
        (F.sum("items") / span_s).alias("arrival_mean"),
        (F.percentile("items", F.lit(0.95)) / step).alias("arrival_peak"),
    )


def staff(events: DataFrame) -> DataFrame:
    """The newest word of every host about a queue, all hosts together."""
    newest = (
        events.where("kind = 'queue'")
        .groupBy("queue", "host")
        .agg(
            F.max_by(
                F.struct("workers", "batch_max", "rate_limit", "warm_max_items"), "at_ms"
            ).alias("w")
        )
    )
    return newest.groupBy("queue").agg(
        F.sum("w.workers").alias("workers"),
        F.max("w.batch_max").alias("batch_max"),
        F.sum("w.rate_limit").alias("rate_limit"),
        F.sum("w.warm_max_items").alias("warm_max_items"),
    )


def with_lives(events: DataFrame) -> DataFrame:
    """The events, and of which `life` of their daemon they are: the first, the second, …

    A process id does not tell: in a container it is always the same. A life begins with `started`,
    or just before; what came before the first of these, or without any, is of the first life.
    """
    starts = (
        events.where("kind = 'daemon' AND state = 'started'")
        .groupBy("host", "pid")
        .agg(F.collect_set("at_ms").alias("starts"))
    )
    begun = F.size(F.filter("starts", lambda start_ms: start_ms <= F.col("at_ms") + STARTING_MS))
    return (
        events.join(F.broadcast(starts), ["host", "pid"], "left")
        .withColumn("life", F.greatest(begun, F.lit(1)))
        .drop("starts")
    )


def lives(lived: DataFrame) -> DataFrame:
    """From the first to the last event of each life."""
    return lived.groupBy("host", "pid", "life").agg(
        F.min("at_ms").alias("began_ms"), F.max("at_ms").alias("ended_ms")
    )


def breaker_openings(lived: DataFrame, lives: DataFrame) -> DataFrame:
    """From the failure that opened a breaker until it closed; trials in between are part of it."""
    changes = lived.where("kind = 'breaker' AND state IN ('open', 'closed')")
    return _intervals(changes, lives, "open", "breaker")


def store_outages(lived: DataFrame, lives: DataFrame) -> DataFrame:
    return _intervals(lived.where("kind = 'store'"), lives, "away", "store")


def daemon_gaps(lives: DataFrame) -> DataFrame:
    """From the last event of a daemon's life to the first of the next one on that host."""
    before = F.lag("ended_ms").over(Window.partitionBy("host").orderBy("began_ms"))
    return (
        lives.select("host", before.alias("from_ms"), F.col("began_ms").alias("to_ms"))
        .where("to_ms > from_ms")
        .select(
            F.lit("daemon").alias("what"),
            "host",
            F.lit("daemon").alias("name"),
            "from_ms",
            "to_ms",
            F.lit(True).alias("is_over"),
            F.lit(None).cast("string").alias("error"),
        )
    )


def _intervals(changes: DataFrame, lives: DataFrame, begins: str, what: str) -> DataFrame:
    """From each change to `begins` until the next change to another state. An interval without an
    end lasts until the daemon's last event."""
    order = Window.partitionBy("host", "pid", "life", "destination").orderBy("at_ms")
    changed = changes.withColumn("before", F.lag("state").over(order)).where(
        "before IS NULL OR before <> state"
    )
    until = F.lead("at_ms").over(order)
    return (
        changed.withColumn("until_ms", until)
        .where(F.col("state") == begins)
        .join(lives, ["host", "pid", "life"])
        .select(
            F.lit(what).alias("what"),
            "host",
            F.col("destination").alias("name"),
            F.col("at_ms").alias("from_ms"),
            F.coalesce("until_ms", "ended_ms").alias("to_ms"),
            F.col("until_ms").isNotNull().alias("is_over"),
            "error",
        )
    )


def _step(column: str, step: int) -> Column:
    width = step * 1000
    return (F.floor(F.col(column) / width) * width).cast("bigint")


def _of(outcome: str) -> Column:
    return F.sum(F.when(F.col("outcome") == outcome, F.col("n")).otherwise(0.0))


def _times(column: str) -> list[Column]:
    """p50, p95 and p99 of a time, over items."""
    name = column.removesuffix("_ms")
    found = F.percentile(
        _three_digits(column), F.array(*map(F.lit, (0.5, 0.95, 0.99))), F.round("n").cast("bigint")
    )
    return [found[order].alias(f"{name}_p{p}_ms") for order, p in enumerate((50, 95, 99))]


def _three_digits(column: str) -> Column:
    """Rounded to three digits: 12,345 is 12,300."""
    value = F.col(column).cast("double")
    unit = F.pow(F.lit(10.0), F.floor(F.log10(F.greatest(value, F.lit(0.001)))) - 2)
    return F.when(value.isNull(), None).otherwise(F.round(value / unit) * unit)
