import socket
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from actors.ingest.buffers import LARGE_BYTES, Outbox
from actors.ingest.window import Budget

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def read_all(sock: socket.socket) -> bytes:
    received = b""
    try:
        while data := sock.recv(1 << 20):
            received += data
    except BlockingIOError:
        pass
    return received


async def test_many_answers_leave_in_one_piece_and_in_order(pair: Pair) -> None:
    ours, theirs = pair
    outbox = Outbox(ours, Budget(1000))
    for word in (b"one ", b"two ", b"three"):
        outbox.put(word)
    assert outbox.waiting_bytes == 13
    assert outbox.flush() is False
    assert outbox.waiting_bytes == 0
    assert theirs.recv(100) == b"one two three"


async def test_what_a_full_socket_does_not_take_waits_and_follows(pair: Pair) -> None:
    ours, theirs = pair
    outbox = Outbox(ours, Budget(1000))
    data = bytes(range(256)) * 8192
    outbox.put(data)
    assert outbox.flush() is True
    outbox.put(b"the end")
    received = read_all(theirs)
    while outbox.flush():
        received += read_all(theirs)
    received += read_all(theirs)
    assert received == data + b"the end"


async def test_time_without_progress_is_counted_from_the_last_progress(
    pair: Pair, mock_clock: MockClock
) -> None:
    ours, theirs = pair
    outbox = Outbox(ours, Budget(1000))
    outbox.put(bytes(4_000_000))
    outbox.flush()
    started = trio.current_time()
    assert outbox.stuck_since == started
    mock_clock.jump(10)
    outbox.flush()
    assert outbox.stuck_since == started
    read_all(theirs)
    outbox.flush()
    assert outbox.stuck_since == started + 10
    while outbox.flush():
        read_all(theirs)
    assert outbox.stuck_since is None


async def test_after_the_end_everything_is_dropped(pair: Pair) -> None:
    ours, theirs = pair
    outbox = Outbox(ours, Budget(1000))
    outbox.put(b"before")
    outbox.close()
    outbox.put(b"after")
    assert outbox.waiting_bytes == 0
    assert outbox.flush() is False
    assert read_all(theirs) == b""


async def test_peer_that_is_gone_is_an_error(pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()
    outbox = Outbox(ours, Budget(1000))
    outbox.put(b"anyone?")
    with pytest.raises(OSError, match="Broken pipe"):
        outbox.flush()


async def test_small_answers_behind_a_large_one_follow_in_order(pair: Pair) -> None:
    ours, theirs = pair
    unread = Budget(1000)
    outbox = Outbox(ours, unread)
    expected = b""
    for answer in (
        b"one ",
        b"two ",
        bytes(4 * LARGE_BYTES),
        b"three ",
        b"four ",
        b"x" * LARGE_BYTES,
    ):
        outbox.put(answer)
        expected += answer
    assert unread.taken == outbox.waiting_bytes == len(expected)
    received = b""
    while outbox.flush():
        received += read_all(theirs)
    assert received + read_all(theirs) == expected
    assert unread.taken == 0


async def test_what_is_dropped_is_not_counted_any_more(pair: Pair) -> None:
    ours, _ = pair
    unread = Budget(1000)
    outbox = Outbox(ours, unread)
    outbox.put(bytes(4_000_000))
    outbox.flush()
    assert 0 < unread.taken == outbox.waiting_bytes
    outbox.close()
    assert unread.taken == 0
