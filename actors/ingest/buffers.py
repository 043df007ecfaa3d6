"""Received bytes of a connection that are not used yet: one reused buffer, filled by `recv_into`.

Received bytes are copied once, when a whole frame is taken out. The buffer starts small and doubles
whenever it is full, so that it follows what has arrived and never what a frame announces: the first
frame of 4 MiB is copied once more while the buffer grows, the next one is not. Memory beyond
INBOX_BYTES comes from the budget that all connections share; `make_room` says when there is none.
`shrink` gives memory back. No I/O except `fill`, which never blocks; no knowledge of frames.

Tried and rejected: `recv` into a new bytes object per read (half the throughput, FACTS.md), and a
ring (a frame across the edge needs a copy to become whole; moving the rest of a frame to the front
costs the same and is simpler).
"""

import socket
from typing import Final

import trio

from actors.ingest.window import Budget

LARGE_BYTES: Final = 64 * 1024


class Outbox:
    """Answers of a connection that are not sent yet. Sends without blocking.

    `flush` sends in the task that made the answers, which saves a task switch per push (about 15 µs
    of the latency of a small one). Only what the socket does not take at once is left to a writer
    task. Small answers are joined into one send; a large one is sent as it is, because a copy for
    every part that the socket takes would cost more than the sending.

    Waiting bytes are counted in the budget of unread answers, which all connections share. After
    `close` further answers are dropped: the client is gone and will ask again.
    """

    __slots__ = ("_parts", "_sock", "_unread", "is_closed", "stuck_since", "waiting_bytes")

    def __init__(self, sock: socket.socket, unread: Budget) -> None:
        self._sock = sock
        self._unread = unread
        self._parts: list[bytes | memoryview] = []
        self.waiting_bytes = 0
        self.stuck_since: float | None = None
        """Since when the full socket has taken nothing."""
        self.is_closed = False

    def put(self, data: bytes) -> None:
        if not self.is_closed:
            self._parts.append(data)
            self._count(len(data))

    def flush(self) -> bool:
        """Sends what the socket takes; True: some bytes wait for the socket.

        Raises OSError when the peer is gone.
        """
        took_some = False
        while self._parts:
            if len(self._parts) > 1:
                self._join()
            data = self._parts[0]
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                if took_some or self.stuck_since is None:
                    self.stuck_since = trio.current_time()
                return True
            took_some = True
            self._count(-sent)
            if sent < len(data):
                self._parts[0] = memoryview(data)[sent:]
            else:
                del self._parts[0]
        self.stuck_since = None
        return False

    def close(self) -> None:
        self.is_closed = True
        self._parts = []
        self._count(-self.waiting_bytes)
        self.stuck_since = None

    def _join(self) -> None:
        """Joins the small parts at the front into one."""
        count = len(self._parts)
        if self.waiting_bytes >= LARGE_BYTES:
            is_large = (index for index, part in enumerate(self._parts) if len(part) >= LARGE_BYTES)
            count = next(is_large, count)
        if count > 1:
            self._parts[:count] = [b"".join(self._parts[:count])]

    def _count(self, size: int) -> None:
        self.waiting_bytes += size
        self._unread.taken += size


START_BYTES: Final = 16 * 1024
"""Memory of an idle connection."""
INBOX_BYTES: Final = 256 * 1024
"""Memory that each connection may use freely: frames up to this size never wait for others."""


class Inbox:
    __slots__ = ("_budget", "_buffer", "_end", "_is_full", "_peak", "_start", "_view")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._buffer = bytearray()
        self._start = 0
        self._end = 0
        self._is_full = False
        """The last read filled the buffer: more may wait."""
        self._replace(START_BYTES)
        self._peak = 0
        """The largest part of the buffer that was used since the last `shrink`."""

    def __len__(self) -> int:
        """How many bytes wait."""
        return self._end - self._start

    @property
    def capacity(self) -> int:
        return len(self._buffer)

    @property
    def shared_bytes(self) -> int:
        """Its share of the budget."""
        return max(0, len(self._buffer) - INBOX_BYTES)

    def fill(self, sock: socket.socket) -> int:
        """One `recv_into` the free part. 0: the end of the stream. BlockingIOError: nothing there.

        The caller must have taken all whole frames, and made room if a frame is not whole yet.
        """
        if self._is_full and len(self._buffer) < INBOX_BYTES:
            # More arrives at a time than expected: fewer, larger reads are cheaper.
            self._resize(min(2 * len(self._buffer), INBOX_BYTES))
        elif self._end == len(self._buffer):
            self._move_to_front()
        count = sock.recv_into(self._view[self._end :])
        self._end += count
        self._peak = max(self._peak, self._end)
        self._is_full = self._end == len(self._buffer)
        return count

    def front(self) -> tuple[bytearray, int]:
        """The buffer and where the waiting bytes begin in it; valid until the next call."""
        return self._buffer, self._start

    def take(self, skip: int, size: int) -> bytes:
        """Drops `skip` bytes and takes out the `size` bytes after them."""
        start = self._start + skip
        end = start + size
        data = bytes(self._view[start:end])
        self._advance(end)
        if len(self._buffer) > INBOX_BYTES:
            self._budget.leave(self)
            if self._budget.taken > self._budget.limit:
                self._resize(max(START_BYTES, len(self)))
        return data

    def drop(self, size: int) -> int:
        """Drops at most `size` bytes; returns how many there were."""
        dropped = min(size, len(self))
        self._advance(self._start + dropped)
        return dropped

    def make_room(self, size: int) -> bool:
        """Makes room for more of a frame of `size` bytes; False: the budget is exhausted."""
        capacity = len(self._buffer)
        if self._start + size <= capacity:
            return True
        if self._start:
            self._move_to_front()
        if self._end < capacity:
            return True
        grown = min(size, 2 * capacity)
        if grown > INBOX_BYTES and not self._budget.allows(self, grown - capacity):
            return False
        self._resize(grown)
        return True

    def shrink(self) -> None:
        """Gives back memory that was not used since the last call, if nothing waits."""
        used, self._peak = max(START_BYTES, self._peak), 0
        if not self and len(self._buffer) > 2 * used:
            self._replace(used)

    def close(self) -> None:
        """The connection has ended."""
        self._replace(0)
        self._budget.leave(self)

    def _advance(self, to: int) -> None:
        if to == self._end:
            self._start = self._end = 0
        else:
            self._start = to

    def _move_to_front(self) -> None:
        waiting = len(self)
        self._view[:waiting] = self._view[self._start : self._end]
        self._start, self._end = 0, waiting

    def _resize(self, size: int) -> None:
        """Moves the waiting bytes to another buffer."""
        waiting = self._view[self._start : self._end]
        self._replace(size)
        self._view[: len(waiting)] = waiting
        self._end = len(waiting)

    def _replace(self, size: int) -> None:
        """Replaces the buffer by an empty one."""
        self._budget.taken -= self.shared_bytes
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self._budget.taken += self.shared_bytes
        self._start = self._end = 0
        self._is_full = False
