"""Finished items as rows of Spark: the columns of an item, and how it ended.

The columns of items are made as everywhere (rows.py); what the items of a row share (outcome, time,
errors) is made once for each row and repeated, so that here too no Python runs for an item.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import forebay.spark.rows as items
from forebay.fetch_frames import Finished
from forebay.head import read_head
from forebay.spark.item_columns import ITEM_DDL, ITEM_SCHEMA, TIMESTAMP
from forebay.spark.letters import ERROR, ERRORS_DDL

if TYPE_CHECKING:
    from forebay.streams import FetchedRow

HISTORY_DDL: Final = (
    f"{ITEM_DDL}, outcome STRING, finished_at TIMESTAMP, locked_by STRING, locked_at TIMESTAMP, "
    f"result STRING, job STRING, error STRING, {ERRORS_DDL}"
)
HISTORY_SCHEMA: Final = pa.schema(
    [
        *ITEM_SCHEMA,
        pa.field("outcome", pa.string()),
        pa.field("finished_at", TIMESTAMP),
        pa.field("locked_by", pa.string()),
        pa.field("locked_at", TIMESTAMP),
        pa.field("result", pa.string()),
        pa.field("job", pa.string()),
        pa.field("error", pa.string()),
        pa.field("errors", pa.list_(pa.field("element", ERROR))),
    ]
)


def to_batch(rows: Sequence["FetchedRow"], schema: pa.Schema = HISTORY_SCHEMA) -> pa.RecordBatch:
    """`schema` is HISTORY_SCHEMA or a part of it."""
    of_items = pa.schema([field for field in schema if field.name not in _VALUES])
    made = items.to_batch(rows, of_items)
    which = _spread(rows)
    columns = [
        _shared(rows, field, which) if field.name in _VALUES else made.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _spread(rows: Sequence["FetchedRow"]) -> pa.Array:
    """For each item the number of its row."""
    counts = (
        read_head(row.run).count if row.bits is None else row.bits.bit_count() for row in rows
    )
    ends = pa.array(accumulate(counts), pa.int32())
    numbers = pa.array(range(len(rows)), pa.int32())
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, numbers))


def _shared(rows: Sequence["FetchedRow"], field: pa.Field, which: pa.Array) -> pa.Array:
    value = _VALUES[field.name]
    values = [None if row.finished is None else value(row.finished) for row in rows]
    return pa.array(values, field.type).take(which)


def _errors(finished: Finished) -> list[dict[str, Any]]:
    return [
        {
            "attempt": error.attempt,
            "at": error.at_ms * 1000,
            "text": error.text,
            "failure_reason": error.failure_reason,
        }
        for error in finished.errors
    ]


_VALUES: Final[dict[str, Callable[[Finished], Any]]] = {
    "outcome": lambda finished: finished.outcome,
    "finished_at": lambda finished: finished.finished_ms * 1000,
    "locked_by": lambda finished: finished.locked_by or None,
    "locked_at": lambda finished: finished.locked_ms * 1000 or None,
    "result": lambda finished: finished.result or None,
    "job": lambda finished: finished.job or None,
    "error": lambda finished: finished.errors[-1].text if finished.errors else None,
    "errors": _errors,
}
