import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.inbox import INBOX_BYTES, Inbox


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


Pair = tuple[socket.socket, socket.socket]


def test_bytes_come_out_as_they_came_in(pair: Pair) -> None:
    ours, theirs = pair
    inbox = Inbox()
    theirs.sendall(b"headbodyrest")
    assert inbox.fill(ours) == 12
    assert inbox.take(4, 4) == b"body"
    buffer, at = inbox.front()
    assert buffer[at : at + len(inbox)] == b"rest"


def test_nothing_there_and_the_end_are_told_apart(pair: Pair) -> None:
    ours, theirs = pair
    inbox = Inbox()
    with pytest.raises(BlockingIOError):
        inbox.fill(ours)
    theirs.close()
    assert inbox.fill(ours) == 0


def test_drop_takes_no_more_than_there_is(pair: Pair) -> None:
    ours, theirs = pair
    inbox = Inbox()
    theirs.sendall(b"abcdef")
    inbox.fill(ours)
    assert inbox.drop(4) == 4
    assert inbox.drop(4) == 2
    assert len(inbox) == 0


def test_frame_larger_than_the_buffer_becomes_whole(pair: Pair) -> None:
    ours, theirs = pair
    inbox = Inbox()
    frame = bytes(range(256)) * (3 * INBOX_BYTES // 256)
    sent = 0
    while len(inbox) < len(frame):
        sent += theirs.send(frame[sent : sent + 50_000])
        inbox.fill(ours)
        inbox.make_room(len(frame))
    assert inbox.take(0, len(frame)) == frame
    assert inbox.capacity == len(frame)


def test_room_for_a_frame_is_made_in_one_piece(pair: Pair) -> None:
    """The rest of a frame comes in by one read, though it began near the end of the buffer."""
    ours, theirs = pair
    inbox = Inbox()
    inbox.make_room(INBOX_BYTES)
    theirs.sendall(b"x" * 100_000)
    inbox.fill(ours)
    theirs.sendall(b"x" * 100_000 + b"frame")
    inbox.fill(ours)
    inbox.drop(200_000)
    inbox.make_room(100_000)
    theirs.sendall(b"y" * 99_995)
    assert inbox.fill(ours) == 99_995
    assert inbox.take(0, 100_000) == b"frame" + b"y" * 99_995


def test_shrink_gives_back_what_is_empty_and_nothing_else(pair: Pair) -> None:
    ours, theirs = pair
    inbox = Inbox()
    inbox.make_room(2 * INBOX_BYTES)
    theirs.sendall(b"x")
    inbox.fill(ours)
    inbox.shrink()
    assert inbox.capacity == 2 * INBOX_BYTES
    inbox.drop(1)
    inbox.shrink()
    assert inbox.capacity == INBOX_BYTES


def test_buffer_of_usual_size_is_never_replaced(pair: Pair) -> None:
    ours, theirs = pair
    inbox = Inbox()
    buffer, _ = inbox.front()
    for _ in range(20):
        theirs.sendall(b"x" * 100_000)
        inbox.fill(ours)
        inbox.make_room(150_000)
        inbox.drop(99_999)
    assert inbox.front()[0] is buffer


COUNTING = b"".join(index.to_bytes(4, "big") for index in range(3 * INBOX_BYTES + 1))


@given(
    frames=st.lists(st.integers(0, 2 * INBOX_BYTES), max_size=6),
    piece=st.integers(3_000, 200_000),
)
@settings(deadline=None)
def test_any_frames_in_any_pieces_come_out_whole(frames: list[int], piece: int) -> None:
    """The inbox against a plain list: the frames are cut out of one stream of known bytes."""
    stream = COUNTING[: sum(frames)]
    expected, at = [], 0
    for size in frames:
        expected.append(stream[at : at + size])
        at += size
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        inbox, taken, sent = Inbox(), [], 0
        for size in frames:
            while len(inbox) < size:
                inbox.make_room(size)
                with suppress(BlockingIOError):
                    sent += theirs.send(stream[sent : sent + piece])
                inbox.fill(ours)
            taken.append(inbox.take(0, size))
    assert taken == expected
