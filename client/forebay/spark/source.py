"""The data source `forebay`, as Spark sees it: checks a request and hands it on.

`writer` and `streamWriter` find everything that can be wrong with a write on the driver, before
data moves: options, columns and their types, the daemon, its queue, its priorities.

Every session imports this module to learn the format's name, and every query that reads a stream
does so in a process of its own. So each method imports only what it needs.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader

    from forebay.spark.plan import SinkPlan
    from forebay.spark.stream_reader import ForebayStreamReader
    from forebay.spark.stream_writer import ForebayStreamWriter
    from forebay.spark.writer import ForebayWriter


class ForebaySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "forebay"

    def schema(self) -> str:
        state = self._state()
        if state == "receipt":
            from forebay.spark.receipts import RECEIPT_DDL

            return RECEIPT_DDL
        from forebay.spark.columns import HISTORY_DDL, ITEM_DDL, LETTER_DDL

        return {"dead": LETTER_DDL, "history": HISTORY_DDL}.get(state, ITEM_DDL)

    def reader(self, schema: StructType) -> "DataSourceReader":
        from forebay.spark.reader import ForebayReader
        from forebay.spark.receipts import ReceiptReader

        if self._state() == "receipt":
            return ReceiptReader(dict(self.options))
        return ForebayReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> "ForebayStreamReader":
        from forebay.spark.stream_reader import ForebayStreamReader

        return ForebayStreamReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> "ForebayWriter":
        from forebay.spark.writer import ForebayWriter, ask_daemon

        plan = self._plan(schema, overwrite)
        return ForebayWriter(ask_daemon(plan, wait_s=0.0))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "ForebayStreamWriter":
        from forebay.spark.stream_writer import ForebayStreamWriter, refuse_continuous
        from forebay.spark.writer import ask_daemon

        refuse_continuous(self.options)
        plan = self._plan(schema, overwrite)
        # Every micro-batch asks the daemon: a query outlives a restart of its daemon.
        return ForebayStreamWriter(ask_daemon(plan, wait_s=plan.options.timeout_s))

    def _state(self) -> str:
        """The option `state` of a read."""
        return str(self.options.get("state", "")).lower()

    def _plan(self, schema: StructType, overwrite: bool) -> "SinkPlan":
        from forebay.spark.options import OptionError
        from forebay.spark.plan import make_plan

        if overwrite:
            raise OptionError(
                "mode",
                "overwrite",
                'a queue is never overwritten: use .mode("append"), and for a stream '
                'outputMode("append")',
            )
        return make_plan(dict(self.options), schema)
