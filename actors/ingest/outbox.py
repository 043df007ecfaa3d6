"""Answers of a connection that are not sent yet. Sends without blocking.

`flush` sends in the task that made the answers, which saves a task switch per push (about 15 µs of
the latency of a small one). Only what the socket does not take at once is left to a writer task.
Small answers are joined into one send; a large one is sent as it is, because a copy for every part
that the socket takes would cost more than the sending.

Waiting bytes are counted in the budget of unread answers, which all connections share. After
`close` further answers are dropped: the client is gone and will ask again.
"""

import socket
from typing import Final

import trio

from actors.ingest.window import Budget

LARGE_BYTES: Final = 64 * 1024


class Outbox:
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
