"""The bodies of STAGE, FETCH and FETCHED: there and back, and whatever bytes come."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay import lease_frames
from forebay.errors import BadFrame, BadRun
from forebay.fetch_frames import (
    FetchedRow,
    FetchWish,
    pack_fetch,
    pack_fetched,
    unpack_fetch,
    unpack_fetched,
)
from forebay.limits import (
    FETCH_ROWS_MAX,
    FETCH_RUN_BYTES_MAX,
    FETCHED_ABOUT_BYTES_MAX,
    FRAME_HEAD_BYTES,
    RUN_ITEMS_MAX,
    TIME_MS_MAX,
)
from forebay.run import read_run
from forebay.stage_frames import pack_stage_head, unpack_stage
from forebay.wire import pack_json
from tests.wire.examples import STAGE, WRITE, make_examples

QUEUES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
NUMBERS = st.integers(0, TIME_MS_MAX)
SIZES = {"rows": st.integers(1, FETCH_ROWS_MAX), "bytes": st.integers(1, FETCH_RUN_BYTES_MAX)}
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=25)
ROWS = st.lists(
    st.builds(
        FetchedRow,
        st.integers(0, lease_frames.TOKEN_MAX),
        NUMBERS,
        st.integers(0, 65535),
        st.none() | st.integers(1, 2**70) | st.integers(1, 2**RUN_ITEMS_MAX - 1),
        st.binary(max_size=50),
    ),
    max_size=5,
)


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16), st.binary())
def test_stage_comes_back_as_it_was_or_has_no_run(write: bytes, stage: bytes, run: bytes) -> None:
    body = pack_stage_head(write, stage) + run
    if not run:
        with pytest.raises(BadRun):
            unpack_stage(body)
        return
    found_write, found_stage, found = unpack_stage(body)
    assert (found_write, found_stage, bytes(found)) == (write, stage, run)


@pytest.mark.parametrize("size", [0, 1, 16, 31, 32])
def test_stage_that_is_too_short_for_a_run_is_a_bad_run(size: int) -> None:
    with pytest.raises(BadRun, match="too few"):
        unpack_stage(bytes(size))


@pytest.mark.parametrize("size", [0, 15, 17])
def test_ids_of_another_length_are_not_packed(size: int) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        pack_stage_head(WRITE, bytes(size))
    with pytest.raises(ValueError, match="16 bytes"):
        pack_stage_head(bytes(size), STAGE)


def test_run_of_a_stage_is_not_copied() -> None:
    body = make_examples()["STAGE"][FRAME_HEAD_BYTES:]
    write, stage, run = unpack_stage(body)
    assert (write, stage) == (WRITE, STAGE)
    assert run.obj is body
    assert read_run(run).head.headers() == {"forebay-write": WRITE.hex()}


@given(
    st.builds(
        FetchWish,
        queue=QUEUES,
        consumer=TEXTS,
        claim=st.integers(1, TIME_MS_MAX),
        first=NUMBERS,
        **SIZES,
    )
    | st.builds(
        FetchWish,
        queue=QUEUES,
        state=st.sampled_from(["queued", "cold"]),
        cursor=st.just("") | TEXTS,
        **SIZES,
    )
)
def test_fetch_comes_back_as_it_was(wish: FetchWish) -> None:
    assert unpack_fetch(pack_fetch(wish)) == wish


CLAIM = {"queue": "crm", "consumer": "nightly", "claim": 1}
LOOK = {"queue": "crm", "state": "cold"}


@pytest.mark.parametrize(
    "members",
    [
        {"queue": "crm"},
        {"queue": "c/m", "state": "cold"},
        {"state": "cold"},
        {"queue": "crm", "consumer": "nightly"},
        {"queue": "crm", "claim": 1},
        CLAIM | {"state": "cold"},
        LOOK | {"claim": 1},
        LOOK | {"state": "dead"},
        LOOK | {"state": 1},
        LOOK | {"cursor": 1},
        CLAIM | {"consumer": ""},
        CLAIM | {"consumer": "é" * 51},
        CLAIM | {"claim": 0},
        CLAIM | {"claim": True},
        CLAIM | {"first": -1},
        CLAIM | {"rows": 0},
        CLAIM | {"rows": FETCH_ROWS_MAX + 1},
        CLAIM | {"bytes": 0},
        CLAIM | {"bytes": FETCH_RUN_BYTES_MAX + 1},
    ],
)
def test_fetch_with_one_fault_is_a_bad_frame(members: dict[str, Any]) -> None:
    with pytest.raises(BadFrame):
        unpack_fetch(pack_json(members))


def test_cursor_that_is_too_long_to_be_sent_is_not_packed() -> None:
    with pytest.raises(ValueError, match="FETCH"):
        pack_fetch(FetchWish("crm", state="cold", cursor="x" * FETCHED_ABOUT_BYTES_MAX))
    with pytest.raises(ValueError, match="about rows"):
        pack_fetched({"cursor": "x" * FETCHED_ABOUT_BYTES_MAX}, [])


@given(st.none() | NUMBERS, st.none() | TEXTS, ROWS)
def test_rows_come_back_as_they_were(
    following: int | None, cursor: str | None, rows: list[FetchedRow]
) -> None:
    fetched = unpack_fetched(pack_fetched({"next": following, "cursor": cursor}, rows))
    assert (fetched.next, fetched.cursor, fetched.rows) == (following, cursor, rows)


@given(data=st.data())
def test_fetched_that_is_damaged_is_a_bad_frame_or_read(data: st.DataObject) -> None:
    body = bytearray(make_examples()["FETCHED"][FRAME_HEAD_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    with suppress(BadFrame):
        unpack_fetched(bytes(body))


@given(st.binary(max_size=200))
def test_whatever_bytes_come_are_bad_frames_or_read(body: bytes) -> None:
    with suppress(BadFrame):
        unpack_fetch(body)
    with suppress(BadFrame):
        unpack_fetched(body)
    with suppress(BadRun):
        unpack_stage(body)


def test_every_cut_and_every_byte_more_of_a_fetched_is_a_bad_frame() -> None:
    body = make_examples()["FETCHED"][FRAME_HEAD_BYTES:]
    unpack_fetched(body)
    for size in range(len(body)):
        with pytest.raises(BadFrame):
            unpack_fetched(body[:size])
    with pytest.raises(BadFrame):
        unpack_fetched(body + b"\x00")


def test_fetched_that_says_too_much_about_its_rows_is_a_bad_frame() -> None:
    about = b"{" + b" " * FETCHED_ABOUT_BYTES_MAX + b"}"
    body = len(about).to_bytes(4, "little") + about + b"\x00\x00"
    with pytest.raises(BadFrame, match="too much"):
        unpack_fetched(body)
