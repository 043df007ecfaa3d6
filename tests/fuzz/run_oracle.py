"""What must hold for any bytes that are read as a run.

Shared by the Hypothesis tests and the fuzzer. `check_any_bytes` is the oracle: whatever it is
given, the codec answers with BadRun or with a run that is whole, and with nothing else. Which of
the two, and which items, is told by a second reader that goes item by item through the body.
"""

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from uuid import UUID

import cramjam

from forebay.errors import BadRun
from forebay.ids import pack_item_id, parse_item_id
from forebay.run import (
    IDS,
    KEYS,
    SNAPPY,
    Run,
    RunHead,
    encode_run,
    read_count,
    read_head,
    read_run,
    verify,
)
from tests.fuzz.run_damage import snappy_length


def check_any_bytes(data: bytes) -> str:
    """Reads `data` in every way; AssertionError if an answer is wrong. Returns how far it got."""
    try:
        head = read_head(data)
    except BadRun:
        return "refused by the header"
    assert head.size == len(data)
    assert read_count(data) == head.count
    assert head == read_head(memoryview(bytearray(data)))
    head.headers()
    # The body is unpacked even if the checksum is wrong: a checksum stops accidents, not malice.
    whole = check_items(Run(head, data))
    try:
        verify(head, data)
    except BadRun:
        return "refused by the checksum"
    if not whole:
        return "refused by the body"
    check_encodes_again(data)
    return "whole"


def check_items(run: Run) -> bool:
    """Every accessor gives what the document says, or BadRun; slices agree with the whole."""
    count = run.head.count
    middle = count // 2
    whole = True
    accessors: list[Callable[..., list[Any]]] = [run.payloads, run.keys, run.item_ids]
    expected = expected_items(run.head, bytes(run.data))
    for accessor, right in zip(accessors, expected, strict=True):
        try:
            values = accessor()
        except BadRun:
            assert right is None
            whole = False
            continue
        assert values == right
        assert accessor(0, middle) + accessor(middle) == values
        assert accessor(count - 1, count) == values[-1:]
        assert accessor(middle, middle) == []
    return whole


def expected_items(
    head: RunHead, data: bytes
) -> tuple[list[bytes] | None, list[bytes] | None, list[str] | None]:
    """Payloads, keys and ids as docs/formats.md has them, read item by item; None: refused."""
    columns = read_plainly(head, data[head.head_bytes :])
    if columns is None:
        return None, None, None
    payloads = columns.pop(0)
    keys: list[bytes] | None = columns.pop(0) if head.flags & KEYS else [b""] * head.count
    if any(len(key) > 200 for key in keys or ()):
        keys = None
    if not head.flags & IDS:
        return payloads, keys, [f"{UUID(bytes=head.run_id)}-{n}" for n in range(head.count)]
    item_ids = []
    for packed in columns.pop(0):
        index = int.from_bytes(packed[16:], "little")
        if len(packed) != 18 or index >= 4096:
            return payloads, keys, None
        item_ids.append(f"{UUID(bytes=packed[:16])}-{index}")
    return payloads, keys, item_ids


def read_plainly(head: RunHead, body: bytes) -> list[list[bytes]] | None:
    """The columns of a body: value by value from the front, by offsets from the end."""
    if head.flags & SNAPPY:
        if snappy_length(body, default=-1) != head.raw_bytes:
            return None
        try:
            body = bytes(cramjam.snappy.decompress_raw(body))
        except cramjam.DecompressionError:
            return None
    columns = 1 + (head.flags & KEYS != 0) + (head.flags & IDS != 0)
    numbers = head.count + 1
    values_end = len(body) - 4 * numbers * columns
    at = 0
    read = []
    for number in range(columns):
        values = []
        offsets = struct.unpack_from(f"<{numbers}I", body, values_end + 4 * numbers * number)
        for start, end in pairwise(offsets):
            if end < start or at + end - start > values_end:
                return None
            values.append(body[at : at + end - start])
            at += end - start
        read.append(values)
    return read if at == values_end else None


def check_encodes_again(data: bytes) -> None:
    """What was read from a run, written as a run, is read the same."""
    run = read_run(data)
    head = run.head
    again = read_run(
        encode_run(
            run.payloads(),
            queue=head.queue,
            keys=run.keys(),
            item_ids=[pack_item_id(*parse_item_id(item_id)) for item_id in run.item_ids()],
            flow=head.flow,
            action=head.action,
            priority=head.priority,
            due_ms=head.due_ms,
            enqueued_ms=head.enqueued_ms,
            attempt=head.attempt,
            headers=head.headers(),
            run_id=head.run_id,
            compressed=bool(head.flags & SNAPPY),
        )
    )
    assert again.payloads() == run.payloads()
    assert again.keys() == run.keys()
    assert again.item_ids() == run.item_ids()
    for name in ("run_id", "queue", "flow", "action", "priority", "due_ms", "enqueued_ms"):
        assert getattr(again.head, name) == getattr(head, name)
    assert (again.head.attempt, again.head.headers()) == (head.attempt, head.headers())
