"""The frames that the daemon and a child process exchange over two pipes.

    daemon → child   u32 length, u32 length of the JSON, JSON, payloads: a batch
    child → daemon   u32 length, JSON: an answer; length 0 says "delivered" (or "ready"), a text
                     "delivered, with this result", an object is a failure

Lengths are little-endian. The JSON of a batch is a list with one entry per item: its fields in the
order of `Item`, with the payload's length in place of the payload. The raw payloads follow.
The child's first answer says whether it could import the function. Then it sends one answer per
item, in order, as soon as it is known.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Final

from actors.model.outcomes import Failure
from daemon.handlers.items import Verdict
from forebay.item import Item

LENGTH: Final = struct.Struct("<I")
_PAYLOAD: Final = [field.name for field in fields(Item)].index("payload")


def encode_items(items: Sequence[Item]) -> bytes:
    rows = []
    for item in items:
        row = [
            item.id,
            item.queue,
            item.key,
            len(item.payload),
            item.priority,
            item.flow,
            item.action,
            item.attempt,
            item.headers,
            item.enqueued_ms,
        ]
        rows.append(row)
    about = json.dumps(rows).encode()
    payloads = [item.payload for item in items]
    length = LENGTH.size + len(about) + sum(map(len, payloads))
    return b"".join((LENGTH.pack(length), LENGTH.pack(len(about)), about, *payloads))


def decode_items(frame: bytes) -> list[Item]:
    """The items of a batch; `frame` does not include its length."""
    (about_length,) = LENGTH.unpack_from(frame)
    at = LENGTH.size + about_length
    items = []
    for row in json.loads(frame[LENGTH.size : at]):
        end = at + row[_PAYLOAD]
        row[_PAYLOAD] = frame[at:end]
        items.append(Item(*row))
        at = end
    return items


def encode_answer(verdict: Verdict) -> bytes:
    if verdict is None:
        return LENGTH.pack(0)
    text = json.dumps(verdict if isinstance(verdict, str) else asdict(verdict)).encode()
    return LENGTH.pack(len(text)) + text


class Answers:
    """Parses answers from a stream of bytes, in pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray) -> Iterator[Verdict]:
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer, at)
            end = at + LENGTH.size + length
            if end > len(self._buffer):
                break
            text = bytes(self._buffer[at + LENGTH.size : end])
            at = end
            said = json.loads(text) if text else None
            yield Failure(**said) if isinstance(said, dict) else said
        del self._buffer[:at]
