"""JSON with too many values is recognised before it is parsed."""

import json

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from actors.ingest.large_bodies import (
    LARGE_BYTES_S,
    SMALL_BYTES,
    VALUES_MAX,
    LargeBodies,
    count_values,
    has_too_many_values,
)

MIB = 1024 * 1024

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def values(document: object) -> int:
    """Counted in the plain way."""
    match document:
        case list():
            return 1 + sum(map(values, document))
        case dict():
            return 1 + sum(map(values, document.values()))
    return 1


@given(DOCUMENTS, st.booleans())
def test_no_value_is_overlooked(document: object, is_ascii: bool) -> None:
    body = json.dumps(document, ensure_ascii=is_ascii).encode(errors="replace")
    texts = sum(body.count(mark) for mark in (b",", b"[", b"{"))
    assert values(document) - 1 <= count_values(body) <= max(texts, 2 * values(document))


@pytest.mark.parametrize("piece", ["[],", "{},", "1,", '"",', "[", '{"a":', "null,"])
def test_a_body_of_many_values_is_recognised(piece: str) -> None:
    assert has_too_many_values(b"[" + piece.encode() * (2 * MIB // len(piece)) + b"1]")


@pytest.mark.parametrize("piece", ["a", "a,b,", "[],{}", r"\"", r"\\", r"\n,", r"\",\"", "é"])
def test_a_text_is_one_value_whatever_is_in_it(piece: str) -> None:
    body = json.dumps({"op": "x", "payload": piece * (2 * MIB // len(piece))}).encode()
    assert not has_too_many_values(body)


def test_as_many_values_as_are_allowed_are_allowed() -> None:
    assert not has_too_many_values(json.dumps([1] * (VALUES_MAX - 1)).encode())
    assert has_too_many_values(json.dumps([1] * (VALUES_MAX + 2)).encode())


async def test_large_bodies_pass_one_by_one_and_small_ones_at_once(
    autojump_clock: MockClock,
) -> None:
    bodies = LargeBodies()
    passed: list[tuple[int, float]] = []

    async def parse(size: int) -> None:
        await bodies.wait(size)
        passed.append((size, trio.current_time()))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(parse, LARGE_BYTES_S)
        nursery.start_soon(parse, SMALL_BYTES)
    assert passed[0] == (SMALL_BYTES, 0)
    assert [at for _, at in passed[1:]] == pytest.approx([1, 2, 3])
