"""One connection to a daemon: frames out, frames in. It does not retry: the exchange does.

The socket never blocks. Sending waits for both directions, so that answers are read while a large
run goes out, and neither end waits for the other. When a write fails, answers and the daemon's last
error may still be unread: `receive` returns them before it raises Lost.
"""

import errno
import os
import select
import socket
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final

import forebay.wire as wire
from forebay.errors import BadFrame, Unreachable
from forebay.limits import ANSWER_BYTES_MAX, FRAME_HEAD_BYTES
from forebay.wire import Buffer, Kind

SEND_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""Worth 16 to 33 % of the throughput; the kernel takes as much of it as it allows."""
RECEIVE_BYTES: Final = 64 * 1024

Frame = tuple[Kind, int, bytes]


class Lost(Exception):
    """The connection has ended or was never made; a new one may succeed."""


class Cut(Lost):
    """A process listens, but sent no WELCOME: the daemon ended first, or has not started yet and
    its backlog is full."""


class NotAllowed(Unreachable):
    """The socket cannot be used; a retry will not help."""


class Link:
    __slots__ = ("_both", "_early", "_in", "_inbox", "_is_ended", "_sock", "path", "welcome")

    def __init__(self, path: Path, client: str, deadline: float) -> None:
        """Connects and sends HELLO. Raises Lost (Cut once connected), NotAllowed, or Refused if the
        daemon refuses."""
        self.path = path
        self._sock = _connect(path)
        self._inbox = bytearray()
        self._early: list[Frame] = []
        """Frames that came together with WELCOME."""
        self._is_ended = False
        self._in = select.poll()
        self._in.register(self._sock, select.POLLIN)
        self._both = select.poll()
        self._both.register(self._sock, select.POLLIN | select.POLLOUT)
        try:
            self.welcome = self._greet(client, deadline)
        except Lost as lost:
            self._sock.close()
            raise Cut(str(lost)) from lost
        except BaseException:
            self._sock.close()
            raise

    def send(self, parts: list[Buffer], deadline: float) -> None:
        """Sends all parts, or raises Lost. Frames that arrive meanwhile are kept for `receive`."""
        total = sum(map(len, parts))
        while True:
            try:
                sent = self._sock.sendmsg(parts)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise Lost(f"the connection to {self.path} broke: {error.strerror}") from error
            if sent == total:
                return
            total -= sent
            parts = _after(parts, sent)
            self._wait_to_send(deadline)

    def receive(self, timeout: float) -> list[Frame]:
        """All complete frames, after waiting for at least one; empty at the timeout."""
        deadline = monotonic() + timeout
        while True:
            frames = self._early + self._whole_frames()
            if frames:
                self._early = []
                return frames
            if self._is_ended:
                raise Lost(f"the daemon at {self.path} closed the connection")
            if not self._in.poll(_milliseconds(deadline)):
                return []
            self._take_in()

    def close(self) -> None:
        self._sock.close()

    def _greet(self, client: str, deadline: float) -> dict[str, Any]:
        # A daemon that denies access closes before it reads; `receive` finds its answer.
        with suppress(Lost):
            self.send([wire.hello(client)], deadline)
        frames = self.receive(deadline - monotonic())
        if not frames:
            raise Lost(f"the daemon at {self.path} did not answer a HELLO")
        (kind, _, body), *self._early = frames
        if kind is Kind.ERROR:
            raise wire.read_error(body)
        if kind is not Kind.WELCOME:
            raise BadFrame(f"a HELLO is answered by {kind.name}")
        return wire.read_json(body)

    def _wait_to_send(self, deadline: float) -> None:
        events = self._both.poll(_milliseconds(deadline))
        if not events:
            raise Lost(f"the daemon at {self.path} takes no more bytes")
        for _, event in events:
            if event & select.POLLIN:
                self._take_in()

    def _take_in(self) -> None:
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._inbox += data
        else:
            self._is_ended = True

    def _whole_frames(self) -> list[Frame]:
        inbox = self._inbox
        frames: list[Frame] = []
        at = 0
        while len(inbox) - at >= FRAME_HEAD_BYTES:
            kind, sequence, body_bytes = wire.read_frame_head(inbox, at)
            if body_bytes > ANSWER_BYTES_MAX:
                raise BadFrame(f"a {kind.name} of {body_bytes} bytes")
            end = at + FRAME_HEAD_BYTES + body_bytes
            if end > len(inbox):
                break
            frames.append((kind, sequence, bytes(inbox[at + FRAME_HEAD_BYTES : end])))
            at = end
        if at:
            del inbox[:at]
        return frames


def _connect(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.setblocking(False)
        sock.connect(os.fspath(path))
    except OSError as error:
        sock.close()
        match error.errno:
            case errno.ENOENT:
                raise Lost(f"{path}: there is no such socket") from error
            case errno.ECONNREFUSED:
                raise Lost(f"{path}: no process listens on it") from error
            case errno.EAGAIN:
                raise Cut(f"{path}: the daemon does not accept connections fast enough") from error
            case errno.EACCES | errno.EPERM:
                raise NotAllowed(
                    f"{path}: permission denied for user {os.getuid()}: "
                    "see the mode and group of the socket and its directories"
                ) from error
            case _:
                # The socket module says "AF_UNIX path too long" without a number.
                raise NotAllowed(f"{path}: {error.strerror or error}") from error
    return sock


def _after(parts: list[Buffer], sent: int) -> list[Buffer]:
    """The rest of `parts` after their first `sent` bytes."""
    rest: list[Buffer] = []
    for part in parts:
        if sent >= len(part):
            sent -= len(part)
        else:
            rest.append(memoryview(part)[sent:])
            sent = 0
    return rest


def _milliseconds(deadline: float) -> int:
    """The time until the deadline, for poll; rounded up, so that poll does not return early."""
    return max(0, int((deadline - monotonic()) * 1000) + 1)
