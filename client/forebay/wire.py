"""Frames of the wire protocol (docs/protocol.md), for both ends: bytes in, frames out, no I/O.

A frame is a head of 12 bytes and a body. What a body holds depends on the type: a run as it is
(PUSH), one outcome byte (ACK), a JSON object (WELCOME, ERROR, REPORT, CONTROL, RESULT), or
HELLO's 8 bytes and an optional JSON object. Frames about leases are in `lease_frames.py`, frames
about writes and claims in `stage_frames.py` and `fetch_frames.py`.

Members of a JSON object are read with `number`, `text` and the like: they check the type, and raise
BadFrame if a member is missing or has another type.
"""

import json
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple, cast

from forebay.errors import CODES, BadFrame, Code, Refused
from forebay.limits import ERROR_TEXT_MAX, FRAME_HEAD_BYTES
from forebay.strict_json import loads

Buffer = bytes | bytearray | memoryview
Members = Mapping[str, Any]
"""A JSON object that came over the wire."""

PROTOCOL_MIN: Final = 1
PROTOCOL_MAX: Final = 1
GREETING: Final = b"FBAY"
CONNECTION: Final = 0
"""The sequence number of HELLO, of its answer, and of an ERROR about the connection itself."""
SEQUENCE_MAX: Final = 2**32 - 1

_HEAD = struct.Struct("<IBBHI")
_ACK = struct.Struct("<IBBHIB")
_HELLO = struct.Struct("<4sBBH")

assert _HEAD.size == FRAME_HEAD_BYTES


class Kind(IntEnum):
    """Frame types. Requests are odd, their answers even; ERROR answers any request, and ACK
    both PUSH and STAGE."""

    HELLO = 1
    WELCOME = 2
    PUSH = 3
    ACK = 4
    PING = 5
    PONG = 6
    STATS = 7
    REPORT = 8
    GOODBYE = 9
    FAREWELL = 10
    ERROR = 12
    LEASE = 13
    LEASED = 14
    SETTLE = 15
    SETTLED = 16
    EXTEND = 17
    EXTENDED = 18
    CONTROL = 19
    RESULT = 20
    STAGE = 21
    FETCH = 23
    FETCHED = 24


class Outcome(IntEnum):
    """The outcome of a run that was pushed or staged."""

    STORED = 0
    DUPLICATE = 1
    """A run of this id was stored before; nothing was stored now."""


class FrameHead(NamedTuple):
    kind: Kind
    sequence: int
    body_bytes: int


_KINDS: Final = {int(kind): kind for kind in Kind}


def read_frame_head(data: Buffer, at: int = 0) -> FrameHead:
    """The head at `at`; the caller has made sure that 12 bytes are there."""
    body_bytes, number, flags, reserved, sequence = _HEAD.unpack_from(data, at)
    kind = _KINDS.get(number)
    if kind is None:
        raise BadFrame(f"frame type {number} is not known")
    if flags or reserved:
        raise BadFrame("a frame's reserved bytes are not 0")
    return FrameHead(kind, sequence, body_bytes)


def answer_to(kind: Kind) -> int:
    """The type of frame that answers a request, unless an ERROR does."""
    return Kind.ACK if kind is Kind.STAGE else kind + 1


def frame_head(kind: Kind, sequence: int, body_bytes: int) -> bytes:
    return _HEAD.pack(body_bytes, kind, 0, 0, sequence)


def frame(kind: Kind, sequence: int, body: bytes = b"") -> bytes:
    return _HEAD.pack(len(body), kind, 0, 0, sequence) + body


def ack(sequence: int, outcome: Outcome) -> bytes:
    return _ACK.pack(1, Kind.ACK, 0, 0, sequence, outcome)


def read_ack(body: Buffer) -> Outcome:
    if len(body) == 1:
        for outcome in Outcome:
            if body[0] == outcome:
                return outcome
    raise BadFrame("an ACK names no known outcome")


def hello(client: str) -> bytes:
    body = _HELLO.pack(GREETING, PROTOCOL_MIN, PROTOCOL_MAX, 0)
    return frame(Kind.HELLO, CONNECTION, body + pack_json({"client": client}))


def read_hello(body: Buffer) -> tuple[int, int, dict[str, Any]]:
    """The lowest and highest version that the client speaks, and what it says of itself."""
    if len(body) < _HELLO.size:
        raise BadFrame("a HELLO is too short")
    greeting, lowest, highest, reserved = _HELLO.unpack_from(body)
    if greeting != GREETING or reserved or lowest > highest:
        raise BadFrame("this is not a valid HELLO")
    return lowest, highest, read_json(body[_HELLO.size :]) if len(body) > _HELLO.size else {}


def choose_version(lowest: int, highest: int) -> int | None:
    """The highest version that both ends speak."""
    version = min(highest, PROTOCOL_MAX)
    return version if version >= max(lowest, PROTOCOL_MIN) else None


def document(kind: Kind, sequence: int, content: dict[str, Any]) -> bytes:
    """A frame whose body is a JSON object."""
    return frame(kind, sequence, pack_json(content))


def error(sequence: int, refused: Refused) -> bytes:
    return document(
        Kind.ERROR,
        sequence,
        {
            "code": refused.code,
            "text": refused.text[:ERROR_TEXT_MAX],
            "retry_after_ms": refused.retry_after_ms,
            "fatal": refused.fatal,
        },
    )


def read_error(body: Buffer) -> Refused:
    content = read_json(body)
    code = content.get("code")
    retry_after_ms = content.get("retry_after_ms", 0)
    if not isinstance(code, str) or code not in CODES or not isinstance(retry_after_ms, int):
        raise BadFrame(f"an ERROR with the unknown code {code!r}")
    return Refused(
        cast(Code, code),
        str(content.get("text", "")),
        retry_after_ms=retry_after_ms,
        fatal=content.get("fatal") is True,
    )


def read_json(body: Buffer) -> dict[str, Any]:
    try:
        content = loads(body)
    except ValueError as problem:
        raise BadFrame(f"a body is not JSON: {problem}") from problem
    if not isinstance(content, dict):
        raise BadFrame("a body is not a JSON object")
    return content


def pack_json(content: dict[str, Any]) -> bytes:
    """The shortest form, in UTF-8; unpaired surrogates become question marks."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return text.encode(errors="replace")


def number(members: Members, name: str) -> int:
    value = members.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadFrame(f"{name} is not a whole number")
    return value


def number_in(members: Members, name: str, low: int, high: int, default: int) -> int:
    """`default` if it is missing."""
    value = members.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadFrame(f"{name} is not a whole number from {low} to {high}")
    return value


def number_or_none(members: Members, name: str) -> int | None:
    """None if it is null or missing."""
    return None if members.get(name) is None else number(members, name)


def text(members: Members, name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str):
        raise BadFrame(f"{name} is missing, or is not a text")
    return value


def text_or_none(members: Members, name: str) -> str | None:
    """None if it is null or missing."""
    return None if members.get(name) is None else text(members, name)


def texts(members: Members, name: str) -> tuple[str, ...]:
    value = members.get(name)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise BadFrame(f"{name} is not a list of texts")
    return tuple(value)


def identifier(members: Members, name: str) -> bytes:
    """The id of a write or stage: 32 hexadecimal digits."""
    digits = text(members, name)
    try:
        value = bytes.fromhex(digits)
    except ValueError as problem:
        raise BadFrame(f"{name} is not an id") from problem
    if 2 * len(value) != len(digits) or len(value) != 16:
        raise BadFrame(f"{name} is not an id")
    return value
