"""The bodies of frames about leases: there and back, and whatever bytes come."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay import lease_frames
from forebay.errors import BadFrame
from forebay.lease_frames import LeasedRun, LeaseReport, LeaseWish, Part, What
from forebay.limits import (
    FRAME_HEAD_BYTES,
    RUN_ITEMS_MAX,
    SETTLE_BYTES_MAX,
    SETTLE_TEXT_BYTES_MAX,
    SETTLE_TEXTS_BYTES_MAX,
)
from tests.wire.examples import make_examples

TOKENS = st.integers(0, lease_frames.TOKEN_MAX)
BITS = st.integers(1, 2**RUN_ITEMS_MAX - 1) | st.integers(0, 2**70)
ERRORS = st.text(max_size=250).filter(lambda text: _is_utf8(text))
PARTS = st.one_of(
    st.tuples(st.sampled_from([What.DELIVERED, What.RELEASED]), BITS).map(lambda both: Part(*both)),
    st.builds(
        Part,
        st.just(What.FAILED),
        BITS,
        ERRORS,
        st.none() | st.integers(0, lease_frames.NO_DELAY - 1),
        st.booleans(),
    ),
)
REPORTS = st.builds(LeaseReport, TOKENS, st.lists(PARTS, max_size=4).map(tuple))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@given(
    st.builds(
        LeaseWish,
        queue=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
        items=st.integers(1, 65_536),
        bytes=st.integers(1, 2**24),
        lease_ms=st.integers(0, 604_800_000),
        wait_ms=st.integers(0, 3_600_000),
        consumer=st.text(st.characters(codec="ascii"), max_size=100),
        keep=st.booleans(),
        times=st.booleans(),
    )
)
def test_wish_comes_back_as_it_was(wish: LeaseWish) -> None:
    assert lease_frames.read_lease(lease_frames.pack_lease(wish)) == wish


@given(
    st.lists(
        st.builds(
            LeasedRun,
            TOKENS,
            st.integers(0, 2**53),
            st.integers(0, 65535),
            BITS,
            st.binary(max_size=50),
            st.none(),
        )
    )
)
def test_leases_come_back_as_they_were(leases: list[LeasedRun]) -> None:
    assert lease_frames.read_leased(lease_frames.pack_leased(leases)) == leases


@given(st.lists(st.integers(0, 2**53), min_size=1))
def test_leases_come_back_with_their_times_or_without(times: list[int]) -> None:
    leases = [LeasedRun(1, 2, 3, 4, b"run", due_ms) for due_ms in times]
    body = lease_frames.pack_leased(leases)
    assert lease_frames.read_leased(body) == leases
    without = [lease._replace(due_ms=None) for lease in leases]
    assert lease_frames.pack_leased(without) == body[: -8 * len(times)]
    for cut in (1, 8 * len(times) - 1):
        with pytest.raises(BadFrame):
            lease_frames.read_leased(body[:-cut])


def test_times_are_those_of_all_leases() -> None:
    with pytest.raises(ValueError, match="some do not"):
        lease_frames.pack_leased([LeasedRun(1, 2, 3, 4, b""), LeasedRun(1, 2, 3, 4, b"", due_ms=0)])


@given(st.lists(REPORTS, min_size=1, max_size=5))
def test_reports_come_back_as_they_were(reports: list[LeaseReport]) -> None:
    body = lease_frames.pack_settle("crm", reports)
    assert lease_frames.read_settle(body) == ("crm", reports)


@given(st.integers(0, 604_800_000), st.lists(TOKENS, min_size=1, max_size=50))
def test_extensions_come_back_as_they_were(lease_ms: int, tokens: list[int]) -> None:
    body = lease_frames.pack_extend("crm", lease_ms, tokens)
    assert lease_frames.read_extend(body) == ("crm", lease_ms, tokens)


@given(st.lists(st.booleans(), max_size=50))
def test_statuses_come_back_as_they_were(held: list[bool]) -> None:
    assert lease_frames.read_statuses(lease_frames.pack_statuses(held)) == held


ONE = b"\x03crm\x01\x00"
"""A SETTLE for one lease, up to its token."""
PART = ONE + bytes(8) + b"\x01\x00"
"""The same, up to its only part."""

READERS: dict[str, Callable[[bytes], Any]] = {
    "LEASE": lease_frames.read_lease,
    "LEASED": lease_frames.read_leased,
    "EXTEND": lease_frames.read_extend,
    "EXTENDED": lease_frames.read_statuses,
    "SETTLE": lease_frames.read_settle,
    "SETTLED": lease_frames.read_statuses,
}


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_reader_of_damaged_bytes_raises_bad_frame_or_reads(name: str, data: st.DataObject) -> None:
    body = bytearray(make_examples()[name][FRAME_HEAD_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    with suppress(BadFrame):
        READERS[name](bytes(body))


@pytest.mark.parametrize("name", READERS)
def test_every_cut_and_every_byte_more_is_a_bad_frame(name: str) -> None:
    body = make_examples()[name][FRAME_HEAD_BYTES:]
    READERS[name](body)
    for size in range(len(body)):
        with pytest.raises(BadFrame):
            READERS[name](body[:size])
    with pytest.raises(BadFrame):
        READERS[name](body + b"\x00")


@pytest.mark.parametrize(
    "body",
    [
        b"\x03crm\x00\x00",
        b"\x03crm\x01\x10",
        b"\x00\x01\x00" + bytes(10),
        b"\x03c/m\x01\x00" + bytes(10),
        b"\x03\xff\xff\xff\x01\x00" + bytes(10),
        ONE + bytes(8) + b"\x01\x10",
        PART + b"\x00" + bytes(9),
        PART + b"\x04" + bytes(9),
        PART + b"\x01\x01" + bytes(8),
        PART + b"\x02\x04" + bytes(8),
        PART + b"\x01\x02" + bytes(8),
        PART + b"\x03\x00" + bytes(6) + b"\x01\x00x",
        PART + b"\x01\x00\x01" + bytes(7),
        PART + b"\x01\x00" + bytes(4) + b"\x01\x00\x00\x00\x00",
        PART + b"\x02\x00" + bytes(6) + b"\x01\x00\xff",
        PART + b"\x01\x00" + bytes(4) + b"\x01\x02\x00\x00" + b"\xff" * 513,
    ],
    ids=[
        "no leases",
        "too many leases",
        "queue without a name",
        "queue with a wrong name",
        "queue that is no text",
        "too many parts",
        "what 0",
        "what 4",
        "permanent delivery",
        "unknown flag",
        "delivery for a business reason",
        "reason to release",
        "delayed delivery",
        "bits of no items",
        "error that is no text",
        "bits of too many items",
    ],
)
def test_settle_with_one_fault_is_a_bad_frame(body: bytes) -> None:
    with pytest.raises(BadFrame):
        lease_frames.read_settle(body)


def test_settle_with_too_many_parts_in_all_is_a_bad_frame() -> None:
    def body(last: int) -> bytes:
        parts = (Part(What.DELIVERED, 1),) * 1024
        reports = [LeaseReport(token, parts) for token in range(4)]
        return lease_frames.pack_settle("q", [*reports, LeaseReport(9, parts[:last])])

    assert len(lease_frames.read_settle(body(0))[1]) == 5
    with pytest.raises(BadFrame, match="at most 4096 parts"):
        lease_frames.read_settle(body(1))


def test_text_that_is_too_long_is_cut_between_characters() -> None:
    for start in ("", "x"):
        part = Part(What.FAILED, 0, start + "é" * SETTLE_TEXT_BYTES_MAX)
        body = lease_frames.pack_settle("q", [LeaseReport(1, (part,))])
        _, [report] = lease_frames.read_settle(body)
        said = report.parts[0].text
        assert SETTLE_TEXT_BYTES_MAX - 1 <= len(said.encode()) <= SETTLE_TEXT_BYTES_MAX
        assert said.replace("é", "") == start + "…"


def test_text_of_any_length_is_read() -> None:
    said = b"x" * 0xFFFF
    body = lease_frames.pack_settle("q", [LeaseReport(1, (Part(What.FAILED, 0, ""),))])
    _, [report] = lease_frames.read_settle(body[:-2] + b"\xff\xff" + said)
    assert report.parts[0].text == said.decode()


@pytest.mark.parametrize(
    "value, text",
    [(None, ""), ("é", "é"), ({"a": [1, "é"]}, '{"a":[1,"é"]}'), (0, "0"), (False, "false")],
)
def test_values_become_texts(value: Any, text: str) -> None:
    assert lease_frames.as_text(value) == text


def test_reasons_and_results_are_read_as_written() -> None:
    parts = (
        Part(What.DELIVERED, 0b001, "invoice 17"),
        Part(What.FAILED, 0b010, "no such customer", None, True, "business"),
        Part(What.FAILED, 0b100, "locked", 5000, False, "business"),
    )
    body = lease_frames.pack_settle("q", [LeaseReport(1, parts)])
    assert lease_frames.read_settle(body) == ("q", [LeaseReport(1, parts)])


def test_lease_with_an_error_for_each_item_fits_into_one_frame() -> None:
    long = "x" * SETTLE_TEXT_BYTES_MAX
    parts = tuple(Part(What.FAILED, 1 << index, long) for index in range(RUN_ITEMS_MAX))
    body = lease_frames.pack_settle("q" * 128, [LeaseReport(1, parts)])
    assert len(body) <= SETTLE_BYTES_MAX
    [report] = lease_frames.read_settle(body)[1]
    assert [part.bits for part in report.parts] == [part.bits for part in parts]
    share = SETTLE_TEXTS_BYTES_MAX // RUN_ITEMS_MAX
    assert {part.text for part in report.parts} == {"x" * (share - len("…".encode())) + "…"}
