import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.model.slices import (
    ERROR_TEXT_MAX,
    ERRORS_MAX,
    InCold,
    InJournal,
    ItemError,
    LentRun,
    Slice,
    error_rows,
    first_bits,
    indexes,
    item_bits,
    lowest_bit,
    ranges,
    read_error,
    remember,
    sort_key,
)
from forebay.run import encode_run, read_head

sets = st.sets(st.integers(0, 300) | st.integers(0, 4095)) | st.builds(
    lambda first, count: set(range(first, first + count)), st.integers(0, 99), st.integers(0, 500)
)


def bits_of(items: set[int]) -> int:
    return sum(1 << index for index in items)


def make_run(payloads: list[bytes], due_ms: int = 0) -> LentRun:
    data = encode_run(
        payloads,
        queue="q",
        priority=3,
        enqueued_ms=1000,
        due_ms=due_ms,
        run_id=bytes(range(16)),
        compressed=False,
    )
    return LentRun(read_head(data), data, InJournal(token=1, position=2))


@given(sets)
def test_indexes_are_the_items_in_order(items: set[int]) -> None:
    assert list(indexes(bits_of(items))) == sorted(items)


@given(sets)
def test_ranges_are_whole_stretches(items: set[int]) -> None:
    stretches = list(ranges(bits_of(items)))
    assert [i for first, last in stretches for i in range(first, last)] == sorted(items)
    # Between two of them at least one item is missing.
    ends = [edge for stretch in stretches for edge in stretch]
    assert ends == sorted(set(ends))


@given(sets, st.integers(1, 600))
def test_first_bits_are_the_first_items(items: set[int], count: int) -> None:
    assert first_bits(bits_of(items), count) == bits_of(set(sorted(items)[:count]))


@given(st.integers(0, 4096), st.integers(0, 4096))
def test_item_bits_name_each_item_of_a_range(first: int, last: int) -> None:
    assert item_bits(first, last) == bits_of(set(range(first, last)))


@pytest.mark.parametrize("index", [0, 1, 63, 64, 4095])
def test_lowest_bit_is_the_first_item(index: int) -> None:
    assert lowest_bit(1 << index | 1 << 4095) == index


def test_split_gives_the_first_items_and_the_rest_with_the_same_history() -> None:
    run = make_run([b"x"] * 8)
    errors = (ItemError(1, 5, "no"),)
    whole = Slice(run, 0b1110_0101, attempt=1, due_ms=7, errors=errors)
    first, rest = whole.split(3)
    assert rest is not None
    assert (first.bits, rest.bits) == (0b0010_0101, 0b1100_0000)
    for part in (first, rest):
        assert (part.run, part.attempt, part.due_ms, part.errors) == (run, 1, 7, errors)


@pytest.mark.parametrize("items", [5, 6, 10**9])
def test_split_of_no_more_than_is_asked_for_leaves_no_rest(items: int) -> None:
    whole = Slice(make_run([b"x"] * 8), 0b1110_0101)
    assert whole.split(items) == (whole, None)


@pytest.mark.parametrize("items", [0, -1])
def test_split_refuses_a_slice_of_nothing(items: int) -> None:
    with pytest.raises(ValueError, match="a slice of"):
        Slice(make_run([b"x"]), 1).split(items)


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=40), st.data())
def test_shares_of_bytes_add_up_however_a_run_is_cut(
    payloads: list[bytes], data: st.DataObject
) -> None:
    run = make_run(payloads)
    count = len(payloads)
    whole = Slice(run, item_bits(0, count))
    assert len(run.data) <= whole.bytes <= len(run.data) + count
    total, rest = 0, whole
    while True:
        first, remaining = rest.split(data.draw(st.integers(1, count)))
        assert first.bytes > 0
        total += first.bytes
        if remaining is None:
            break
        rest = remaining
    assert total == whole.bytes


def test_sort_key_is_priority_first_due_run_and_first_item() -> None:
    run = make_run([b"x"] * 9)
    assert Slice(run, 0b1000).sort_key == (3, 1000, bytes(range(16)), 3)
    delayed = make_run([b"x"] * 9, due_ms=5000)
    # When it is due again changes nothing about its place.
    assert Slice(delayed, 0b1000, due_ms=9999).sort_key == (3, 5000, bytes(range(16)), 3)
    assert sort_key(delayed.head, 0b1001) < sort_key(delayed.head, 0b1000)
    assert sort_key(replace(run.head, priority=2), 0b1000) < sort_key(run.head, 0b1)


def test_slices_are_told_apart_by_identity_and_owners_by_value() -> None:
    run = make_run([b"x"])
    assert Slice(run, 1) != Slice(run, 1)
    assert InCold(b"r", b"l") == InCold(b"r", b"l")


def test_remember_keeps_the_first_and_the_newest_errors() -> None:
    errors: tuple[ItemError, ...] = ()
    for attempt in range(1, ERRORS_MAX + 11):
        errors = remember(errors, ItemError(attempt, 0, f"no {attempt}"))
    assert len(errors) == ERRORS_MAX
    assert [error.attempt for error in errors] == [1, *range(12, ERRORS_MAX + 11)]


def test_remember_shortens_long_texts() -> None:
    [error] = remember((), ItemError(1, 2, "é" * 10_000))
    assert error == ItemError(1, 2, "é" * (ERROR_TEXT_MAX - 1) + "…")


def test_errors_are_read_as_written_and_as_earlier_versions_wrote_them() -> None:
    errors = (
        ItemError(1, 5, "503"),
        ItemError(2, 6, "no credit", "business"),
        ItemError(3, 7, "503", "application", "host/q/1", 4),
    )
    rows = json.loads(json.dumps(error_rows(errors)))
    assert [len(row) for row in rows] == [3, 4, 6]
    assert tuple(map(read_error, rows)) == errors
    assert read_error([1, 5, "503", "weather"]).failure_reason == "application"


def test_members_that_a_later_version_adds_to_an_error_are_passed_over() -> None:
    known = ItemError(3, 7, "503", "business", "host/q/1", 4)
    [row] = json.loads(json.dumps(error_rows([known])))
    further: list[list[Any]] = [[None], ["text", 5, {"an": "object"}], [[]] * 20]
    for more in further:
        assert read_error([*row, *more]) == known
