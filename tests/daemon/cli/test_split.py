import io
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.cli.lines import split
from forebay.errors import BadRun


def reader(data: bytes, piece: int) -> Callable[[int], bytes]:
    """Reads as a pipe does: some bytes at a time."""
    stream = io.BytesIO(data)
    return lambda size: stream.read(min(size, piece))


def items(data: bytes, how: str | int, piece: int = 4) -> list[bytes]:
    return [item for some in split(reader(data, piece), how) for item in some]


@pytest.mark.parametrize(
    "data,how,expected",
    [
        (b"one\ntwo\n", "lines", [b"one", b"two"]),
        (b"one\ntwo", "lines", [b"one", b"two"]),
        (b"\n\none\n\n\ntwo\n\n", "lines", [b"one", b"two"]),
        (b"with\0zero\n", "lines", [b"with\0zero"]),
        (b"crlf\r\n", "lines", [b"crlf\r"]),
        (b"", "lines", []),
        (b"\n", "lines", []),
        (b"a\0b\nc\0\0", "null", [b"a", b"b\nc"]),
        (b"a\nb\0c", "whole", [b"a\nb\0c"]),
        (b"", "whole", []),
        (b"abcdefgh", 3, [b"abc", b"def", b"gh"]),
        (b"abcdef", 3, [b"abc", b"def"]),
        (b"abcdef", 1, [b"a", b"b", b"c", b"d", b"e", b"f"]),
        (b"abc", 100, [b"abc"]),
        (b"", 3, []),
    ],
)
def test_input_is_cut_as_asked(data: bytes, how: str | int, expected: list[bytes]) -> None:
    assert items(data, how) == expected


@given(data=st.binary(max_size=200), piece=st.integers(1, 50), size=st.integers(1, 30))
def test_items_do_not_depend_on_how_the_input_arrives(data: bytes, piece: int, size: int) -> None:
    data = data.replace(b"\1", b"\n").replace(b"\2", b"\0")
    assert items(data, "lines", piece) == [line for line in data.split(b"\n") if line]
    assert items(data, "null", piece) == [line for line in data.split(b"\0") if line]
    assert b"".join(items(data, size, piece)) == data
    assert b"".join(items(data, "whole", piece)) == data


@pytest.mark.parametrize("how", ["lines", "null", "whole"])
def test_item_that_no_run_can_hold_is_not_read_to_its_end(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.cli.lines.RUN_RAW_BYTES_MAX", 1000)
    read_bytes = 0

    def read(size: int) -> bytes:
        nonlocal read_bytes
        read_bytes += 100
        return b"x" * 100

    with pytest.raises(BadRun, match="see --split"):
        list(split(read, how))
    assert read_bytes <= 1100
