"""`spark.read.format("forebay")`: a look at a queue, as a DataFrame. It changes nothing.

The option `state` says at what:

- `queued`, the default: what waits with the journal, to be delivered soon;
- `cold`: what waits in the cold store, because it is due later, or is more than the queue's warm
  tier holds, or because a stream reads the queue;
- `dead`: dead letters, with their errors in columns of their own. `flow`, `action` and `error` (a
  part of the last error's text) choose among them;
- `history`: what is finished and still kept, newest first, with its outcome and errors.

Spark reads again for every action, and each read is a new look; `df.cache()` keeps one. A look goes
from page to page while the daemon works on: an item that is delivered or moved meanwhile may be
missed, and one that moves from one state to another seen in both.

What it can't do: be read by several tasks. A page says where the next one begins, so one task reads
them all. To drain a queue use `readStream`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import forebay.spark.history as history
import forebay.spark.letters as letters
import forebay.spark.rows as rows
from forebay.client import Client, connect
from forebay.spark.item_columns import ITEM_SCHEMA, chosen
from forebay.spark.queues import check_queue
from forebay.spark.source_options import read_options

LETTERS_PAGE: Final = 1000
"""A page also ends where its letters come to 8 MiB."""


class ForebayReader(DataSourceReader):
    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = read_options(given)
        whole = {"dead": letters.LETTER_SCHEMA, "history": history.HISTORY_SCHEMA}.get(
            self._options.state, ITEM_SCHEMA
        )
        self._schema = chosen(whole, schema.fieldNames())

    def partitions(self) -> Sequence[InputPartition]:
        """On the driver, before anything is read."""
        with connect(self._options.socket, self._options.timeout_s) as client:
            check_queue(client, self._options.queue)
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        options = self._options
        with connect(options.socket, options.timeout_s) as client:
            look = self._letters if options.state == "dead" else self._items
            for batch in look(client):
                if batch.num_rows:
                    yield batch

    def _items(self, client: Client) -> Iterator[pa.RecordBatch]:
        is_past = self._options.state == "history"
        cursor: str | None = ""
        while cursor is not None:
            page = client.peek(self._options.queue, self._options.state, cursor=cursor)
            if is_past:
                yield history.to_batch(page.rows, self._schema)
            else:
                yield from rows.to_batches(page.rows, self._schema)
            cursor = page.cursor

    def _letters(self, client: Client) -> Iterator[pa.RecordBatch]:
        options = self._options
        which = {
            "queue": options.queue,
            "flow": options.flow,
            "action": options.action,
            "error": options.error,
        }
        has_payloads = "payload" in self._schema.names
        cursor: str | None = None
        while True:
            page = client.control(
                "dead.find",
                which=which,
                limit=LETTERS_PAGE,
                cursor=cursor,
                payloads=has_payloads,
            )
            yield letters.to_batch(page["letters"], self._schema)
            cursor = page["cursor"]
            if cursor is None:
                return
