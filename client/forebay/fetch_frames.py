"""Frames about claims (docs/protocol.md, "Claims"): which rows are wanted, and the rows.

Bodies in, bodies out, no I/O, for both ends. Whatever the input, a reader raises BadFrame and
nothing else, and allocates nothing before the length it allocates for has been checked. A row has
the form of a lease in LEASED: its number stands for the token, its due time for the end.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from forebay.errors import BadFrame
from forebay.item import FailureReason, read_failure_reason
from forebay.lease_frames import LeasedRun, check_queue, lease_parts, read_leases
from forebay.limits import (
    CONSUMER_BYTES_MAX,
    FETCH_BYTES_MAX,
    FETCH_ROWS_MAX,
    FETCH_RUN_BYTES_DEFAULT,
    FETCH_RUN_BYTES_MAX,
    FETCHED_ABOUT_BYTES_MAX,
    TIME_MS_MAX,
)
from forebay.wire import (
    Buffer,
    Members,
    number,
    number_in,
    number_or_none,
    pack_json,
    read_json,
    text,
    text_or_none,
)

HISTORY = "history"
STATES = ("queued", "cold", HISTORY)
"""What can be looked at without a claim."""

_ABOUT = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class FetchWish:
    """The body of a FETCH: rows of a claim, or a look at what waits."""

    queue: str
    consumer: str | None = None
    claim: int | None = None
    state: str | None = None
    """One of STATES; then there is neither consumer nor claim."""
    first: int = 0
    rows: int = FETCH_ROWS_MAX
    bytes: int = FETCH_RUN_BYTES_DEFAULT
    cursor: str = ""


class PastError(NamedTuple):
    """One failed attempt."""

    attempt: int
    at_ms: int
    text: str
    failure_reason: FailureReason = "application"
    locked_by: str = ""
    """Who had the items; empty: unknown."""
    locked_ms: int = 0
    """Since when."""


class Finished(NamedTuple):
    """How the items of a row have ended."""

    outcome: str
    """`delivered`, or `deleted`: their dead letter was removed."""
    finished_ms: int
    errors: tuple[PastError, ...] = ()
    locked_by: str = ""
    """Who had them last, and since when; empty: unknown."""
    locked_ms: int = 0
    result: str = ""
    """The text that their holder gave with the acknowledgement."""
    job: str = ""
    """The job that had claimed them."""


class FetchedRow(NamedTuple):
    """Some of the items of a run."""

    number: int
    """In the claim, from 0; 0 in a look."""
    due_ms: int
    """0: at once."""
    attempt: int
    bits: int | None
    """Bit i stands for item i of the run; None: all of them."""
    run: bytes
    finished: Finished | None = None
    """Of a row of history."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The body of a FETCHED."""

    rows: list[FetchedRow]
    next: int | None
    """The next row of the claim; None at its end."""
    cursor: str | None
    """Where the next look goes on; None at the end."""


def pack_fetch(wish: FetchWish) -> bytes:
    """The queue, and what differs from the defaults; ValueError if it is too long."""
    members: dict[str, Any] = {"queue": wish.queue}
    if wish.state is None:
        members |= {"consumer": wish.consumer, "claim": wish.claim}
    else:
        members["state"] = wish.state
    for name in ("first", "cursor"):
        if value := getattr(wish, name):
            members[name] = value
    if wish.rows != FETCH_ROWS_MAX:
        members["rows"] = wish.rows
    if wish.bytes != FETCH_RUN_BYTES_DEFAULT:
        members["bytes"] = wish.bytes
    body = pack_json(members)
    if len(body) > FETCH_BYTES_MAX:
        raise ValueError(f"a FETCH has at most {FETCH_BYTES_MAX} bytes, not {len(body)}")
    return body


def unpack_fetch(body: Buffer) -> FetchWish:
    content = read_json(body)
    queue = text(content, "queue")
    check_queue(queue)
    state = text_or_none(content, "state")
    consumer, claim = text_or_none(content, "consumer"), number_or_none(content, "claim")
    if state is None:
        _check_claim(consumer, claim)
    elif state not in STATES or consumer is not None or claim is not None:
        raise BadFrame(f"state is one of {', '.join(STATES)}, without consumer and claim")
    return FetchWish(
        queue=queue,
        consumer=consumer,
        claim=claim,
        state=state,
        first=number_in(content, "first", 0, TIME_MS_MAX, 0),
        rows=number_in(content, "rows", 1, FETCH_ROWS_MAX, FETCH_ROWS_MAX),
        bytes=number_in(content, "bytes", 1, FETCH_RUN_BYTES_MAX, FETCH_RUN_BYTES_DEFAULT),
        cursor=text_or_none(content, "cursor") or "",
    )


def pack_fetched(about: Members, rows: Sequence[FetchedRow]) -> bytes:
    """`about` has `next` or `cursor`. ValueError if it is too long."""
    endings = [row.finished and _ending(row.finished) for row in rows]
    packed = pack_json({**about, "rows": endings} if any(endings) else dict(about))
    if len(packed) > FETCHED_ABOUT_BYTES_MAX:
        raise ValueError(f"{len(packed)} bytes about rows are over {FETCHED_ABOUT_BYTES_MAX}")
    leases = [LeasedRun(*row[:3], row.bits or 0, row.run) for row in rows]
    return b"".join([_ABOUT.pack(len(packed)), packed, *lease_parts(leases)])


def unpack_fetched(body: Buffer) -> Fetched:
    view = memoryview(body)
    if len(view) < _ABOUT.size:
        raise BadFrame("a FETCHED is too short")
    (about_bytes,) = _ABOUT.unpack_from(view)
    rows_at = _ABOUT.size + about_bytes
    if about_bytes > FETCHED_ABOUT_BYTES_MAX or rows_at > len(view):
        raise BadFrame("a FETCHED says too much about its rows")
    about = read_json(view[_ABOUT.size : rows_at])
    leases = read_leases(view[rows_at:], "a FETCHED")
    endings = _read_endings(about, len(leases))
    rows = [
        FetchedRow(*lease[:3], lease.bits or None, lease.run, finished)
        for lease, finished in zip(leases, endings, strict=True)
    ]
    return Fetched(rows, number_or_none(about, "next"), text_or_none(about, "cursor"))


def _check_claim(consumer: str | None, claim: int | None) -> None:
    if consumer is None or claim is None:
        raise BadFrame("consumer and claim, or state, are needed")
    if not 1 <= len(consumer.encode(errors="replace")) <= CONSUMER_BYTES_MAX:
        raise BadFrame(f"consumer is not a text of 1 to {CONSUMER_BYTES_MAX} bytes")
    if not 1 <= claim <= TIME_MS_MAX:
        raise BadFrame("claim is not the number of a claim")


def _ending(finished: Finished) -> dict[str, Any]:
    errors = [_said(error) for error in finished.errors]
    return {**_said(finished), "errors": errors}


def _said(record: Finished | PastError) -> dict[str, Any]:
    """Its members, without those of version 1's later additions that say nothing."""
    return {
        name: value
        for name, value in record._asdict().items()
        if name not in record._field_defaults or value != record._field_defaults[name]
    }


def _read_endings(about: Members, rows: int) -> list[Finished | None]:
    """One for each row; None where nothing was said."""
    endings = about.get("rows")
    if endings is None:
        return [None] * rows
    if not isinstance(endings, list) or len(endings) != rows:
        raise BadFrame("a FETCHED does not say of each of its rows how it has ended")
    return [None if ending is None else _read_ending(ending) for ending in endings]


def _read_ending(ending: Any) -> Finished:
    if not isinstance(ending, dict) or not isinstance(ending.get("errors"), list):
        raise BadFrame("how a row has ended is not an object with errors")
    errors = tuple(_read_error(error) for error in ending["errors"])
    return Finished(
        text(ending, "outcome"),
        number(ending, "finished_ms"),
        errors,
        text_or_none(ending, "locked_by") or "",
        number_or_none(ending, "locked_ms") or 0,
        text_or_none(ending, "result") or "",
        text_or_none(ending, "job") or "",
    )


def _read_error(error: Any) -> PastError:
    if not isinstance(error, dict):
        raise BadFrame("an error of a row is not an object")
    return PastError(
        number(error, "attempt"),
        number(error, "at_ms"),
        text(error, "text"),
        read_failure_reason(error.get("failure_reason")) or "application",
        text_or_none(error, "locked_by") or "",
        number_or_none(error, "locked_ms") or 0,
    )
