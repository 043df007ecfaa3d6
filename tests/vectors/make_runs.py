"""Writes the golden runs: `python -m tests.vectors.make_runs`.

This is docs/formats.md once more, written from the document and sharing nothing with the codec:
a CRC-32C bit by bit, and Snappy as its format description has it. From the first release on, a
vector changes only when the format does, and then the version of the format changes too.
"""

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RUN_ID = bytes.fromhex("01980c5fe0007abc8def0123456789ab")
OTHER_ID = bytes.fromhex("01980c5fe0017abc8def0123456789ab")


@dataclass
class Vector:
    name: str
    about: str
    payloads: Sequence[bytes]
    queue: str = "crm"
    flow: str = ""
    action: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    priority: int = 5
    attempt: int = 0
    due_ms: int = 0
    enqueued_ms: int = 1_752_500_000_000
    keys: Sequence[bytes] | None = None
    item_ids: Sequence[tuple[bytes, int]] | None = None
    snappy: bool = False
    crc32: bool = False
    base: int = 0
    """What the first offset of every column is."""

    def body(self) -> bytes:
        columns = [self.payloads]
        if self.keys is not None:
            columns.append(self.keys)
        if self.item_ids is not None:
            columns.append([run_id + struct.pack("<H", index) for run_id, index in self.item_ids])
        return body_of(*columns, base=self.base)

    def encode(self) -> bytes:
        raw = self.body()
        body = snappy(raw) if self.snappy else raw
        flags = self.snappy | (self.keys is not None) << 1
        flags |= (self.item_ids is not None) << 2 | self.crc32 << 3
        headers = b"".join(
            struct.pack("<BH", len(name.encode()), len(value.encode()))
            + name.encode()
            + value.encode()
            for name, value in self.headers.items()
        )
        before = struct.pack("<4sBBH", b"FBRN", 1, flags, len(self.payloads))
        after = struct.pack("<I", len(body)) + RUN_ID
        after += struct.pack("<QQIHB", self.due_ms, self.enqueued_ms, len(raw), self.attempt,
                             self.priority)  # fmt: skip
        texts = [text.encode() for text in (self.queue, self.flow, self.action)]
        after += bytes(map(len, texts)) + struct.pack("<H", len(headers))
        after += b"".join(texts) + headers + body
        checksum = (zlib.crc32 if self.crc32 else crc32c)(before + after)
        return before + struct.pack("<I", checksum) + after

    def as_json(self) -> dict[str, Any]:
        data = self.encode()
        return {
            "about": self.about,
            "run": data.hex(),
            "checksum": "crc32" if self.crc32 else "crc32c",
            "compressed": self.snappy,
            "first_offset": self.base,
            "head": {
                "run_id": RUN_ID.hex(),
                "queue": self.queue,
                "flow": self.flow,
                "action": self.action,
                "priority": self.priority,
                "due_ms": self.due_ms,
                "enqueued_ms": self.enqueued_ms,
                "attempt": self.attempt,
                "count": len(self.payloads),
                "body_bytes": len(data) - self.head_bytes(),
                "head_bytes": self.head_bytes(),
                "raw_bytes": len(self.body()),
            },
            "headers": self.headers,
            "payloads": [payload.hex() for payload in self.payloads],
            "keys": None if self.keys is None else [key.hex() for key in self.keys],
            "item_ids": None if self.item_ids is None else [
                f"{dashed(run_id)}-{index}" for run_id, index in self.item_ids
            ],
        }  # fmt: skip

    def head_bytes(self) -> int:
        texts = (self.queue, self.flow, self.action, *self.headers, *self.headers.values())
        return 60 + 3 * len(self.headers) + sum(len(text.encode()) for text in texts)


def body_of(*columns: Sequence[bytes], base: int = 0) -> bytes:
    """The bytes of all columns, then the offsets of all columns."""
    data = b"".join(b"".join(values) for values in columns)
    return data + b"".join(offsets_of(values, base) for values in columns)


def offsets_of(values: Sequence[bytes], base: int) -> bytes:
    offsets = accumulate(map(len, values), initial=base)
    return b"".join(struct.pack("<I", offset) for offset in offsets)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def snappy(data: bytes) -> bytes:
    """Literals, and a copy for every repetition of the byte before it."""
    out = bytearray()
    length = len(data)
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    at = 0
    while at < len(data):
        repeated = 0
        while at and repeated < 64 and data[at + repeated : at + repeated + 1] == data[at - 1 : at]:
            repeated += 1
        if repeated >= 4:
            out += bytes([(repeated - 1) << 2 | 2, 1, 0])
            at += repeated
            continue
        end = at + 1
        while end < len(data) and end - at < 60 and data[end - 1 : end] * 4 != data[end : end + 4]:
            end += 1
        out.append((end - at - 1) << 2)
        out += data[at:end]
        at = end
    return bytes(out)


def dashed(run_id: bytes) -> str:
    text = run_id.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


EVENTS = [b'{"customer":%d,"state":"active"}' % number for number in range(3)]
VECTORS = [
    Vector("run_one_item", "The smallest useful run: one item and nothing optional.", [b"hello"]),
    Vector("run_one_empty_item", "An item may be empty.", [b""], queue="q"),
    Vector(
        "run_example",
        "The example of docs/formats.md: a key, a header, a flow and an action.",
        [b"hello", b"world!"],
        flow="nightly",
        action="upsert",
        headers={"trace": "7f"},
        keys=[b"c-1", b""],
    ),
    Vector("run_crc32", "The same checksum field, filled with CRC-32.", EVENTS, crc32=True),
    Vector(
        "run_everything",
        "Every field at work: keys, ids, headers, texts that are not ASCII, a due time.",
        EVENTS,
        queue="crm.eu-1_b",
        flow="naché",
        action="überweisen",
        headers={"trace": "0af7", "empty": "", "naïve": "日本"},
        priority=255,
        attempt=65535,
        due_ms=2**53 - 1,
        enqueued_ms=0,
        keys=[b"", b"\x00\xff", b"k" * 200],
        item_ids=[(RUN_ID, 7), (OTHER_ID, 0), (OTHER_ID, 4095)],
    ),
    Vector("run_ids_without_keys", "Ids come right after the payloads, and so do their offsets.",
           EVENTS[:2],
           item_ids=[(OTHER_ID, 1), (OTHER_ID, 0)], priority=0),
    Vector("run_snappy", "A compressed body.", [b"a" * 300, b"", b"b" * 400], snappy=True),
    Vector("run_snappy_short", "Readers take a compressed body of any length; no producer need "
           "compress this one.", [b"a" * 100, b"", b"b" * 300], snappy=True),
    Vector(
        "run_snappy_crc32_keys",
        "Keys in a compressed body, under CRC-32.",
        [b"x" * 200] * 3,
        keys=[b"k" * 40, b"", b"k"],
        snappy=True,
        crc32=True,
    ),
    Vector(
        "run_sliced_offsets",
        "Columns that were sliced out of longer ones: the first offset is not 0.",
        EVENTS,
        keys=[b"a", b"", b"ccc"],
        item_ids=[(RUN_ID, 0), (RUN_ID, 1), (RUN_ID, 2)],
        base=1_000_003,
    ),
    Vector("run_offsets_up_to_a_u32", "Offsets may end at the last value of a u32.",
           [b"ab", b"c"], base=2**32 - 4),
    Vector(
        "run_4096_items",
        "The most items that a run may have.",
        [b"%d" % (number % 10) for number in range(4096)],
    ),
    Vector("run_4096_items_snappy", "The same count, all items empty, compressed.",
           [b""] * 4096, snappy=True, headers={"h": "v" * 200}),
]  # fmt: skip


def resealed(data: bytes) -> bytes:
    """The same run with a checksum that matches, so that something else must be its fault."""
    return data[:8] + struct.pack("<I", crc32c(data[:8] + data[12:])) + data[12:]


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return resealed(data[:at] + new + data[at + len(new) :])


def refused() -> list[dict[str, str]]:
    """Runs with one fault each, and where a reader finds it."""
    one = Vector("", "", [b"hello"]).encode()
    two = Vector("", "", [b"hello", b"world!"])
    squeezed = Vector("", "", [b"a" * 100], snappy=True).encode()
    u32 = struct.Struct("<I")
    values = b"".join(two.payloads)
    raw = two.body()

    def u32s(*numbers: int) -> bytes:
        return struct.pack(f"<{len(numbers)}I", *numbers)

    def with_headers(packed_headers: bytes) -> bytes:
        length = struct.pack("<H", len(packed_headers))
        return resealed(one[:58] + length + one[60:63] + packed_headers + one[63:])

    def with_body(body: bytes, flags: int = 0, raw_bytes: int | None = None) -> bytes:
        head = bytearray(two.encode()[:63])
        head[5] = flags
        head[12:16] = u32.pack(len(body))
        head[48:52] = u32.pack(len(body) if raw_bytes is None else raw_bytes)
        return resealed(bytes(head) + body)

    cases = [
        ("head", "fewer bytes than the fixed part has", one[:59]),
        ("head", "another magic", patched(one, 0, b"FBRM")),
        ("head", "version 2", patched(one, 4, b"\x02")),
        ("head", "a flag that is not known", patched(one, 5, b"\x10")),
        ("head", "no item", patched(one, 6, b"\x00\x00")),
        ("head", "4,097 items", patched(one, 6, struct.pack("<H", 4097))),
        ("head", "more items than the body has offsets", patched(one, 6, struct.pack("<H", 4))),
        ("head", "a flag for keys and no room for their offsets", with_body(raw, flags=2)),
        ("head", "a body length that is one too long", patched(one, 12, u32.pack(14))),
        ("head", "a byte after the body", resealed(one + b"\x00")),
        ("head", "the last byte missing", resealed(one[:-1])),
        ("head", "due past 2^53 - 1", patched(one, 32, struct.pack("<Q", 2**53))),
        ("head", "enqueued past 2^53 - 1", patched(one, 40, struct.pack("<Q", 2**53))),
        ("head", "uncompressed with two lengths", patched(one, 48, u32.pack(14))),
        ("head", "64 MiB and a byte", patched(squeezed, 48, u32.pack(64 * 2**20 + 1))),
        ("head", "4 GiB less a byte", patched(squeezed, 48, u32.pack(2**32 - 1))),
        ("head", "more than Snappy can hold", patched(squeezed, 48, u32.pack(64 * 2**20))),
        ("head", "no queue name", resealed(one[:55] + b"\x00" + one[56:60] + one[63:])),
        ("head", "a queue name that starts with a dash", patched(one, 60, b"-rm")),
        ("head", "a queue name with a slash", patched(one, 60, b"c/m")),
        ("head", "a queue name of 129 bytes", Vector("", "", [b""], queue="q" * 129).encode()),
        ("head", "a flow that is not UTF-8",
         patched(Vector("", "", [b""], flow="ab").encode(), 63, b"\xc3\x28")),
        ("head", "headers over 16 KiB", Vector("", "", [b""], headers={
            f"{number}": "v" * 4096 for number in range(4)}).encode()),
        ("head", "headers that end inside a length", with_headers(b"\x01\x00")),
        ("head", "a header without a name", with_headers(b"\x00\x01\x00v")),
        ("head", "a header past the end", with_headers(b"\x01\x02\x00nv")),
        ("head", "a header value of 4,097 bytes",
         with_headers(b"\x01" + struct.pack("<H", 4097) + b"n" + b"v" * 4097)),
        ("head", "a header that is not UTF-8", with_headers(b"\x01\x01\x00n\xff")),
        ("head", "the same header twice", with_headers(b"\x01\x00\x00n\x01\x00\x00n")),
        ("checksum", "a changed byte in the body", one[:-1] + b"0"),
        ("checksum", "a changed run id", one[:16] + b"\xff" + one[17:]),
        ("checksum", "a CRC-32C that claims to be a CRC-32", one[:5] + b"\x08" + one[6:]),
        ("checksum", "Snappy's length is not the header's", patched(squeezed, 48, u32.pack(109))),
        ("body", "a compressed body that is damaged", patched(squeezed, 64, b"\xff" * 8)),
        ("body", "offsets that go backwards", with_body(values + u32s(6, 0, 11))),
        ("body", "offsets that go up and down", with_body(values + u32s(0, 12, 11))),
        ("body", "a first offset above the last", with_body(values + u32s(12, 12, 11))),
        ("body", "offsets for a byte too many", with_body(values + u32s(0, 5, 12))),
        ("body", "offsets for a byte too few", with_body(values + u32s(0, 5, 10))),
        ("body", "a byte between the bytes and the offsets",
         with_body(values + b"\x00" + u32s(0, 5, 11))),
        ("body", "a byte after the last offset", with_body(raw + b"\x00")),
        ("body", "offsets before the bytes", with_body(u32s(0, 5, 11) + values)),
        ("body", "columns one by one, each with its offsets",
         with_body(raw + body_of([b"k", b""]), flags=2)),
        ("body", "a flag for keys, and their offsets are other bytes",
         with_body(raw + b"\x00", flags=2)),
        ("body", "keys that need bytes of the payloads",
         with_body(values + u32s(0, 5, 11, 0, 0, 1), flags=2)),
        ("body", "bytes that no column has",
         with_body(values + b"k" + u32s(0, 5, 11, 0, 0, 0), flags=2)),
        ("keys", "a key of 201 bytes", Vector("", "", [b""], keys=[b"k" * 201]).encode()),
        ("ids", "an id of 17 bytes",
         with_body(body_of(two.payloads, [RUN_ID + b"\x00\x00", RUN_ID + b"\x00"]), flags=4)),
        ("ids", "an index of 4,096", Vector("", "", [b""], item_ids=[(RUN_ID, 4096)]).encode()),
    ]  # fmt: skip
    return [{"found_in": where, "about": about, "run": data.hex()} for where, about, data in cases]


def main() -> None:
    for vector in VECTORS:
        lines = [
            f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"
            for name, value in vector.as_json().items()
        ]
        write(f"{vector.name}.json", "{\n" + ",\n".join(lines) + "\n}\n")
    lines = [json.dumps(case, ensure_ascii=False) for case in refused()]
    write("refused_runs.json", "[\n" + ",\n".join(lines) + "\n]\n")


def write(name: str, text: str) -> None:
    (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
