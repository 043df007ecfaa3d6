"""The producer's end of the ceiling: frames out, acknowledgements counted, nothing kept."""

import socket
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from forebay import wire
from forebay.link import SEND_BUFFER_BYTES
from forebay.wire import Kind, Outcome

ACK_BYTES: Final = len(wire.ack(1, Outcome.STORED))


class BareClient:
    """Looks like the client's `submit` and `drain`, and blocks in both."""

    def __init__(self, path: Path) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._sock.connect(str(path))
        self._sequence = 0
        self._ack_bytes = 0

    def submit(self, run: bytes, *, window: int) -> None:
        while self._sequence - self._ack_bytes // ACK_BYTES >= window:
            self._receive()
        self._sequence += 1
        head = wire.frame_head(Kind.PUSH, self._sequence, len(run))
        sent = self._sock.sendmsg([head, run])
        if sent < len(head) + len(run):
            self._sock.sendall((head + run)[sent:])

    def drain(self) -> None:
        while self._ack_bytes < self._sequence * ACK_BYTES:
            self._receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sock.close()

    def _receive(self) -> None:
        data = self._sock.recv(65536)
        if not data:
            raise ConnectionError("the bare server closed the connection")
        self._ack_bytes += len(data)
