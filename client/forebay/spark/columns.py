"""The columns that can be read, as Spark and Arrow know them: of items, dead letters and history.

They have a module of their own so that a driver that only names them does not import the code that
fills them.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.map_(pa.string(), pa.string())

ITEM_DDL: Final = (
    "id STRING, key STRING, payload BINARY, priority INT, flow STRING, action STRING, "
    "attempt INT, headers MAP<STRING, STRING>, enqueued_at TIMESTAMP, due_at TIMESTAMP"
)
ITEM_SCHEMA: Final = pa.schema(
    [
        ("id", pa.string()),
        ("key", pa.string()),
        ("payload", pa.binary()),
        ("priority", pa.int32()),
        ("flow", pa.string()),
        ("action", pa.string()),
        ("attempt", pa.int32()),
        ("headers", HEADERS),
        ("enqueued_at", TIMESTAMP),
        ("due_at", TIMESTAMP),
    ]
)
"""What Spark makes of ITEM_DDL. Spark compares the two and refuses any difference."""

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


def chosen(whole: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """The columns with these names; ValueError for an unknown name."""
    for name in names:
        if name not in whole.names:
            known = ", ".join(whole.names)
            raise ValueError(f"there is no column {name!r} to read; the columns are {known}")
    return pa.schema([whole.field(name) for name in names])
