"""`push`: a table or files into a queue; rows that break a rule are set aside, with the reason.

    push(spark, spark.read.parquet("/data/customers"), "crm",
         rules=[Rule("no e-mail", "email LIKE '%@%'"), Rule("no consent", "consent")],
         quarantine="/data/quarantine", key="customer_id")

The first pass counts all rows and writes those that break a rule to `quarantine/batch=…` as
Parquet, with a column `reason` that names each broken rule. If too many rows are bad, `push` ends
there and pushes nothing. The second pass pushes the good rows in one write that is seen whole or
not at all. A row breaks a rule whose value for it is null.

With a transaction (`app` and `version`) a repeated run pushes nothing twice, says so, and writes
the same batch of the quarantine again. Without one, each run has its own batch.

`push` does not notice if the source changes between the two passes: give it files or a snapshot of
a table. Without transactions it cannot tell its write from another write of the same Spark
application to the same queue that ended at the same moment.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from forebay.pipeline.progress import Say, say_nothing, tasks_shown
from forebay.spark.options import OptionError
from forebay.spark.prepare import items
from forebay.spark.receipts import LastWrite, last_write

if TYPE_CHECKING:
    from forebay.receipts import Receipt

REASON: Final = "reason"
NAME_CHARS_MAX: Final = 200
"""Of a directory: file systems allow 255."""

Outcome = Literal["published", "duplicate", "empty", "unknown"]


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
    outcome: Outcome
    """`duplicate`: this version, or a higher one, was pushed before, and now nothing was. `empty`:
    there was no row to push. `unknown`: another write of this Spark application came between."""
    receipt: "Receipt | None"
    """Of this push, as of its end. None: nothing was pushed, or the outcome is not known."""

    @property
    def pushed(self) -> int:
        return 0 if self.outcome == "duplicate" else self.rows - self.quarantined


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
    given = dict(options or {})
    _check_given(rules, quarantine, app, version, given)
    bad, where = 0, None
    if rules and quarantine is not None:
        where = f"{quarantine.rstrip('/')}/batch={batch_name(app, version)}"
        judged = rows.withColumn(REASON, reason(rules))
        total, bad = _set_aside(spark, judged, where, say)
        _check_share(total, bad, bad_share_max, where)
        if total == bad:
            return Pushed(total, bad, where, "empty", None)
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
    writer = prepared.write.format("forebay").options(**given).mode("append")
    if app is not None and version is not None:
        writer = writer.option("txnAppId", app).option("txnVersion", str(version))
    with tasks_shown(spark, f"pushing to {queue}", say):
        writer.save()
    good, last = int(seen.get["rows"]), last_write(spark)
    outcome = outcome_of(last, queue, app, version)
    say(_WORDS[outcome].format(rows=good))
    is_ours = last is not None and outcome == last.outcome == "published"
    return Pushed(good + bad, bad, where, outcome, last.receipt if last and is_ours else None)


_WORDS: Final[dict[Outcome, str]] = {
    "published": "{rows:,} rows are pushed",
    "duplicate": "duplicate: nothing was pushed, because this version or a higher one was before",
    "empty": "there is nothing to push",
    "unknown": "{rows:,} rows are pushed, now or before: another write came between",
}


def outcome_of(last: LastWrite | None, queue: str, app: str | None, version: int | None) -> Outcome:
    """How a write that did not fail ended. The last write of the application may be another one;
    without a transaction there are no duplicates."""
    if last is not None and (last.queue, last.app, last.version) == (queue, app, version):
        return last.outcome
    return "published" if app is None else "unknown"


def batch_name(app: str | None, version: int | None) -> str:
    """Of a batch in the quarantine: another one for each application and version."""
    if app is None:
        return uuid.uuid4().hex
    # One level, since Spark reads only batches that lie at the same depth as one table.
    name = quote(app, safe="")
    if len(name) > NAME_CHARS_MAX:
        name = sha256(app.encode()).hexdigest()
    return f"{name}-{version}"


def _check_given(
    rules: Sequence[Rule],
    quarantine: str | None,
    app: str | None,
    version: int | None,
    options: Mapping[str, str],
) -> None:
    if rules and quarantine is None:
        raise ValueError("rules need a quarantine: a place for the rows that break them")
    if (app is None) != (version is None):
        raise ValueError("app and version go together: without both a repetition pushes again")
    for name in options:
        if name.lower() in ("txnappid", "txnversion"):
            raise OptionError(name, options[name], "give app and version instead")


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
