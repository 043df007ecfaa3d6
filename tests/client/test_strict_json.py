"""JSON from outside: what is more than the standard, or would fail later, is refused."""

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import BadFrame
from forebay.strict_json import DEPTH_MAX, check, loads
from forebay.wire import read_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner),
)


@given(VALUES)
def test_json_is_read_as_ever(value: Any) -> None:
    text = json.dumps(value)
    assert loads(text) == value
    assert loads(text.encode()) == value
    assert loads(json.dumps(value, ensure_ascii=False).encode()) == value
    check(value)


@given(st.binary(max_size=60) | st.text('[]{}",:0123456789.eE+-ntf\\ud8\n ', max_size=40))
def test_whatever_comes_is_read_or_a_value_error(data: bytes | str) -> None:
    with suppress(ValueError):
        value = loads(data)
        assert loads(json.dumps(value)) == value


def nested(levels: int, opening: str = "[", closing: str = "]") -> str:
    return opening * levels + "1" + closing * levels


@pytest.mark.parametrize(
    "text,complaint",
    [
        ("NaN", "NaN is not JSON"),
        ("[Infinity]", "Infinity is not JSON"),
        ('{"a":-Infinity}', "-Infinity is not JSON"),
        ("1e400", "the number 1e400 is out of range"),
        ("[-1e999999999]", "out of range"),
        ("9" * 5000, "a number has too many digits"),
        ('{"a":1,"b":2,"a":1}', "the name 'a' is there twice"),
        ('[{"a":{"b":1,"b":2}}]', "the name 'b' is there twice"),
        (r'"\ud800"', "half of a surrogate pair"),
        (r'{"\uDC00":1}', "half of a surrogate pair"),
        (r'["\ude00\ud83d"]', "half of a surrogate pair"),
        (nested(DEPTH_MAX + 1), "nested deeper than 100 levels"),
        (nested(DEPTH_MAX + 1, '{"a":', "}"), "nested deeper than 100 levels"),
        (nested(50_000), "nested deeper than 100 levels"),
        ("[" * 50_000, "nested deeper than 100 levels"),
        ("", "Expecting value"),
        ("[1,]", "Expecting value"),
    ],
)
def test_what_is_refused_says_why(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        loads(text)
    with pytest.raises(BadFrame, match="a body is not JSON: "):
        read_json(text.encode())


@pytest.mark.parametrize("data", ['{"a":1}'.encode("utf-16"), b'"\xff"', b'"\xed\xa0\x80"'])
def test_bytes_are_utf_8(data: bytes) -> None:
    with pytest.raises(ValueError, match="not UTF-8"):
        loads(data)


def test_a_whole_pair_is_a_character_and_brackets_in_a_text_are_none() -> None:
    assert loads(r'"\ud83d\ude00"') == "\N{GRINNING FACE}"
    assert loads(json.dumps("[" * 1000)) == "[" * 1000
    assert loads(nested(DEPTH_MAX)) == json.loads(nested(DEPTH_MAX))


@pytest.mark.parametrize(
    "value,complaint",
    [
        (math.nan, "not JSON compliant"),
        ([math.inf], "not JSON compliant"),
        ("\ud800", "half of a surrogate pair"),
        ({"a": b"x"}, "bytes is not JSON serializable"),
        ({1, 2}, "set is not JSON serializable"),
        (json.loads(nested(DEPTH_MAX + 1)), "nested deeper than 100 levels"),
    ],
)
def test_what_cannot_be_written_is_found_before(value: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        check(value)
