"""`df.write.format("forebay")`: a batch write, seen whole or not at all.

Spark makes the writer once for each `save()`, on the driver, and sends it to every attempt of
every task, and to commit or abort: so the write's id is made with it. A second `save()` is
another write. With `txnAppId` and `txnVersion` a write whose version was published before changes
nothing and succeeds.

If commit fails, abort follows; what was published by then stays.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

import forebay.spark.receipts as receipts
from forebay.spark.plan import SinkPlan
from forebay.spark.staging import Staged, all_staged, drop, publish, stage_rows
from forebay.writes import new_write_id


class ForebayWriter(DataSourceArrowWriter):
    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan
        self._write = new_write_id()

    def write(self, iterator: Iterator[Any]) -> Staged:
        """In a task: stages its rows."""
        return stage_rows(self._plan, self._write, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: publishes what the winners have staged."""
        options = self._plan.options
        staged = all_staged(messages)
        transaction = None
        if options.app is not None and options.version is not None:
            transaction = (options.app, options.version)
        published = publish(self._plan, self._write, staged, transaction)
        receipts.tell(options, self._write, published)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: drops what was staged."""
        receipts.log_to_stderr()
        drop(self._plan, self._write)
