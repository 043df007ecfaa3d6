"""Correlation: what ties an item to the work that it is part of, from the push to the history.

Two headers of a run, which producers set and forebay passes on: `correlation_id`, any text, and
`traceparent`, as defined by W3C Trace Context. They appear in log lines about items, in deliveries
and in the history, and can be searched for. Their values are not checked. Pure functions.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from forebay.run import RunHead

CORRELATION_ID: Final = "correlation_id"
CORRELATION_HEADERS: Final = (CORRELATION_ID, "correlation-id", "x-correlation-id")
TRACE_HEADER: Final = "traceparent"
_TRACE_PARTS: Final = 4
"""Version, trace id, the sender's span and flags, with hyphens between them."""


def correlation_of(headers: Mapping[str, str]) -> str | None:
    lowered = {name.lower(): value for name, value in headers.items()}
    return next((lowered[name] for name in CORRELATION_HEADERS if name in lowered), None)


def trace_of(headers: Mapping[str, str]) -> str | None:
    return next((value for name, value in headers.items() if name.lower() == TRACE_HEADER), None)


def correlated(head: RunHead) -> dict[str, str]:
    """The fields that a log line gets for a run's correlation, named as the headers; often none."""
    if not head.packed_headers:
        return {}
    headers = head.headers()
    found = {CORRELATION_ID: correlation_of(headers), TRACE_HEADER: trace_of(headers)}
    return {name: value for name, value in found.items() if value is not None}


def shared_by(heads: Iterable[RunHead]) -> dict[str, str]:
    """The same for several runs, as far as all agree."""
    first, *others = {head.packed_headers: correlated(head) for head in heads}.values()
    return {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in others)
    }


def is_of_trace(headers: Mapping[str, str], wanted: str) -> bool:
    """Whether a run has exactly this traceparent, or one of this trace."""
    found = trace_of(headers)
    if found is None:
        return False
    parts = found.split("-")
    return found == wanted or (len(parts) >= _TRACE_PARTS and parts[1] == wanted)
