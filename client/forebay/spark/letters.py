"""Dead letters as rows of Spark: the columns of an item, and its errors.

A page of the daemon's JSON objects (docs/protocol.md, "Dead letters") becomes one record batch.
Python works once per letter: letters are few compared with delivered items, and the wire has them
one by one.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from forebay.control import letter_payload
from forebay.spark.item_columns import ITEM_DDL, ITEM_SCHEMA, TIMESTAMP

Letter = Mapping[str, Any]

ERRORS_DDL: Final = (
    "errors ARRAY<STRUCT<attempt: INT, at: TIMESTAMP, text: STRING, failure_reason: STRING>>"
)
LETTER_DDL: Final = f"{ITEM_DDL}, died_at TIMESTAMP, error STRING, {ERRORS_DDL}"
ERROR: Final = pa.struct(
    [
        ("attempt", pa.int32()),
        ("at", TIMESTAMP),
        ("text", pa.string()),
        ("failure_reason", pa.string()),
    ]
)
LETTER_SCHEMA: Final = pa.schema(
    [
        *ITEM_SCHEMA,
        pa.field("died_at", TIMESTAMP),
        pa.field("error", pa.string()),
        pa.field("errors", pa.list_(pa.field("element", ERROR))),
    ]
)


def to_batch(letters: Sequence[Letter], schema: pa.Schema = LETTER_SCHEMA) -> pa.RecordBatch:
    """`schema` is LETTER_SCHEMA or a part of it."""
    columns = [
        pa.array([_VALUES[field.name](letter) for letter in letters], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _errors(letter: Letter) -> list[dict[str, Any]]:
    return [
        {
            "attempt": error["attempt"],
            "at": error["at_ms"] * 1000,
            "text": error["text"],
            # An older daemon does not say.
            "failure_reason": error.get("failure_reason", "application"),
        }
        for error in letter["errors"]
    ]


def _last_error(letter: Letter) -> str | None:
    errors = letter["errors"]
    return errors[-1]["text"] if errors else None


_VALUES: Final[dict[str, Callable[[Letter], Any]]] = {
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
    "errors": _errors,
}
