"""What a connection has received and not yet used: one buffer, filled by `recv_into`, reused.

Received bytes are copied once, when a whole frame is taken out. The buffer starts small, grows
to what the frame at its front needs, and `shrink` gives the memory back. No I/O but `fill`, which
never blocks; no knowledge of frames.

Tried and rejected: `recv` into new bytes objects for each read (half the throughput, FACTS.md),
and a ring (a frame over the edge needs a copy to become whole; moving the rest of a frame to the
front costs the same and is simpler).
"""

import socket
from typing import Final

INBOX_BYTES: Final = 256 * 1024


class Inbox:
    __slots__ = ("_buffer", "_end", "_start", "_view")

    def __init__(self) -> None:
        self._allocate(INBOX_BYTES)
        self._start = 0
        self._end = 0

    def __len__(self) -> int:
        """How many bytes wait."""
        return self._end - self._start

    @property
    def capacity(self) -> int:
        return len(self._buffer)

    def fill(self, sock: socket.socket) -> int:
        """One `recv_into` the free part. 0: the end of the stream. BlockingIOError: nothing there.

        The caller has taken all it can, so that what is left is less than a frame that fits.
        """
        if self._end == len(self._buffer):
            self._move_to_front()
        count = sock.recv_into(self._view[self._end :])
        self._end += count
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
        return data

    def drop(self, size: int) -> int:
        """Drops at most `size` bytes; how many there were."""
        dropped = min(size, len(self))
        self._advance(self._start + dropped)
        return dropped

    def make_room(self, size: int) -> None:
        """Makes sure that a frame of `size` bytes can become whole."""
        if self._start + size <= len(self._buffer):
            return
        if size <= len(self._buffer):
            self._move_to_front()
            return
        waiting = self._view[self._start : self._end]
        self._allocate(size)
        self._view[: len(waiting)] = waiting
        self._start, self._end = 0, len(waiting)

    def shrink(self) -> None:
        """Gives memory back, if the buffer is empty and has grown."""
        if len(self._buffer) > INBOX_BYTES and not self:
            self._allocate(INBOX_BYTES)
            self._start = self._end = 0

    def _advance(self, to: int) -> None:
        if to == self._end:
            self._start = self._end = 0
        else:
            self._start = to

    def _move_to_front(self) -> None:
        waiting = len(self)
        self._view[:waiting] = self._view[self._start : self._end]
        self._start, self._end = 0, waiting

    def _allocate(self, size: int) -> None:
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
