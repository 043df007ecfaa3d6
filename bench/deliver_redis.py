"""The peer from end to end: a Redis list, filled by one process and emptied by another.

The consumer takes a batch with a script (LRANGE, then LTRIM), which is the fastest that a list
offers, and less than a queue: no lease, no outcome per item, and a consumer that dies loses its
batch. It keeps the best window, walks over the answer and copies nothing out of it, as
the null handler does. With `appendfsync always` its taking is synced before it is answered, while
forebay's marks of deliveries are synced within a second.
"""

import multiprocessing
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from bench.deliver_books import Delivered, cpu_seconds
from bench.redis_peer import KEY, RedisList

WINDOW: Final = 2
"""Scripts in flight."""
EMPTY_S: Final = 0.0005
"""A consumer that found nothing asks again after that."""
START_S: Final = 60.0
RECEIVE_BYTES: Final = 1024 * 1024

TAKE: Final = b"""\
local taken = redis.call('LRANGE', KEYS[1], 0, ARGV[1] - 1)
if #taken > 0 then redis.call('LTRIM', KEYS[1], #taken, -1) end
return taken"""


@dataclass(frozen=True, slots=True)
class _Done:
    at: float
    """On the clock that all processes share."""


def redis_end_to_end(peer: RedisList, seconds: float, batch: int) -> Delivered:
    """One producer for so many seconds, one consumer until the list is empty. The processor's
    time is the server's alone."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    consumer = context.Process(target=_consume, args=(peer.path, batch, theirs), daemon=True)
    consumer.start()
    try:
        if not ours.poll(START_S):
            raise RuntimeError("the Redis consumer did not start")
        ours.recv()
        cpu_s = cpu_seconds(peer.pid)
        pushed = peer.feed(seconds, batch)
        # Items are made before the clock starts.
        started = time.perf_counter() - pushed.seconds
        ours.send(pushed.items)
        if not ours.poll(START_S):
            raise RuntimeError("the Redis consumer did not come to an end")
        done: _Done = ours.recv()
        return Delivered(pushed.items, done.at - started, cpu_seconds(peer.pid) - cpu_s)
    finally:
        consumer.kill()
        consumer.join()


def _consume(path: Path, batch: int, parent: Connection) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        sock.sendall(command([b"SCRIPT", b"LOAD", TAKE]))
        answers = Answers(sock)
        take = command([b"EVALSHA", answers.text(), b"1", KEY, b"%d" % batch])
        sock.sendall(take * WINDOW)
        parent.send(None)
        taken, wanted = 0, None
        while wanted is None or taken < wanted:
            found = answers.skip_array()
            taken += found
            if not found:
                time.sleep(EMPTY_S)
            if wanted is None and parent.poll():
                wanted = parent.recv()
            sock.sendall(take)
        parent.send(_Done(time.perf_counter()))


class Answers:
    """Answers in RESP as they come out of a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()

    def text(self) -> bytes:
        """A bulk string."""
        length = int(self._line()[1:])
        while len(self._buffer) < length + 2:
            self._receive()
        found = bytes(self._buffer[:length])
        del self._buffer[: length + 2]
        return found

    def skip_array(self) -> int:
        """How many bulk strings an array had."""
        count = left = int(self._line()[1:])
        buffer, at = self._buffer, 0
        while left:
            end = buffer.find(b"\r\n", at)
            after = end + 4 + int(buffer[at + 1 : end]) if end >= 0 else 0
            if end < 0 or after > len(buffer):
                self._receive()
            else:
                at = after
                left -= 1
        del buffer[:at]
        return count

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            self._receive()
        line = bytes(self._buffer[:end])
        if line.startswith(b"-"):
            raise ConnectionError(f"valkey-server says {line!r}")
        del self._buffer[: end + 2]
        return line

    def _receive(self) -> None:
        data = self._sock.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("valkey-server closed the connection")
        self._buffer += data


def command(words: Sequence[bytes]) -> bytes:
    """A command in RESP."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)
