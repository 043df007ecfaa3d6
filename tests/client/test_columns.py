"""The columns of a body: each in its place and all of them exactly the body, or refused."""

from array import array

import pytest

from forebay.column import pack, read_columns
from forebay.errors import BadRun


def body(data: bytes, *columns: list[int]) -> memoryview:
    """A run's body: all bytes, then the offsets of every column."""
    return memoryview(data + b"".join(array("I", offsets).tobytes() for offsets in columns))


def test_bytes_of_all_columns_come_before_the_offsets_of_all() -> None:
    read = read_columns(body(b"aabkkk123", [0, 2, 3], [0, 0, 3], [0, 1, 3]), 2, 3)
    assert [column.values(0, 2) for column in read] == [
        [b"aa", b"b"],
        [b"", b"kkk"],
        [b"1", b"23"],
    ]


def test_first_offset_need_not_be_zero() -> None:
    first, second = read_columns(body(b"abcdexyz", [1000, 1002, 1002, 1005], [7, 8, 9, 10]), 3, 2)
    assert first.values(0, 3) == [b"ab", b"", b"cde"]
    assert first.values(2, 3) == [b"cde"]
    assert second.values(0, 3) == [b"x", b"y", b"z"]


def test_offsets_reach_the_last_value_of_a_u32() -> None:
    (read,) = read_columns(body(b"ab", [2**32 - 3, 2**32 - 2, 2**32 - 1]), 2, 1)
    assert read.values(0, 2) == [b"a", b"b"]


@pytest.mark.parametrize(
    "offsets",
    [
        [0, 9, 5],  # An item past the end, and the end where it belongs.
        [3, 0, 5],  # Below the first.
        [5, 0],
        [2**32 - 1, 0, 4],
        [0, 2**32 - 1, 5],
        [1, 2**31, 2],
    ],
)
def test_offsets_that_go_backwards_are_refused(offsets: list[int]) -> None:
    count = len(offsets) - 1
    with pytest.raises(BadRun, match="backwards"):
        read_columns(body(b"12345", offsets), count, 1)
    with pytest.raises(BadRun, match="backwards"):
        read_columns(body(b"12345", [0] * len(offsets), offsets), count, 2)


@pytest.mark.parametrize(
    "columns",
    [
        [[0, 6]],
        [[0, 2**32 - 1]],
        [[10, 16]],
        [[0, 1, 6]],
        [[0, 6], [0, 0]],
        [[0, 0], [0, 6]],
        [[0, 3], [0, 3]],
        [[0, 5], [0, 0], [9, 10]],
        [[0, 2**32 - 1], [0, 2**32 - 1], [0, 7]],  # 5, if the sum were a u32.
    ],
)
def test_more_bytes_than_the_body_has_are_refused(columns: list[list[int]]) -> None:
    with pytest.raises(BadRun, match=r"columns have \d+ bytes, and the body has 5 for them"):
        read_columns(body(b"12345", *columns), len(columns[0]) - 1, len(columns))


@pytest.mark.parametrize(
    "columns", [[[0, 4]], [[7, 7]], [[0, 4], [0, 0]], [[0, 2], [1, 2], [3, 4]]]
)
def test_bytes_that_belong_to_no_column_are_refused(columns: list[list[int]]) -> None:
    with pytest.raises(BadRun, match=r"columns have \d bytes, and the body has 5 for them"):
        read_columns(body(b"12345", *columns), len(columns[0]) - 1, len(columns))


@pytest.mark.parametrize("size, count, columns", [(7, 1, 1), (11, 2, 1), (23, 2, 2)])
def test_body_without_room_for_its_offsets_is_refused(size: int, count: int, columns: int) -> None:
    with pytest.raises(BadRun, match="too short"):
        read_columns(memoryview(bytes(size)), count, columns)
    assert len(read_columns(memoryview(bytes(size + 1)), count, columns)) == columns


def test_column_too_long_for_its_offsets_is_refused() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(BadRun, match="longer than its offsets can say"):
        pack([Long(), Long()])
