"""For Schemathesis, in its own process: how a stream of lines is written."""

from typing import Any

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def as_lines(_: schemathesis.SerializationContext, value: Any) -> bytes:
    return str(value).encode(errors="replace")
