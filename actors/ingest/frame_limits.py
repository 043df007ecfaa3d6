"""Checks a frame before its body is read. Pure decisions.

An invalid frame ends the connection: the position in the stream is lost, or the client does not
speak the protocol. A frame that is only too large is skipped and refused.
"""

from typing import Final

from actors.config.settings import stored_run_bytes_max
from actors.ingest.window import Window
from actors.model.refusals import too_large
from forebay import wire
from forebay.errors import BadFrame, Refused
from forebay.limits import (
    CONTROL_BYTES_MAX,
    EXTEND_BYTES_MAX,
    FETCH_BYTES_MAX,
    FRAME_BODY_BYTES_MAX,
    HELLO_BYTES_MAX,
    LEASE_BYTES_MAX,
    PING_BYTES_MAX,
    SETTLE_BYTES_MAX,
    STAGE_HEAD_BYTES,
)
from forebay.wire import FrameHead, Kind

_SENSIBLE_BYTES_MAX: Final = {
    Kind.HELLO: HELLO_BYTES_MAX,
    Kind.PUSH: FRAME_BODY_BYTES_MAX,
    Kind.STAGE: STAGE_HEAD_BYTES + FRAME_BODY_BYTES_MAX,
    Kind.PING: PING_BYTES_MAX,
    Kind.STATS: 0,
    Kind.GOODBYE: 0,
    Kind.LEASE: FRAME_BODY_BYTES_MAX,
    Kind.SETTLE: FRAME_BODY_BYTES_MAX,
    Kind.EXTEND: FRAME_BODY_BYTES_MAX,
    Kind.CONTROL: FRAME_BODY_BYTES_MAX,
    Kind.FETCH: FRAME_BODY_BYTES_MAX,
}
_TAKEN_BYTES_MAX: Final = {
    Kind.LEASE: LEASE_BYTES_MAX,
    Kind.SETTLE: SETTLE_BYTES_MAX,
    Kind.EXTEND: EXTEND_BYTES_MAX,
    Kind.CONTROL: CONTROL_BYTES_MAX,
    Kind.FETCH: FETCH_BYTES_MAX,
}


def check(head: FrameHead, *, is_greeted: bool, in_flight: Window) -> None:
    """Raises BadFrame if a client cannot mean this frame."""
    kind, sequence, body_bytes = head
    bytes_max = _SENSIBLE_BYTES_MAX.get(kind)
    if bytes_max is None:
        raise BadFrame(f"{kind.name} is the daemon's to send")
    if body_bytes > bytes_max:
        raise BadFrame(f"a {kind.name} of {body_bytes} bytes: at most {bytes_max} are allowed")
    if (kind is Kind.HELLO) is is_greeted:
        raise BadFrame("a second HELLO" if is_greeted else f"{kind.name} comes before HELLO")
    if (sequence == wire.CONNECTION) is is_greeted:
        raise BadFrame(f"a {kind.name} with the sequence number {sequence}")
    if sequence in in_flight:
        raise BadFrame(f"the sequence number {sequence} is still in flight")


def refuse_size(head: FrameHead, max_run_bytes: int) -> Refused | None:
    """The refusal of a frame that is too large, if it is."""
    if head.kind in (Kind.PUSH, Kind.STAGE):
        head_bytes = STAGE_HEAD_BYTES if head.kind is Kind.STAGE else 0
        is_larger = head.body_bytes - head_bytes > stored_run_bytes_max(max_run_bytes)
        return too_large(max_run_bytes) if is_larger else None
    taken_max = _TAKEN_BYTES_MAX.get(head.kind, head.body_bytes)
    return too_large(taken_max) if head.body_bytes > taken_max else None
