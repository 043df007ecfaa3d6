"""A server that does to each request what the test has told it to, byte by byte.

It knows nothing of h11: requests are taken apart by hand, and answers are the bytes that a test
writes, so that an error in the client's HTTP is not hidden by the same error here.
"""

import ssl
import struct
import termios
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fcntl import ioctl
from socket import SO_LINGER, SOL_SOCKET

import trio

Act = Callable[["Conversation"], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Gone(Exception):
    """The client has closed the connection."""


@dataclass
class Request:
    connection: int
    method: str
    path: str
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes = b""


@dataclass
class Conversation:
    """A request, and the stream that it came on."""

    stream: trio.abc.Stream
    socket: trio.SocketStream
    request: Request
    goes_on: bool = True

    async def say(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def say_and_be_heard(self, data: bytes) -> None:
        """Returns when the data lies before the client: its kernel has acknowledged all of it. It
        looks again and again, because a test's clock may stand still."""
        await self.say(data)
        while struct.unpack("i", ioctl(self.socket.socket.fileno(), termios.TIOCOUTQ, bytes(4)))[0]:
            await trio.lowlevel.checkpoint()

    def reset(self) -> None:
        """Not a polite close: the client sees a connection that was reset."""
        self.socket.socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.socket.close()
        self.goes_on = False

    async def close(self) -> None:
        await trio.aclose_forcefully(self.stream)
        self.goes_on = False


class FaultyServer:
    """`acts` are used up, one a request; then everything is answered with 200."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.acts: deque[Act] = deque()
        self.requests: list[Request] = []
        self.connections = 0
        self.closed = trio.Event()
        """A connection is over."""
        self.reads_bodies = True
        self.resets_new_connections = False
        self.is_silent = False
        """Says nothing at all, not even in TLS."""
        self.accepted = trio.Event()
        self.acting = trio.Event()
        """A request has come, and an act of a test has it."""
        self.port = 0

    def url(self, host: str = "127.0.0.1", path: str = "/hook") -> str:
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}{path}"

    def will(self, *acts: Act) -> None:
        self.acts += acts

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, socket: trio.SocketStream) -> None:
        self.connections += 1
        number = self.connections
        self.accepted.set()
        stream: trio.abc.Stream = socket
        try:
            if self.resets_new_connections:
                Conversation(socket, socket, Request(number, "", "", {})).reset()
                return
            if self.is_silent:
                await trio.sleep_forever()
            if self._tls is not None:
                stream = trio.SSLStream(socket, self._tls, server_side=True, https_compatible=True)
                await stream.do_handshake()
            await self._talk(stream, socket, number)
        except (Gone, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            socket.socket.close()
            self.closed.set()

    async def _talk(self, stream: trio.abc.Stream, socket: trio.SocketStream, number: int) -> None:
        rest = bytearray()
        while True:
            request = await self._read(stream, rest, number)
            self.requests.append(request)
            conversation = Conversation(stream, socket, request)
            if self.acts:
                self.acting.set()
                await self.acts.popleft()(conversation)
            else:
                await stream.send_all(OK)
            if not conversation.goes_on:
                return

    async def _read(self, stream: trio.abc.Stream, rest: bytearray, number: int) -> Request:
        while b"\r\n\r\n" not in rest:
            rest += await _more(stream)
        head, _, body = bytes(rest).partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _version = first.split(" ")
        pairs = [line.split(": ", 1) for line in lines]
        headers = {name.lower(): value for name, value in pairs}
        assert len(headers) == len(pairs), f"a header twice in {lines}"
        request = Request(number, method, path, headers)
        if self.reads_bodies:
            buffer = bytearray(body)
            length = int(headers["content-length"])
            while len(buffer) < length:
                buffer += await _more(stream)
            request.body = bytes(buffer[:length])
            rest[:] = buffer[length:]
        return request


async def _more(stream: trio.abc.Stream) -> bytes:
    data = bytes(await stream.receive_some(65536))
    if not data:
        raise Gone
    return data


@asynccontextmanager
async def faulty_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[FaultyServer]:
    server = FaultyServer(tls)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server
        nursery.cancel_scope.cancel()


# What a server can do to a request.


def answer(status: str, body: bytes = b"", **headers: str) -> Act:
    """A whole answer. A header's name is written with underscores."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    data = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
    return says(data)


def says(data: bytes) -> Act:
    """These bytes, and waits for the next request."""

    async def act(conversation: Conversation) -> None:
        await conversation.say(data)

    return act


def says_and_closes(data: bytes = b"") -> Act:
    async def act(conversation: Conversation) -> None:
        await conversation.say(data)
        await conversation.close()

    return act


def says_and_resets(data: bytes = b"") -> Act:
    async def act(conversation: Conversation) -> None:
        if data:
            await conversation.say_and_be_heard(data)
            # The client reads what was said before the reset takes it away.
            await trio.testing.wait_all_tasks_blocked()
        conversation.reset()

    return act


def says_and_hangs(data: bytes = b"") -> Act:
    async def act(conversation: Conversation) -> None:
        await conversation.say_and_be_heard(data)
        await trio.sleep_forever()

    return act


def streams(head: bytes, block: bytes, sent: list[int]) -> Act:
    """Blocks without end; `sent` says how many bytes of them went out."""

    async def act(conversation: Conversation) -> None:
        await conversation.say(head)
        while True:
            await conversation.say(block)
            sent.append(len(block))

    return act
