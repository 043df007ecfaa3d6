"""Run ids and item ids: their order, their bytes and their text."""

import os
import signal
import threading
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay import ids
from forebay.ids import (
    format_item_id,
    format_run_id,
    new_run_id,
    pack_item_id,
    parse_item_id,
    parse_run_id,
    unpack_item_id,
)
from forebay.limits import RUN_ITEMS_MAX

RUN_ID = bytes.fromhex("01980c5fe0007abc8def0123456789ab")
RUN_TEXT = "01980c5f-e000-7abc-8def-0123456789ab"

run_ids = st.binary(min_size=16, max_size=16)
indexes = st.integers(0, RUN_ITEMS_MAX - 1)


@pytest.fixture(autouse=True)
def clean_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of a test neither follow the ids of another one nor push them into the future."""
    monkeypatch.setattr(ids, "_last", 0)


def test_run_id_is_a_uuid7_of_now() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(bytes=new_run_id())
    after = time.time_ns() // 1_000_000
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert before <= made.int >> 80 <= after


def test_run_ids_of_one_millisecond_rise() -> None:
    made = [new_run_id(1_000) for _ in range(4096)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {run_id[:6] for run_id in made} == {(1_000).to_bytes(6, "big")}


def test_run_ids_still_rise_when_the_counter_runs_over() -> None:
    made = [new_run_id(1_000) for _ in range(4097)]
    assert made == sorted(made)
    assert made[-1][:6] == (1_001).to_bytes(6, "big")
    assert new_run_id(1_002) > made[-1]


def test_run_ids_still_rise_when_the_clock_goes_back() -> None:
    first = new_run_id(2_000)
    assert new_run_id(1_000) > first


def test_run_ids_of_many_threads_are_distinct() -> None:
    made: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: made.extend(new_run_id(5) for _ in range(500)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({run_id[:8] for run_id in made}) == 2_000


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_child_forked_while_an_id_is_made_can_make_ids() -> None:
    ids._lock.acquire()
    # The fork itself waits for the lock; a timer is the only one left to give it back.
    release = threading.Timer(0.05, ids._lock.release)
    release.start()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        os._exit(0 if len(new_run_id()) == 16 else 1)
    assert os.waitpid(child, 0)[1] == 0
    release.join()
    assert len(new_run_id()) == 16


@pytest.mark.parametrize("now_ms", [-1, 2**48])
def test_time_that_no_id_can_hold_is_refused_and_leaves_no_trace(now_ms: int) -> None:
    with pytest.raises(ValueError, match="out of the range"):
        new_run_id(now_ms)
    assert new_run_id(7)[:6] == (7).to_bytes(6, "big")


@given(run_ids)
def test_run_id_is_printed_as_a_uuid_and_read_back(run_id: bytes) -> None:
    text = format_run_id(run_id)
    assert text == str(uuid.UUID(bytes=run_id))
    assert parse_run_id(text) == run_id
    assert parse_run_id(text.upper().replace("-", "")) == run_id


@given(run_ids, indexes)
def test_item_id_is_read_back_from_text_and_bytes(run_id: bytes, index: int) -> None:
    assert parse_item_id(format_item_id(run_id, index)) == (run_id, index)
    packed = pack_item_id(run_id, index)
    assert len(packed) == ids.ITEM_ID_BYTES
    assert unpack_item_id(packed) == (run_id, index)


def test_item_id_is_the_run_id_and_the_index() -> None:
    assert format_item_id(RUN_ID, 17) == f"{RUN_TEXT}-17"
    assert pack_item_id(RUN_ID, 0x0102) == RUN_ID + b"\x02\x01"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        RUN_TEXT[:-1],
        RUN_TEXT + "0",
        RUN_TEXT[:-1] + "g",
        RUN_TEXT[:-1] + " ",
        " " + RUN_TEXT,
        RUN_TEXT + "\n",
        RUN_TEXT.replace("-", " "),
        "-" + RUN_TEXT.replace("-", ""),
        RUN_TEXT.replace("0", "\N{FULLWIDTH DIGIT ZERO}"),
    ],
)
def test_what_is_no_run_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a run id"):
        parse_run_id(text)


@pytest.mark.parametrize(
    "index", ["", "-1", "+1", "01", " 1", "1 ", "1\n", "1_0", "x", "٣", "4096", "9" * 5000]
)
def test_what_is_no_item_id_is_refused(index: str) -> None:
    with pytest.raises(ValueError, match=r"not an item id|index is below"):
        parse_item_id(f"{RUN_TEXT}-{index}")


def test_run_id_is_no_item_id() -> None:
    for text in (RUN_TEXT, RUN_TEXT.replace("-", ""), "", "-5"):
        with pytest.raises(ValueError, match="not an item id"):
            parse_item_id(text)


@given(st.text())
def test_any_text_is_an_id_or_a_value_error(text: str) -> None:
    for parse in (parse_run_id, parse_item_id):
        with pytest.raises(ValueError, match="not a"):
            parse(text)


def test_items_that_cannot_be_are_not_packed() -> None:
    for run_id, index in [(RUN_ID[:15], 0), (RUN_ID + b"0", 0), (RUN_ID, -1), (RUN_ID, 4096)]:
        with pytest.raises(ValueError, match="no item has"):
            pack_item_id(run_id, index)


@pytest.mark.parametrize(
    "packed", [b"", RUN_ID, RUN_ID + b"\x00", RUN_ID + b"\x00\x10", RUN_ID + b"\x00\x00\x00"]
)
def test_bytes_that_are_no_item_id_are_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="not a packed item id"):
        unpack_item_id(packed)
