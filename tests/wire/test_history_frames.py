"""FETCHED of history: how rows have ended, there and back, and what is no such thing."""

from typing import Any

import pytest

from forebay.errors import BadFrame
from forebay.fetch_frames import FetchedRow, Finished, PastError, pack_fetched, unpack_fetched
from forebay.lease_frames import LeasedRun, lease_parts
from forebay.limits import FETCH_ROWS_MAX
from forebay.wire import pack_json

ENDED = Finished("delivered", 1755000000000, (PastError(1, 1754000000000, "it broke"),))
ENDING = {"outcome": "deleted", "finished_ms": 5, "errors": []}


def fetched(endings: Any, rows: int = 1) -> bytes:
    about = pack_json({"cursor": None, "rows": endings})
    leases = [LeasedRun(0, 0, 1, 0, b"run")] * rows
    return b"".join([len(about).to_bytes(4, "little"), about, *lease_parts(leases)])


def test_how_rows_have_ended_comes_back() -> None:
    rows = [
        FetchedRow(0, 0, 2, 0b101, b"one", ENDED),
        FetchedRow(0, 0, 1, None, b"two", Finished("deleted", 7)),
    ]
    assert unpack_fetched(pack_fetched({"cursor": "5-3"}, rows)).rows == rows


def test_as_many_rows_as_there_may_be_fit() -> None:
    rows = [FetchedRow(0, 0, 1, None, b"run", Finished("delivered", 2**45))] * FETCH_ROWS_MAX
    assert unpack_fetched(pack_fetched({"cursor": None}, rows)).rows == rows


def test_endings_that_are_none_are_none() -> None:
    assert unpack_fetched(fetched(None)).rows[0].finished is None
    found = unpack_fetched(fetched([ENDING, None], 2)).rows
    assert [row.finished for row in found] == [Finished("deleted", 5), None]


@pytest.mark.parametrize(
    "endings",
    [
        5,
        {},
        [],
        [ENDING, ENDING],
        ["x"],
        [ENDING | {"errors": None}],
        [ENDING | {"errors": {}}],
        [ENDING | {"errors": ["x"]}],
        [ENDING | {"errors": [{"attempt": 1, "at_ms": 1}]}],
        [ENDING | {"errors": [{"attempt": "1", "at_ms": 1, "text": "x"}]}],
        [ENDING | {"outcome": 1}],
        [ENDING | {"finished_ms": True}],
        [{"outcome": "deleted", "errors": []}],
    ],
)
def test_what_says_not_how_each_row_has_ended_is_a_bad_frame(endings: Any) -> None:
    with pytest.raises(BadFrame):
        unpack_fetched(fetched(endings))
