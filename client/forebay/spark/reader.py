"""`spark.read.format("forebay")`: a look at a queue, as a DataFrame. It changes nothing.

The option `state` chooses the items:

- `queued`, the default: items that wait with the journal, to be delivered soon;
- `cold`: items that wait in the cold store, because they are due later, because the queue's warm
  tier is full, or because a stream reads the queue;
- `dead`: dead letters, with their errors in columns of their own. `flow`, `action` and `error` (a
  part of the last error's text) choose among them;
- `history`: finished items that are still kept, newest first, with their outcome and errors.

Spark reads again for every action, and each read is a new look; `df.cache()` keeps one. A look goes
from page to page while the daemon works on. It may miss an item that is delivered or moved
meanwhile, and may show an item twice that moves from one state to another.

One task reads the whole queue, since each page says where the next one begins. To drain a queue use
`readStream`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import forebay.spark.rows as rows
from forebay.client import Client, connect
from forebay.control import letter_payload
from forebay.fetch_frames import Finished
from forebay.head import read_head
from forebay.spark.columns import HISTORY_SCHEMA, ITEM_SCHEMA, LETTER_SCHEMA, chosen
from forebay.spark.options import check_queue
from forebay.spark.source_options import read_options

if TYPE_CHECKING:
    from forebay.streams import FetchedRow

Letter = Mapping[str, Any]

LETTERS_PAGE: Final = 1000
"""A page also ends where its letters come to 8 MiB."""


class ForebayReader(DataSourceReader):
    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = read_options(given)
        schemas = {"dead": LETTER_SCHEMA, "history": HISTORY_SCHEMA}
        whole = schemas.get(self._options.state, ITEM_SCHEMA)
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
                yield history_batch(page.rows, self._schema)
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
            yield letter_batch(page["letters"], self._schema)
            cursor = page["cursor"]
            if cursor is None:
                return


def letter_batch(letters: Sequence[Letter], schema: pa.Schema) -> pa.RecordBatch:
    """A page of dead letters (docs/protocol.md, "Dead letters") as rows; `schema` is LETTER_SCHEMA
    or a part of it.

    Python works once per letter: letters are few compared with delivered items, and the wire has
    them one by one.
    """
    columns = [
        pa.array([_OF_LETTER[field.name](letter) for letter in letters], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _letter_errors(letter: Letter) -> list[dict[str, Any]]:
    return [
        {
            "attempt": error["attempt"],
            "at": error["at_ms"] * 1000,
            "text": error["text"],
            # Older daemons leave it out.
            "failure_reason": error.get("failure_reason", "application"),
        }
        for error in letter["errors"]
    ]


def _last_error(letter: Letter) -> str | None:
    errors = letter["errors"]
    return errors[-1]["text"] if errors else None


_OF_LETTER: Final[dict[str, Callable[[Letter], Any]]] = {
    "id": itemgetter("id"),
    "key": itemgetter("key"),
    "payload": letter_payload,
    "priority": itemgetter("priority"),
    "flow": itemgetter("flow"),
    "action": itemgetter("action"),
    "attempt": itemgetter("attempt"),
    "headers": lambda letter: list(letter["headers"].items()),
    "enqueued_at": lambda letter: letter["enqueued_ms"] * 1000,
    "due_at": lambda letter: None,
    "died_at": lambda letter: letter["died_ms"] * 1000,
    "error": _last_error,
    "errors": _letter_errors,
}


def history_batch(fetched: Sequence["FetchedRow"], schema: pa.Schema) -> pa.RecordBatch:
    """Finished items as rows; `schema` is HISTORY_SCHEMA or a part of it.

    The columns of items are made as everywhere (rows.py). Outcome, time and errors are shared by
    the items of a fetched row: they are made once and repeated, so no Python runs per item.
    """
    of_items = pa.schema([field for field in schema if field.name not in _OF_HISTORY])
    made = rows.to_batch(fetched, of_items)
    which = _spread(fetched)
    columns = [
        _shared(fetched, field, which) if field.name in _OF_HISTORY else made.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _spread(fetched: Sequence["FetchedRow"]) -> pa.Array:
    """The number of its row, for each item."""
    counts = (
        read_head(row.run).count if row.bits is None else row.bits.bit_count() for row in fetched
    )
    ends = pa.array(accumulate(counts), pa.int32())
    numbers = pa.array(range(len(fetched)), pa.int32())
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, numbers))


def _shared(fetched: Sequence["FetchedRow"], field: pa.Field, which: pa.Array) -> pa.Array:
    value = _OF_HISTORY[field.name]
    values = [None if row.finished is None else value(row.finished) for row in fetched]
    return pa.array(values, field.type).take(which)


def _past_errors(finished: Finished) -> list[dict[str, Any]]:
    return [
        {
            "attempt": error.attempt,
            "at": error.at_ms * 1000,
            "text": error.text,
            "failure_reason": error.failure_reason,
        }
        for error in finished.errors
    ]


_OF_HISTORY: Final[dict[str, Callable[[Finished], Any]]] = {
    "outcome": lambda finished: finished.outcome,
    "finished_at": lambda finished: finished.finished_ms * 1000,
    "locked_by": lambda finished: finished.locked_by or None,
    "locked_at": lambda finished: finished.locked_ms * 1000 or None,
    "result": lambda finished: finished.result or None,
    "job": lambda finished: finished.job or None,
    "error": lambda finished: finished.errors[-1].text if finished.errors else None,
    "errors": _past_errors,
}
