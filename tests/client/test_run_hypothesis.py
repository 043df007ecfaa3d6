"""The run codec for any input: what goes in comes out, and bytes are a run or BadRun.

The oracle and the damage are those of the fuzzer (tests/fuzz/).
"""

import struct
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from forebay.column import pack
from forebay.errors import BadRun
from forebay.ids import format_item_id, pack_item_id
from forebay.limits import (
    ATTEMPT_MAX,
    KEY_BYTES_MAX,
    PRIORITY_MAX,
    RUN_COMPRESS_BYTES_MIN,
    RUN_ITEMS_MAX,
    RUN_RAW_BYTES_MAX,
    TIME_MS_MAX,
)
from forebay.run import (
    CRC32,
    IDS,
    KEYS,
    SNAPPY,
    Run,
    encode_columns,
    encode_run,
    read_head,
    read_run,
    verify,
)
from forebay.snappy import decompress
from tests.fuzz.run_damage import (
    BODY_BYTES_AT,
    FLAGS_AT,
    RAW_BYTES_AT,
    mutate,
    repair,
    reseal,
    squeeze,
)
from tests.fuzz.run_oracle import check_any_bytes
from tests.vectors.make_runs import body_of

fast = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])

queues = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)
texts = st.text(max_size=63)  # At most four bytes each: 252.
run_ids = st.binary(min_size=16, max_size=16)
payloads_ = st.lists(
    st.one_of(st.binary(max_size=40), st.just(b"a" * 300)), min_size=1, max_size=20
)
item_ids_ = st.builds(pack_item_id, run_ids, st.integers(0, RUN_ITEMS_MAX - 1))
fields_: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "queue": queues,
        "flow": texts,
        "action": texts,
        "priority": st.integers(0, PRIORITY_MAX),
        "due_ms": st.integers(0, TIME_MS_MAX),
        "enqueued_ms": st.integers(0, TIME_MS_MAX),
        "attempt": st.integers(0, ATTEMPT_MAX),
        "run_id": run_ids,
    }
)
first_offsets_ = st.integers(0, 2**32 - 1)
headers_ = st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=100), max_size=6)


@st.composite
def runs(draw: st.DrawFn) -> bytes:
    payloads = draw(payloads_)
    count = len(payloads)
    keys = st.lists(st.binary(max_size=KEY_BYTES_MAX), min_size=count, max_size=count)
    item_ids = st.lists(item_ids_, min_size=count, max_size=count)
    with pytest.MonkeyPatch.context() as patch:
        if draw(st.booleans()):
            patch.setattr("forebay.head.crc32c", None)
        data = encode_run(
            payloads,
            **draw(fields_),
            headers=draw(headers_),
            keys=draw(st.none() | keys),
            item_ids=draw(st.none() | item_ids),
            compressed=draw(st.booleans()),
        )
    return squeeze(data) if draw(st.booleans()) else data


@fast
@given(payloads_, fields_, headers_, st.data(), st.booleans(), st.booleans())
def test_what_is_encoded_is_decoded(
    payloads: list[bytes],
    fields: dict[str, Any],
    headers: dict[str, str],
    data: st.DataObject,
    compressed: bool,
    with_crc32: bool,
) -> None:
    count = len(payloads)
    key = st.binary(max_size=KEY_BYTES_MAX)
    keys = data.draw(st.none() | st.lists(key, min_size=count, max_size=count))
    ids = data.draw(st.none() | st.lists(item_ids_, min_size=count, max_size=count))
    with pytest.MonkeyPatch.context() as patch:
        if with_crc32:
            patch.setattr("forebay.head.crc32c", None)
        encoded = encode_run(
            payloads, **fields, headers=headers, keys=keys, item_ids=ids, compressed=compressed
        )
    run = read_run(encoded)
    head = run.head
    assert {name: getattr(head, name) for name in fields} == fields
    assert (head.count, head.size, head.headers()) == (count, len(encoded), headers)
    assert head.flags & ~SNAPPY == KEYS * (keys is not None) | IDS * (ids is not None) | (
        CRC32 * with_crc32
    )
    body = memoryview(encoded)[head.head_bytes :]
    if head.flags & SNAPPY:
        assert compressed
        assert len(body) < head.raw_bytes >= RUN_COMPRESS_BYTES_MIN
        body = memoryview(decompress(body, head.raw_bytes))
    assert body == body_of(*(column for column in (payloads, keys, ids) if column is not None))
    assert run.payloads() == payloads
    assert run.keys() == (keys or [b""] * count)
    if ids is None:
        assert run.item_ids() == [format_item_id(head.run_id, index) for index in range(count)]
    else:
        texts = [format_item_id(packed[:16], packed[16] | packed[17] << 8) for packed in ids]
        assert run.item_ids() == texts


@fast
@given(payloads_, first_offsets_, first_offsets_, st.booleans())
def test_columns_with_any_first_offset_are_decoded(
    payloads: list[bytes], base: int, keys_base: int, compressed: bool
) -> None:
    keys = [payload[:3] for payload in payloads]
    encoded = encode_columns(
        len(payloads),
        moved(payloads, base),
        queue="crm",
        keys=moved(keys, keys_base),
        compressed=compressed,
    )
    assert read_run(encoded).payloads() == payloads
    assert read_run(encoded).keys() == keys


def moved(values: list[bytes], base: int) -> tuple[bytes, bytes]:
    """A column whose first offset is `base`."""
    offsets, data = pack(values)
    assume(base + len(data) < 2**32)
    numbers = [offset + base for (offset,) in struct.iter_unpack("<I", offsets)]
    return struct.pack(f"<{len(numbers)}I", *numbers), data


@st.composite
def offsets_of_columns(draw: st.DrawFn) -> list[list[int]]:
    """One to three columns; now and then all offsets are in order, and their lengths add up."""
    count = draw(st.integers(1, 4))
    number = st.integers(0, 12) | st.integers(0, 2**32 - 1)
    column = st.lists(number, min_size=count + 1, max_size=count + 1)
    return draw(st.lists(column | column.map(sorted), min_size=1, max_size=3))


@fast
@given(offsets_of_columns(), st.binary(max_size=20) | st.none())
@example([[0, 9, 5]], b"12345")
@example([[7, 3, 12]], b"12345")
@example([[0, 3], [0, 2]], b"12345")
@example([[0, 5], [9, 9], [4, 4]], b"12345")
@example([[0, 4], [9, 9]], b"12345")
@example([[0, 4], [9, 11]], b"12345")
def test_columns_with_any_offsets_are_whole_or_refused(
    columns: list[list[int]], data: bytes | None
) -> None:
    ordered = all(offsets == sorted(offsets) for offsets in columns)
    length = sum(map(span, columns))
    if data is None:
        data = bytes(range(length)) if ordered and length <= KEY_BYTES_MAX else b""
    numbers = [offset for offsets in columns for offset in offsets]
    body = data + struct.pack(f"<{len(numbers)}I", *numbers)
    run = forged(body, count=len(columns[0]) - 1, columns=len(columns))
    if ordered and length == len(data):
        base = columns[0][0]
        assert run.payloads() == [data[at - base : end - base] for at, end in pairwise(columns[0])]
        if len(columns) > 1:
            assert b"".join(run.payloads() + run.keys()) == data[: sum(map(span, columns[:2]))]
    else:
        with pytest.raises(BadRun):
            run.payloads()
    check_any_bytes(bytes(run.data))


def span(offsets: list[int]) -> int:
    return offsets[-1] - offsets[0]


def forged(body: bytes, count: int, columns: int = 1) -> Run:
    """A run that says of this body that it is one."""
    data = bytearray(encode_run([b""] * count, queue="crm", compressed=False)[:63])
    data[FLAGS_AT] |= (0, KEYS, KEYS | IDS)[columns - 1]
    return read_run(repair(bytes(data) + body))


@fast
@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: b"FBRN\x01" + tail))
def test_any_bytes_are_a_run_or_refused(data: bytes) -> None:
    check_any_bytes(data)
    check_any_bytes(repair(data))


@fast
@given(runs(), st.integers(), st.integers(1, 4), st.sampled_from([bytes, reseal, repair]))
def test_run_damaged_cleverly_is_a_run_or_refused(
    data: bytes, seed: int, times: int, finish: Callable[[bytes], bytes]
) -> None:
    random = Random(seed)
    for _ in range(times):
        data = mutate(data, random)
    check_any_bytes(finish(data))


@fast
@given(
    runs(),
    st.lists(
        st.tuples(
            st.sampled_from(["flip", "cut", "zero", "repeat", "insert"]),
            st.integers(0, 10_000),
            st.integers(1, 30),
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([bytes, reseal, repair]),
)
def test_run_damaged_blindly_is_a_run_or_refused(
    data: bytes, damages: list[tuple[str, int, int]], finish: Callable[[bytes], bytes]
) -> None:
    for kind, place, length in damages:
        at = place % (len(data) + 1)
        part = data[at : at + length]
        replaced = {
            "flip": bytes(byte ^ 1 << length % 8 for byte in part),
            "cut": b"",
            "zero": bytes(len(part)),
            "repeat": part * 2,
            "insert": bytes([length]) * length + part,
        }[kind]
        data = data[:at] + replaced + data[at + length :]
    check_any_bytes(finish(data))


@fast
@given(runs(), st.data())
def test_any_changed_byte_is_noticed(data: bytes, draw: st.DataObject) -> None:
    """What was not repaired never passes for a run: that is what the checksum is for."""
    at = draw.draw(st.integers(0, len(data) - 1))
    changed = bytearray(data)
    changed[at] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(BadRun):
        read_run(changed)


@fast
@given(runs(), st.integers(0, 10_000))
def test_no_part_of_a_run_is_a_run(data: bytes, length: int) -> None:
    with pytest.raises(BadRun):
        read_head(data[: length % len(data)])
    with pytest.raises(BadRun):
        read_head(data + bytes(length % 7 + 1))


@fast
@given(runs(), st.randoms(use_true_random=False))
def test_header_is_read_without_the_body(data: bytes, random: Any) -> None:
    head = read_head(data)
    garbage = random.randbytes(head.body_bytes)
    assert read_head(data[: head.head_bytes] + garbage) == head


@fast
@given(runs(), st.integers(0, 20), st.integers(0, 20))
def test_slices_are_parts_of_the_whole(data: bytes, one: int, other: int) -> None:
    run = read_run(data)
    count = run.head.count
    first, last = sorted((one % (count + 1), other % (count + 1)))
    for accessor in (run.payloads, run.keys, run.item_ids):
        assert accessor(first, last) == accessor()[first:last]


MIB = 1024 * 1024


def peak_bytes(work: Callable[[], object]) -> int:
    """What is allocated at most while `work` runs and, as it must, refuses."""
    tracemalloc.start()
    try:
        with pytest.raises(BadRun):
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def claiming(at: int, size: int, value: int, *, compressed: bool = True) -> bytes:
    """A small run, sealed, with one number of its header replaced."""
    data = encode_run([b"x" * 1000], queue="crm", headers={"n": "v"}, compressed=compressed)
    return reseal(data[:at] + value.to_bytes(size, "little") + data[at + size :])


@pytest.mark.parametrize(
    "data",
    [
        claiming(RAW_BYTES_AT, 4, 2**32 - 1),
        claiming(RAW_BYTES_AT, 4, RUN_RAW_BYTES_MAX + 1),
        claiming(RAW_BYTES_AT, 4, RUN_RAW_BYTES_MAX),
        claiming(RAW_BYTES_AT, 4, 2**32 - 1, compressed=False),
        claiming(BODY_BYTES_AT, 4, 2**32 - 1),
        claiming(BODY_BYTES_AT, 4, 2**32 - 1, compressed=False),
        claiming(6, 2, RUN_ITEMS_MAX),
        claiming(6, 2, 0xFFFF),
        claiming(55, 1, 0xFF),
        claiming(58, 2, 0xFFFF),
    ],
)
def test_claims_of_a_header_allocate_nothing(data: bytes) -> None:
    def read() -> None:
        run = Run(read_head(data), data)
        verify(run.head, data)
        run.payloads()

    assert peak_bytes(read) < 64 * 1024


@pytest.mark.parametrize("varint", [b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x20", b"\x00"])
def test_claims_of_a_compressed_body_allocate_nothing(varint: bytes) -> None:
    """Snappy's own length says 4 GiB, 64 MiB or nothing, and the header 1,008 bytes."""
    data = encode_run([b"x" * 1000], queue="crm")
    head = read_head(data)
    at = head.head_bytes
    forged_data = reseal(data[:at] + varint + data[at + len(varint) :])
    forged_head = read_head(forged_data)
    assert forged_head.raw_bytes == 1008
    assert peak_bytes(lambda: verify(forged_head, forged_data)) < 64 * 1024
    assert peak_bytes(Run(forged_head, forged_data).payloads) < 64 * 1024


def test_claims_of_offsets_allocate_nothing() -> None:
    for offsets in ([0, 2**32 - 1], [2**31, 2**32 - 1], [2**32 - 1, 0]):
        run = forged(bytes(1000) + struct.pack("<2I", *offsets), count=1)
        assert peak_bytes(run.payloads) < 64 * 1024


def test_body_takes_no_more_than_the_header_says() -> None:
    """4 MiB of zeros in 200 KB of Snappy: the claim is possible, and it is what is allocated."""
    data = encode_run([bytes(4 * MIB)], queue="crm")
    run = read_run(data)
    broken = bytearray(data)
    broken[run.head.head_bytes + 20 :] = bytes(len(data) - run.head.head_bytes - 20)
    head = read_head(broken)
    assert peak_bytes(Run(head, broken).payloads) < 5 * MIB
