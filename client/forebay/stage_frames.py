"""The body of a STAGE (docs/protocol.md): which stage of which write, and the run. For both ends.

The run is neither copied nor read here: the daemon checks it, and that its header names the write,
before it stores it. Whatever the input, the reader raises BadRun and nothing else.
"""

from typing import Final

from forebay.errors import BadRun
from forebay.head import RunHead
from forebay.limits import STAGE_HEAD_BYTES, WRITE_ID_BYTES
from forebay.wire import Buffer

WRITE_HEADER: Final = "forebay-write"
"""The header of a staged run: the id of its write, in 32 hexadecimal digits. Receipts use it."""
_WRITE_HEADER: Final = WRITE_HEADER.encode()
MOVED: Final = b"\xff" * WRITE_ID_BYTES
"""The stage of a run, in a journal, that was moved there from a write published elsewhere. No
request may use it."""
RESERVED: Final = (bytes(WRITE_ID_BYTES), MOVED)
"""No write or stage has one of these ids: the daemon's books use them."""


def pack_stage_head(write: bytes, stage: bytes) -> bytes:
    """The bytes before the run."""
    if len(write) != WRITE_ID_BYTES or len(stage) != WRITE_ID_BYTES:
        raise ValueError(f"ids of writes and stages have {WRITE_ID_BYTES} bytes")
    return write + stage


def unpack_stage(body: Buffer) -> tuple[bytes, bytes, memoryview]:
    """Write, stage, and a view of the run."""
    view = memoryview(body)
    if len(view) <= STAGE_HEAD_BYTES:
        raise BadRun(f"{len(view)} bytes are too few for a STAGE")
    write, stage = view[:WRITE_ID_BYTES], view[WRITE_ID_BYTES:STAGE_HEAD_BYTES]
    return bytes(write), bytes(stage), view[STAGE_HEAD_BYTES:]


def write_of(head: RunHead) -> bytes | None:
    """The write that a run belongs to; None if its headers name none."""
    if _WRITE_HEADER not in head.packed_headers:
        return None
    try:
        write = bytes.fromhex(head.headers().get(WRITE_HEADER, ""))
    except ValueError:
        return None
    return write if len(write) == WRITE_ID_BYTES else None
