"""How to damage a run cleverly, so that the damage gets past the checks before the one it is for.

Shared by the Hypothesis tests and the fuzzer. Written from docs/formats.md, not from the codec.
"""

import struct
import zlib
from contextlib import suppress
from random import Random

import cramjam
from crc32c import crc32c

HEAD = struct.Struct("<4sBBHII16sQQIHBBBBH")
FLAGS_AT = 5
CHECKSUM_AT = 8
BODY_BYTES_AT = 12
RAW_BYTES_AT = 48
LENGTHS_AT = 55

SNAPPY, KEYS, IDS, CRC32 = 1, 2, 4, 8


def repair(data: bytes) -> bytes:
    """Makes lengths and checksum of a damaged run agree again, so that the damage is reached."""
    if len(data) < HEAD.size:
        return data
    patched = bytearray(data)
    patched[:FLAGS_AT] = b"FBRN\x01"
    flags = patched[FLAGS_AT]
    head_bytes = head_length(data)
    body_bytes = max(0, len(data) - head_bytes)
    raw_bytes = body_bytes
    if flags & SNAPPY:
        raw_bytes = snappy_length(data[head_bytes:], default=body_bytes)
    struct.pack_into("<I", patched, BODY_BYTES_AT, body_bytes)
    struct.pack_into("<I", patched, RAW_BYTES_AT, raw_bytes & 0xFFFFFFFF)
    return reseal(bytes(patched))


def squeeze(data: bytes) -> bytes:
    """The same run, compressed however short it is: an encoder leaves a short one as it is."""
    return data if data[FLAGS_AT] & SNAPPY else repair(_compressed(data, Random(0)))


def reseal(data: bytes) -> bytes:
    """The same bytes with a checksum that matches."""
    if len(data) < HEAD.size:
        return data
    algorithm = zlib.crc32 if data[FLAGS_AT] & CRC32 else crc32c
    checksum = algorithm(data[BODY_BYTES_AT:], algorithm(data[:CHECKSUM_AT]))
    return data[:CHECKSUM_AT] + checksum.to_bytes(4, "little") + data[BODY_BYTES_AT:]


def head_length(data: bytes) -> int:
    queue_len, flow_len, action_len, headers_len = struct.unpack_from("<BBBH", data, LENGTHS_AT)
    return HEAD.size + int(queue_len + flow_len + action_len + headers_len)


def snappy_length(body: bytes, default: int) -> int:
    value = 0
    for index, byte in enumerate(body[:5]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value
    return default


def mutate(data: bytes, random: Random) -> bytes:
    """One change that knows the format: a field, an offset, a text, the body, or its compression.

    Lengths and checksum are left as they are; `repair` makes them agree.
    """
    if len(data) < HEAD.size:
        return data
    (mutation,) = random.choices(tuple(_MUTATIONS), tuple(_MUTATIONS.values()))
    return mutation(data, random)


def _field(data: bytes, random: Random) -> bytes:
    """A header field becomes a value at one of its edges."""
    at, size = random.choice(
        [(4, 1), (5, 1), (6, 2), (12, 4), (32, 8), (40, 8), (48, 4), (52, 2), (54, 1), (55, 1),
         (56, 1), (57, 1), (58, 2)]
    )  # fmt: skip
    value = _edge(random, size)
    return data[:at] + value.to_bytes(size, "little") + data[at + size :]


def _flag(data: bytes, random: Random) -> bytes:
    return data[:FLAGS_AT] + bytes([data[FLAGS_AT] ^ 1 << random.randrange(4)]) + data[6:]


def _count(data: bytes, random: Random) -> bytes:
    count = int.from_bytes(data[6:8], "little") + random.choice([-2, -1, 1, 2])
    return data[:6] + (count & 0xFFFF).to_bytes(2, "little") + data[8:]


def _text(data: bytes, random: Random) -> bytes:
    """Bytes of queue, flow, action or headers change, or come and go with their length."""
    end = min(head_length(data), len(data))
    at = random.randint(HEAD.size, max(HEAD.size, end))
    if random.random() < 0.5:
        return data[:at] + random.randbytes(1) + data[at + 1 :]
    field = random.randrange(4)
    added = random.choice([b"\xff", b"\x00", b"-", b"ab", b"\xc3\xa9", b"\x01\x01\x00nv"])
    lengths = list(struct.unpack_from("<BBBH", data, LENGTHS_AT))
    at = HEAD.size + sum(lengths[:field])
    lengths[field] += len(added)
    if lengths[field] > (0xFFFF if field == 3 else 0xFF):
        return data
    packed = struct.pack("<BBBH", *lengths)
    return data[:LENGTHS_AT] + packed + data[HEAD.size : at] + added + data[at:]


def _offset(data: bytes, random: Random) -> bytes:
    """One offset of a column moves, or all of them move together."""
    head, body = _split(data)
    columns = _offset_places(head, body)
    if not columns:
        return data
    places = random.choice(columns)
    patched = bytearray(body)
    if random.random() < 0.3:
        by = _edge(random, 4)
        for at in places:
            _add(patched, at, by)
    elif random.random() < 0.3:
        at = random.choice(places)
        patched[at : at + 4] = _edge(random, 4).to_bytes(4, "little")
    else:
        _add(patched, random.choice(places), random.choice([-1, 1, 200, -200]))
    return _join(head, bytes(patched))


def _sums(data: bytes, random: Random) -> bytes:
    """Bytes go from one column to another, or come with an offset for them: what adds up still
    does, so that only the columns themselves can be at fault."""
    head, body = _split(data)
    columns = _offset_places(head, body)
    if not columns:
        return data
    patched = bytearray(body)
    by = random.choice([1, 2, 18, 200])
    _add(patched, random.choice(columns)[-1], by)
    if random.random() < 0.5:
        _add(patched, random.choice(columns)[-1], -by)
    else:
        at = random.randint(0, columns[0][0])
        patched[at:at] = random.randbytes(by)
    return _join(head, bytes(patched))


def _offset_places(head: bytes, body: bytes) -> list[range]:
    """Where the offsets of each column stand: at the end of the body."""
    count = int.from_bytes(head[6:8], "little")
    columns = 1 + bool(head[FLAGS_AT] & KEYS) + bool(head[FLAGS_AT] & IDS)
    size = 4 * (count + 1)
    start = len(body) - columns * size
    if start < 0:
        return []
    return [range(at, at + size, 4) for at in range(start, len(body), size)]


def _add(body: bytearray, at: int, by: int) -> None:
    moved = int.from_bytes(body[at : at + 4], "little") + by
    body[at : at + 4] = (moved & 0xFFFFFFFF).to_bytes(4, "little")


def _body(data: bytes, random: Random) -> bytes:
    """Bytes inside the body come, go or change, before compression."""
    head, body = _split(data)
    at = random.randint(0, len(body))
    kind = random.randrange(3)
    if kind == 0:
        body = body[:at] + random.randbytes(random.randint(1, 8)) + body[at:]
    elif kind == 1:
        body = body[:at] + body[at + random.randint(1, 8) :]
    else:
        body = body[:at] + random.randbytes(1) + body[at + 1 :]
    return _join(head, body)


def _compressed(data: bytes, random: Random) -> bytes:
    """A body changes places: compressed to not, and back."""
    head, body = _split(data)
    return _join(head[:FLAGS_AT] + bytes([head[FLAGS_AT] ^ SNAPPY]) + head[6:], body)


def _squeezed_bytes(data: bytes, random: Random) -> bytes:
    """A stored byte changes, past the header: in the middle of Snappy's elements, if compressed."""
    at = random.randint(min(head_length(data), len(data)), len(data))
    return data[:at] + random.randbytes(1) + data[at + 1 :]


_MUTATIONS = {
    _field: 1,
    _flag: 1,
    _count: 1,
    _text: 2,
    _offset: 4,
    _sums: 3,
    _body: 3,
    _compressed: 3,
    _squeezed_bytes: 3,
}
"""Weighted, so that most of what is made gets past the header."""


def _split(data: bytes) -> tuple[bytes, bytes]:
    """The header, and the body before compression, as far as it can be had."""
    head_bytes = head_length(data)
    head, body = data[:head_bytes], data[head_bytes:]
    if head[FLAGS_AT] & SNAPPY and snappy_length(body, default=0) < 1 << 16:
        with suppress(cramjam.DecompressionError):
            body = bytes(cramjam.snappy.decompress_raw(body))
    return head, body


def _join(head: bytes, body: bytes) -> bytes:
    if head[FLAGS_AT] & SNAPPY:
        body = bytes(cramjam.snappy.compress_raw(body))
    return head + body


def _edge(random: Random, size: int) -> int:
    """A number of `size` bytes at which something may break."""
    top = (1 << 8 * size) - 1
    return random.choice(
        [0, 1, top, top - 1, top >> 1, random.randint(0, top), 4095 & top, 4096 & top, 4097 & top]
    )
