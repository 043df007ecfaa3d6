"""The columns of an item, as Spark and Arrow know them.

A module of its own, so that a driver that only names them does not import what makes them.
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
"""What Spark makes of ITEM_DDL: it compares, and refuses any difference."""


def chosen(whole: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """The columns with these names; ValueError for a name that there is not."""
    for name in names:
        if name not in whole.names:
            raise ValueError(f"there is no column {name!r} to read: {', '.join(whole.names)}")
    return pa.schema([whole.field(name) for name in names])
