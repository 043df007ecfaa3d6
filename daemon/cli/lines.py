"""How `forebay push` cuts its input into items. Memory is bounded by the largest item."""

from collections.abc import Callable, Iterator
from typing import Final

from forebay.errors import BadRun
from forebay.limits import RUN_RAW_BYTES_MAX

READ_BYTES: Final = 256 * 1024

Read = Callable[[int], bytes]
"""Returns at most that many bytes of input, and b"" at its end."""


def split(read: Read, how: str | int) -> Iterator[list[bytes]]:
    """Yields the items of each read as a list.

    `lines` and `null` cut at every line feed or zero byte, and skip empty items; `whole` makes one
    item of all the input; a number makes items of that many bytes, the last of the remainder.
    """
    match how:
        case "lines":
            return _at(read, b"\n")
        case "null":
            return _at(read, b"\0")
        case "whole":
            return _whole(read)
        case int():
            return _every(read, how)
        case _:
            raise ValueError(f"cannot split by {how!r}")


def _at(read: Read, delimiter: bytes) -> Iterator[list[bytes]]:
    begun: list[bytes] = []
    """The pieces of an item whose end was not read yet."""
    begun_bytes = 0
    while data := read(READ_BYTES):
        first, *rest = data.split(delimiter)
        begun.append(first)
        begun_bytes += len(first)
        if rest:
            begun_item = b"".join(begun)
            *whole, last = rest
            begun, begun_bytes = [last], len(last)
            items = [item for item in (begun_item, *whole) if item]
            if items:
                yield items
        elif begun_bytes > RUN_RAW_BYTES_MAX:
            raise _too_long()
    item = b"".join(begun)
    if item:
        yield [item]


def _every(read: Read, size: int) -> Iterator[list[bytes]]:
    if not 1 <= size <= RUN_RAW_BYTES_MAX:
        raise _too_long()
    rest = bytearray()
    while data := read(max(READ_BYTES, size)):
        rest += data
        whole = len(rest) - len(rest) % size
        if whole:
            yield [bytes(rest[at : at + size]) for at in range(0, whole, size)]
            del rest[:whole]
    if rest:
        yield [bytes(rest)]


def _whole(read: Read) -> Iterator[list[bytes]]:
    pieces = []
    size = 0
    while data := read(READ_BYTES):
        pieces.append(data)
        size += len(data)
        if size > RUN_RAW_BYTES_MAX:
            raise _too_long()
    if pieces:
        yield [b"".join(pieces)]


def _too_long() -> BadRun:
    return BadRun(f"an item has 1 to {RUN_RAW_BYTES_MAX} bytes; see --split")
