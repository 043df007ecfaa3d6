import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.ingest.buffers import INBOX_BYTES, START_BYTES, Inbox
from actors.ingest.window import Budget

LIMIT = 64 * 1024 * 1024


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


Pair = tuple[socket.socket, socket.socket]


def test_bytes_come_out_as_they_came_in(pair: Pair) -> None:
    ours, theirs = pair
    inbox = Inbox(Budget(LIMIT))
    theirs.sendall(b"headbodyrest")
    assert inbox.fill(ours) == 12
    assert inbox.take(4, 4) == b"body"
    buffer, at = inbox.front()
    assert buffer[at : at + len(inbox)] == b"rest"


def test_nothing_there_and_the_end_are_told_apart(pair: Pair) -> None:
    ours, theirs = pair
    inbox = Inbox(Budget(LIMIT))
    with pytest.raises(BlockingIOError):
        inbox.fill(ours)
    theirs.close()
    assert inbox.fill(ours) == 0


def test_drop_takes_no_more_than_there_is(pair: Pair) -> None:
    ours, theirs = pair
    inbox = Inbox(Budget(LIMIT))
    theirs.sendall(b"abcdef")
    inbox.fill(ours)
    assert inbox.drop(4) == 4
    assert inbox.drop(4) == 2
    assert len(inbox) == 0


def test_frame_larger_than_the_buffer_becomes_whole(pair: Pair) -> None:
    ours, theirs = pair
    inbox = Inbox(Budget(LIMIT))
    frame = bytes(range(256)) * (3 * INBOX_BYTES // 256)
    sent = 0
    while len(inbox) < len(frame):
        sent += theirs.send(frame[sent : sent + 50_000])
        inbox.fill(ours)
        assert inbox.make_room(len(frame))
    assert inbox.take(0, len(frame)) == frame
    assert inbox.capacity == len(frame)


def receive(inbox: Inbox, pair: Pair, count: int, frame: int) -> None:
    """`count` more bytes of a frame of `frame` bytes come in."""
    ours, theirs = pair
    received = 0
    while received < count:
        theirs.sendall(b"x" * min(50_000, count - received))
        while len(inbox) < frame:
            assert inbox.make_room(frame)
            try:
                received += inbox.fill(ours)
            except BlockingIOError:
                break


def test_an_announced_frame_costs_nothing_until_it_comes(pair: Pair) -> None:
    budget = Budget(LIMIT)
    inbox = Inbox(budget)
    assert inbox.make_room(16 * 1024 * 1024)
    receive(inbox, pair, 12, 16 * 1024 * 1024)
    assert inbox.capacity == START_BYTES
    receive(inbox, pair, 1_000_000, 16 * 1024 * 1024)
    assert 1_000_000 <= inbox.capacity <= 2 * 1_100_000
    assert budget.taken == inbox.capacity - INBOX_BYTES


def test_a_frame_is_copied_a_few_times_while_the_buffer_grows_and_then_never_again(
    pair: Pair,
) -> None:
    size = 4 * 1024 * 1024
    inbox = Inbox(Budget(LIMIT))
    capacities = set()
    for _ in range(3):
        while len(inbox) < size:
            receive(inbox, pair, min(100_000, size - len(inbox)), size)
            capacities.add(inbox.capacity)
        inbox.take(0, size)
    assert len(capacities) <= 9
    buffer, _ = inbox.front()
    receive(inbox, pair, size, size)
    assert inbox.front()[0] is buffer


def test_rest_of_a_frame_comes_in_by_one_read_though_it_began_near_the_end(pair: Pair) -> None:
    ours, theirs = pair
    inbox = Inbox(Budget(LIMIT))
    receive(inbox, pair, INBOX_BYTES, INBOX_BYTES)
    inbox.drop(INBOX_BYTES)
    theirs.sendall(b"x" * 200_000 + b"frame")
    while len(inbox) < 200_005:
        inbox.fill(ours)
    inbox.drop(200_000)
    assert inbox.make_room(100_000)
    theirs.sendall(b"y" * 99_995)
    assert inbox.fill(ours) == 99_995
    assert inbox.take(0, 100_000) == b"frame" + b"y" * 99_995


def test_shrink_gives_back_what_is_empty_and_was_not_used_since(pair: Pair) -> None:
    budget = Budget(LIMIT)
    inbox = Inbox(budget)
    receive(inbox, pair, 4 * INBOX_BYTES, 4 * INBOX_BYTES)
    inbox.drop(4 * INBOX_BYTES - 1)
    inbox.shrink()
    assert inbox.capacity == 4 * INBOX_BYTES
    inbox.drop(1)
    inbox.shrink()
    assert inbox.capacity == START_BYTES
    assert budget.taken == 0


def test_small_requests_do_not_keep_the_memory_of_a_large_frame(pair: Pair) -> None:
    ours, theirs = pair
    inbox = Inbox(Budget(LIMIT))
    receive(inbox, pair, 4 * INBOX_BYTES, 4 * INBOX_BYTES)
    inbox.drop(4 * INBOX_BYTES)
    inbox.shrink()
    assert inbox.capacity == 4 * INBOX_BYTES
    theirs.sendall(b"ping")
    inbox.fill(ours)
    inbox.drop(4)
    inbox.shrink()
    assert inbox.capacity == START_BYTES


def test_buffer_that_is_used_is_never_replaced(pair: Pair) -> None:
    ours, theirs = pair
    inbox = Inbox(Budget(LIMIT))
    receive(inbox, pair, INBOX_BYTES, INBOX_BYTES)
    inbox.drop(INBOX_BYTES)
    buffer, _ = inbox.front()
    for _ in range(20):
        theirs.sendall(b"x" * 100_000)
        while len(inbox) < 100_000:
            assert inbox.make_room(150_000)
            inbox.fill(ours)
        inbox.drop(100_000)
    assert inbox.front()[0] is buffer


def test_many_small_frames_are_read_by_many_at_a_time(pair: Pair) -> None:
    ours, theirs = pair
    inbox = Inbox(Budget(LIMIT))
    for _ in range(10):
        theirs.sendall(b"x" * 150_000)
        with suppress(BlockingIOError):
            while True:
                inbox.drop(inbox.fill(ours))
    assert inbox.capacity == INBOX_BYTES


def test_one_inbox_at_a_time_overdraws_the_budget(pair: Pair) -> None:
    budget = Budget(2 * INBOX_BYTES)
    size = 8 * INBOX_BYTES
    first, second, third = Inbox(budget), Inbox(budget), Inbox(budget)
    receive(first, pair, size, size)
    assert budget.taken > budget.limit
    for other in (second, third):
        receive(other, pair, INBOX_BYTES, INBOX_BYTES)
        assert not other.make_room(size)
    first.take(0, size)
    assert first.capacity == START_BYTES
    receive(second, pair, size - INBOX_BYTES, size)
    assert not third.make_room(size)
    second.close()
    assert budget.taken == 0
    assert third.make_room(size)


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
        inbox, taken, sent = Inbox(Budget(LIMIT)), [], 0
        for size in frames:
            while len(inbox) < size:
                assert inbox.make_room(size)
                with suppress(BlockingIOError):
                    sent += theirs.send(stream[sent : sent + piece])
                inbox.fill(ours)
            taken.append(inbox.take(0, size))
    assert taken == expected
