"""`df.writeStream.format("forebay")`: each micro-batch becomes visible once, however often it runs.

The transaction of a micro-batch is the query's id and the batch's number. If the driver dies inside
commit, Spark runs the same micro-batch again, perhaps with another number of tasks. Its rows are
staged again, and the daemon answers the second publish with `duplicate`: one copy is visible.

Spark makes a new writer for every micro-batch, and another one for its commit, so the tasks'
messages carry the write's identity. Tasks read the query's id and the batch's number from their
local properties, under Spark's own names; if these are missing, the write fails.

The trigger `continuous` is refused: Spark passes the rows of such a query to no Python sink, keeps
it active, and ignores the errors of commit. Spark does not tell a sink its trigger, but the
checkpoint shows it: its log of offsets has a micro-batch before it runs, and an epoch only
afterwards. If the checkpoint cannot be read from here (HDFS, S3), only commit finds out, and its
error is in the driver's log.

If no task of a failed micro-batch has succeeded, abort does not learn the write's id and cannot
drop its stages. They expire (`spool.stage_ttl`).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

import forebay.spark.receipts as receipts
from forebay.spark.options import OptionError
from forebay.spark.plan import SinkPlan
from forebay.spark.writer import Staged, WriteFailed, all_staged, drop, publish, stage_rows
from forebay.writes import new_write_id

CONTINUOUS: Final = (
    'format("forebay") cannot be written with the trigger continuous: Spark would hand it no rows. '
    "Use processingTime or availableNow"
)
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


class ForebayStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, plan: SinkPlan) -> None:
        if plan.options.app is not None:
            raise OptionError(
                "txnAppId",
                plan.options.app,
                "a stream has a transaction for each micro-batch already; these options are for "
                "writes inside foreachBatch",
            )
        self._plan = plan
        self._write = new_write_id()

    def write(self, iterator: Iterator[Any]) -> Staged:
        """In a task: stages its rows."""
        return stage_rows(self._plan, self._write, iterator, _transaction())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: publishes what the winners have staged."""
        if messages and not any(messages):
            raise WriteFailed(f"forebay: {CONTINUOUS}, and stop this query")
        staged = all_staged(messages)
        if not any(message.runs for message in staged):
            return
        write, app, version = _identity(staged)
        if version != batchId:
            raise WriteFailed(f"forebay: tasks of batch {version} are committed as {batchId}")
        published = publish(self._plan, write, staged, (app, version))
        receipts.tell(self._plan.options, write, published)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: drops what was staged."""
        receipts.log_to_stderr()
        for write in {message.write for message in messages if isinstance(message, Staged)}:
            drop(self._plan, write)


def refuse_continuous(options: Mapping[str, str]) -> None:
    """On the driver, when a query, or its next micro-batch, begins."""
    location = options.get("checkpointLocation", "")
    checkpoint = Path(location.removeprefix("file:"))
    if not checkpoint.is_absolute() or not (checkpoint / "offsets").is_dir():
        return
    if _latest(checkpoint / "offsets") <= _latest(checkpoint / "commits"):
        raise OptionError("trigger", "continuous", CONTINUOUS)


def _latest(log: Path) -> int:
    """The number of the last batch in one of Spark's logs; -1 if the log is empty."""
    try:
        return max((int(at.name) for at in log.iterdir() if at.name.isdecimal()), default=-1)
    except FileNotFoundError:
        return -1


def _transaction() -> tuple[str, int]:
    """The query and the batch that this task works for."""
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context else None
    batch = context.getLocalProperty(BATCH_ID) if context else None
    if not query or not batch:
        raise WriteFailed(
            f"forebay: this Spark does not tell a task its query and batch ({QUERY_ID}, "
            f"{BATCH_ID}): write inside foreachBatch, with txnAppId and txnVersion"
        )
    return f"spark-stream-{query}", int(batch)


def _identity(staged: Sequence[Staged]) -> tuple[bytes, str, int]:
    """Write, application and version, which all tasks of a micro-batch share."""
    found = {(message.write, message.app, message.version) for message in staged}
    write, app, version = next(iter(found))
    if len(found) != 1 or app is None or version is None:
        raise WriteFailed("forebay: the tasks of a micro-batch have not staged one write")
    return write, app, version
