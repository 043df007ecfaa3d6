"""`push`: a table or files into a queue; rows that break a rule go aside, with the reason.

    push(spark, spark.read.parquet("/data/customers"), "crm",
         rules=[Rule("no e-mail", "email LIKE '%@%'"), Rule("no consent", "consent")],
         quarantine="/data/quarantine", key="customer_id")

First pass: rows that break a rule are written to `quarantine/batch=…` as Parquet, with a column
`reason` that names each rule they break; all rows are counted on the way. If too many are bad, it
ends there, and nothing was pushed. Second pass: the good rows, in one write that is seen whole or
not at all. A rule that is null for a row is broken.

What it can't do: see that the source changed between the two passes. Give it files or a snapshot
of a table. With a transaction (`app`, `version`) a run that is repeated pushes nothing twice, and
writes the same batch of the quarantine again.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from forebay.pipeline.progress import Say, say_nothing, tasks_shown
from forebay.spark.prepare import items
from forebay.spark.receipts import last_receipt

if TYPE_CHECKING:
    from forebay.receipts import Receipt

REASON: Final = "reason"


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    """What is wrong with a row that breaks it."""
    condition: str
    """An SQL condition that every good row fulfils."""


class TooManyBad(ValueError):
    """More rows break a rule than was allowed: nothing was pushed."""


@dataclass(frozen=True, slots=True)
class Pushed:
    rows: int
    quarantined: int
    quarantine: str | None
    """Where the bad rows are; None: there are no rules."""
    receipt: "Receipt | None"
    """As of the end of the push. None: there was nothing to push."""

    @property
    def pushed(self) -> int:
        return self.rows - self.quarantined


def push(
    spark: SparkSession,
    rows: DataFrame,
    queue: str,
    *,
    rules: Sequence[Rule] = (),
    quarantine: str | None = None,
    bad_share_max: float = 1.0,
    payload: str | None = None,
    key: str | None = None,
    priority: str | None = None,
    flow: str | None = None,
    options: Mapping[str, str] | None = None,
    app: str | None = None,
    version: int | None = None,
    say: Say = say_nothing,
) -> Pushed:
    """Pushes the rows that keep all rules; without rules all of them, in one pass.

    `payload` is an SQL expression, by default all columns as a JSON object; `key`, `priority` and
    `flow` are SQL expressions as well. `options` are further ones of `format("forebay")`.
    """
    if rules and quarantine is None:
        raise ValueError("rules need a quarantine: a place for the rows that break them")
    bad, where = 0, None
    if rules and quarantine is not None:
        batch = uuid.uuid4().hex if version is None else str(version)
        where = f"{quarantine.rstrip('/')}/batch={batch}"
        judged = rows.withColumn(REASON, reason(rules))
        total, bad = _set_aside(spark, judged, where, say)
        _check_share(total, bad, bad_share_max, where)
        if total == bad:
            return Pushed(total, bad, where, None)
        rows = judged.where(F.col(REASON).isNull()).drop(REASON)
    seen = Observation()
    prepared = items(
        rows.observe(seen, F.count("*").alias("rows")),
        queue=queue,
        payload=None if payload is None else F.expr(payload),
        key=None if key is None else F.expr(key),
        priority=None if priority is None else F.expr(priority),
        flow=None if flow is None else F.expr(flow),
    )
    writer = prepared.write.format("forebay").options(**dict(options or {})).mode("append")
    if app is not None and version is not None:
        writer = writer.option("txnAppId", app).option("txnVersion", str(version))
    with tasks_shown(spark, f"pushing to {queue}", say):
        writer.save()
    pushed = int(seen.get["rows"])
    say(f"{pushed:,} rows are pushed")
    return Pushed(pushed + bad, bad, where, last_receipt(spark))


def _check_share(total: int, bad: int, share_max: float, where: str) -> None:
    if total and bad / total > share_max:
        raise TooManyBad(
            f"{bad:,} of {total:,} rows break a rule ({bad / total:.1%}; at most "
            f"{share_max:.1%} may): nothing was pushed, the rows are in {where}"
        )


def reason(rules: Sequence[Rule]) -> Column:
    """The names of the rules that a row breaks; null if it keeps all."""
    broken = [
        F.when(F.coalesce(F.expr(rule.condition).cast("boolean"), F.lit(False)), None).otherwise(
            F.lit(rule.name)
        )
        for rule in rules
    ]
    if not broken:
        return F.lit(None).cast("string")
    named = F.concat_ws("; ", *broken)
    return F.when(named != "", named)


def _set_aside(spark: SparkSession, judged: DataFrame, where: str, say: Say) -> tuple[int, int]:
    """Writes the bad rows; counts all rows and the bad ones in the same pass."""
    seen = Observation()
    observed = judged.observe(seen, F.count("*").alias("rows"), F.count(REASON).alias("bad"))
    with tasks_shown(spark, f"checking rows, bad ones to {where}", say):
        observed.where(F.col(REASON).isNotNull()).write.mode("overwrite").parquet(where)
    total, bad = int(seen.get["rows"]), int(seen.get["bad"])
    say(f"{total:,} rows, {bad:,} of them bad")
    return total, bad


def tables_or_files(
    spark: SparkSession, sources: Sequence[str], format_: str, options: Mapping[str, str]
) -> DataFrame:
    """Files of a format, or tables by name (`format_` is `table`)."""
    if format_ == "table":
        return reduce(DataFrame.unionByName, map(spark.read.table, sources))
    return spark.read.format(format_).options(**dict(options)).load(list(sources))
