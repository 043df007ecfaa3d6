"""Answers as they come in pieces: what is known already means what h11 would make of it."""

from itertools import pairwise

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.handlers.http.answer import Answer
from daemon.handlers.http.connection import KNOWN_BYTES_MAX, AnswerReader
from daemon.handlers.http.request import RequestHead

HEAD = RequestHead("POST", b"/", [(b"Host", b"crm")])
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
SAID = b"HTTP/1.1 207 Some\r\nX-Number: 1\r\nContent-Length: 3\r\n\r\n[1]"
CHUNKED = b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n"
HINTED = b"HTTP/1.1 100 Continue\r\n\r\n" + OK
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
BROKEN = b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"
BYTES_MAX = 1000

Heard = tuple[Answer | str, bool]


def hear(reader: AnswerReader, *pieces: bytes) -> Heard:
    """What became of an answer that came so, and whether another request may follow."""
    reader.expect(HEAD, BYTES_MAX)
    for piece in pieces:
        try:
            answer = reader.take(piece)
        except h11.RemoteProtocolError as error:
            return str(error), False
        if answer is not None:
            return answer, not answer.is_cut and reader.end(answer)
    return "more is awaited", False


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    return [data[first:last] for first, last in pairwise(places)]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([OK, SAID, CHUNKED, HINTED, CLOSING, BROKEN, OK + b"x", OK[:-1]]),
            st.lists(st.integers(0, 100), max_size=2),
        ),
        max_size=6,
    )
)
def test_a_reader_says_of_each_answer_what_a_fresh_one_says(
    answers: list[tuple[bytes, list[int]]],
) -> None:
    reader = AnswerReader()
    for data, cuts in answers:
        pieces = pieces_of(data, cuts)
        heard = hear(reader, *pieces)
        assert heard == hear(AnswerReader(), *pieces)
        if not heard[1]:
            reader = AnswerReader()


@pytest.mark.parametrize("data", [OK, SAID, CHUNKED, HINTED])
def test_the_same_bytes_are_not_read_again(data: bytes) -> None:
    reader = AnswerReader()
    first = hear(reader, data)
    assert hear(reader, data)[0] is first[0]
    assert hear(reader, data[:-1], data[-1:]) == first
    other = hear(reader, SAID.replace(b"1", b"2"))
    assert isinstance(other[0], Answer)
    assert other[0].headers.get("x-number") == "2"


def test_what_follows_a_known_answer_is_not_taken_for_part_of_it() -> None:
    reader = AnswerReader()
    assert hear(reader, OK) == hear(reader, OK) == (Answer(200, {"content-length": "0"}), True)
    assert hear(reader, OK + OK)[1] is False


def test_long_answers_are_read_each_time() -> None:
    body = b"x" * KNOWN_BYTES_MAX
    data = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    reader = AnswerReader()
    reader.expect(HEAD, len(body))
    first = reader.take(data)
    assert first is not None
    assert reader.end(first)
    reader.expect(HEAD, len(body))
    assert reader.take(data) is not first


def test_how_far_an_answer_has_come() -> None:
    reader = AnswerReader()
    for _ in range(2):
        reader.expect(HEAD, BYTES_MAX)
        assert not reader.has_begun
        assert reader.take(SAID[:20]) is None
        assert (reader.has_begun, reader.has_head) == (True, False)
        assert reader.take(SAID[20:-1]) is None
        assert reader.has_head
        answer = reader.take(SAID[-1:])
        assert answer is not None
        assert reader.end(answer)
