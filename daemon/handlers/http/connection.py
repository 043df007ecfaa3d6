"""One HTTP/1.1 connection over TCP, plain or with TLS, straight or through a proxy.

Owns its socket. After an error, a cancel, or an answer that was not read to its end, the connection
is closed at once and `is_open` is False; closing does not wait for the other side. It has no
deadline; the caller sets one. Requests come as bytes; `AnswerReader` reads the answers.
"""

import errno
import select
import socket
import ssl
from typing import Final, Protocol

import h11
import trio

from daemon.handlers.http.answer import TEXT_CHARACTERS_MAX, Answer
from daemon.handlers.http.proxy import Proxy
from daemon.handlers.http.request import Header, RequestHead, Target

PROXY_REFUSES: Final = 407


class TcpSocket:
    """A TCP connection that sends a request and receives an answer with one trio step each.

    Owns its socket. `send_all` waits only if the socket does not take everything at once;
    `receive_some` waits first, since an answer cannot arrive before the request was read. trio's
    own streams enter the scheduler after every send, and try to read before they wait: a request
    and its answer on one connection cost 43 to 51 µs of processor time, here 38.

    Raises the errors of trio's streams. After a cancel it is unknown how much of a request was
    sent, and the connection must be closed.
    """

    __slots__ = ("_poll", "_socket")

    def __init__(self, stream: trio.SocketStream) -> None:
        """Takes over the socket of `stream`."""
        self._socket = socket.socket(fileno=stream.socket.detach())
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    @property
    def has_news(self) -> bool:
        """Whether there is something to read, or the other side has closed."""
        return bool(self._poll.poll(0))

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        sent = self._send(data)
        if sent < len(data):
            with memoryview(data) as view:
                while sent < len(data):
                    await trio.lowlevel.wait_writable(self._socket)
                    sent += self._send(view[sent:])

    async def receive_some(self, bytes_max: int) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv(bytes_max)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error

    def close(self) -> None:
        """Does not wait for the other side."""
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError from error


# Reads the answers of one HTTP/1.1 connection, one after the other. No I/O.
#
# h11 parses the answers; it is told of a request when the first bytes of its answer arrive. A
# destination mostly gives the same answer each time, or the same within a second. If an answer's
# bytes equal an earlier whole answer on this connection, the earlier result is reused without h11.
# With one item per request and 16 workers, a request then costs the daemon 156 µs of processor
# time, and 229 µs if each answer contains a different number or time and is parsed.

HEAD_BYTES_MAX: Final = 64 * 1024
KNOWN_BYTES_MAX: Final = 4 * 1024
"""Longer answers are always parsed."""

_END: Final = h11.EndOfMessage()


class AnswerReader:
    """For each request: `expect`, then `take` bytes until it returns an answer, then `end`."""

    __slots__ = (
        "_asked",
        "_bytes_max",
        "_first",
        "_h11",
        "_head",
        "_known",
        "_meaning",
        "_parts",
        "_pieces",
        "_size",
    )

    def __init__(self) -> None:
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._asked: h11.Request | None = None
        """The request that h11 must be told before it reads; None if it was told."""
        self._bytes_max = 0
        self._head: h11.Response | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._first = b""
        """The first bytes of this answer."""
        self._pieces = 0
        self._known = b""
        """An earlier answer that arrived in one piece; empty if there was none."""
        self._meaning: Answer | None = None
        """The result of parsing it."""

    @property
    def has_begun(self) -> bool:
        """Whether the first byte of the answer has arrived."""
        return bool(self._first)

    @property
    def has_head(self) -> bool:
        return self._head is not None

    def expect(self, head: RequestHead, bytes_max: int) -> None:
        """Expects the answer to a request with `head`, of whose body at most `bytes_max` are
        read."""
        self._asked = head.shared
        self._bytes_max = bytes_max
        self._first = b""

    def take(self, data: bytes) -> Answer | None:
        """Takes more bytes; empty ones mean that the other side has closed. Returns the answer when
        it is complete or its limit is reached. Raises h11.RemoteProtocolError if it is not valid
        HTTP."""
        if self._asked is not None:
            self._first = data
            if data == self._known:
                return self._meaning
            self._begin(self._asked)
        self._pieces += 1
        self._h11.receive_data(data)
        return self._read()

    def end(self, answer: Answer) -> bool:
        """Prepares for the next request; False if one side closes the connection."""
        if answer is self._meaning:
            return True
        connection = self._h11
        if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
            return False
        if any(connection.trailing_data):
            return False
        connection.start_next_cycle()
        if self._pieces == 1 and len(self._first) <= KNOWN_BYTES_MAX:
            self._known, self._meaning = self._first, answer
        return True

    def _begin(self, asked: h11.Request) -> None:
        self._h11.send(asked)
        self._h11.send(_END)
        self._asked = self._head = None
        self._parts = []
        self._size = self._pieces = 0

    def _read(self) -> Answer | None:
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                return None
            if type(event) is h11.Response:
                self._head = event
            elif type(event) is h11.Data:
                self._parts.append(bytes(event.data))
                self._size += len(event.data)
                if self._size > self._bytes_max:
                    return self._answer(is_cut=True)
            elif type(event) is h11.EndOfMessage:
                return self._answer()
            elif type(event) is not h11.InformationalResponse:
                raise h11.RemoteProtocolError("it changed the protocol")

    def _answer(self, *, is_cut: bool = False) -> Answer:
        head = self._head
        assert head is not None, "h11 gives the head before the body"
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        body = b"".join(self._parts)[: self._bytes_max]
        return Answer(head.status_code, headers, body, is_cut)


RECEIVE_BYTES: Final = 64 * 1024
SENT_AT_ONCE_BYTES_MAX: Final = 64 * 1024
"""A longer request is sent while waiting for the answer: a destination may refuse it after its head
and stop reading, and then both sides would wait for each other."""


class ConnectionFailed(Exception):
    """The text says what went wrong, and names the destination."""


class LostBeforeAnswer(ConnectionFailed):
    """Lost before the first byte of the answer; the destination may still have taken the
    request."""


class Stream(Protocol):
    """A socket, or TLS over one; errors are those of trio's streams."""

    async def send_all(self, data: bytes, /) -> None: ...

    async def receive_some(self, bytes_max: int, /) -> bytes | bytearray: ...


class HttpConnection:
    """Connect once, then one exchange after the other while it `is_open`."""

    def __init__(self, target: Target, tls: ssl.SSLContext | None) -> None:
        self._target = target
        self._tls = tls
        self._reader = AnswerReader()
        self._socket: TcpSocket | trio.SocketStream | None = None
        self._stream: Stream | None = None
        self._has_ended = False
        """Whether the other side will send no more."""
        self._send_problem = ""
        self.doing = "connecting"
        """The current step, for the text of a timeout."""

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def is_stale(self) -> bool:
        """Whether the other side sent something or closed while no request was pending."""
        if self._socket is None:
            return True
        # With TLS, a harmless session ticket cannot be told from a close.
        return isinstance(self._socket, TcpSocket) and self._socket.has_news

    async def connect(self) -> None:
        target, proxy = self._target, self._target.proxy
        if proxy is not None:
            self.doing = f"connecting to {proxy.name}"
        peer = target if proxy is None else proxy
        try:
            stream = await trio.open_tcp_stream(peer.host, peer.port)
        except (OSError, UnicodeError) as error:
            text = why_not_connected(error, peer)
            if proxy is not None:
                text = f"the proxy cannot be reached: {text}"
            raise ConnectionFailed(text) from error
        if self._tls is None:
            self._socket = self._stream = TcpSocket(stream)
            return
        self._socket = stream
        try:
            if proxy is not None:
                await self._open_tunnel(stream, proxy)
            self._stream = await self._secure(stream, self._tls)
        except BaseException:
            self.close()
            raise

    async def _open_tunnel(self, stream: trio.SocketStream, proxy: Proxy) -> None:
        """Has the proxy connect this stream to the destination."""
        self.doing = f"waiting for {proxy.name}"
        address = self._target.address
        headers = [(b"Host", address.encode()), *proxy.headers]
        talk = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        request = talk.send(h11.Request(method="CONNECT", target=address, headers=headers))
        try:
            await stream.send_all(request)
            while not isinstance(event := talk.next_event(), h11.Response):
                if event is h11.NEED_DATA:
                    data = await stream.receive_some(RECEIVE_BYTES)
                    if not data:
                        raise ConnectionFailed(f"{proxy.name} closed the connection")
                    talk.receive_data(data)
        except trio.BrokenResourceError as error:
            raise ConnectionFailed(
                f"{proxy.name} broke the connection ({broken(error)})"
            ) from error
        except h11.RemoteProtocolError as error:
            raise ConnectionFailed(not_http(proxy.name, error)) from error
        if not 200 <= event.status_code < 300:
            said = f"{event.status_code} {event.reason.decode('latin-1')}".strip()
            raise ConnectionFailed(f"{proxy.name} does not connect to {address}: {said}")

    async def _secure(self, stream: trio.SocketStream, tls: ssl.SSLContext) -> Stream:
        self.doing = "agreeing on TLS"
        host = self._target.host
        secured = trio.SSLStream(stream, tls, server_hostname=host, https_compatible=True)
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError as error:
            raise ConnectionFailed(
                f"no TLS with {self._target.address}: {broken(error)}"
            ) from error
        return secured

    async def exchange(
        self, method: str, path: bytes, headers: list[Header], body: bytes, answer_bytes_max: int
    ) -> Answer:
        """Sends a request and reads the answer, up to its limit."""
        length = (b"Content-Length", b"%d" % len(body))
        shared = [header for header in headers if header[0].lower() != b"content-length"]
        head = RequestHead(method, path, shared)
        request = head.write([length]) + b"\r\n" + body
        return await self.ask(head, request, answer_bytes_max)

    async def ask(self, head: RequestHead, request: bytes, answer_bytes_max: int) -> Answer:
        """The same for a request that was written with `head`."""
        assert self._stream is not None
        self._reader.expect(head, answer_bytes_max)
        self.doing = "sending the request"
        is_clean = False
        try:
            if len(request) <= SENT_AT_ONCE_BYTES_MAX:
                is_sent = await self._send(self._stream, request)
                answer = await self._receive(self._stream)
            else:
                is_sent, answer = await self._both(self._stream, request)
            is_clean = is_sent and not answer.is_cut and self._reader.end(answer)
        except h11.RemoteProtocolError as error:
            raise ConnectionFailed(self._what_is_wrong(error)) from error
        finally:
            if not is_clean:
                self.close()
        if answer.status == PROXY_REFUSES and self._target.asked_proxy is not None:
            self.close()
            text = f"{self._peer} refused the request: 407 Proxy Authentication Required"
            raise ConnectionFailed(text)
        return answer

    def close(self) -> None:
        """Closes the socket without a TLS close, and without waiting."""
        if isinstance(self._socket, TcpSocket):
            self._socket.close()
        elif self._socket is not None:
            self._socket.socket.close()
        self._socket = self._stream = None

    async def _both(self, stream: Stream, request: bytes) -> tuple[bool, Answer]:
        """Sends and receives at the same time. Sending stops when the answer is complete."""
        is_sent = False
        found: Answer | ConnectionFailed | h11.RemoteProtocolError

        async def send() -> None:
            nonlocal is_sent
            is_sent = await self._send(stream, request)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            try:
                found = await self._receive(stream)
            except (ConnectionFailed, h11.RemoteProtocolError) as problem:
                # Raised here, it would arrive wrapped in an exception group.
                found = problem
            nursery.cancel_scope.cancel()
        if isinstance(found, Exception):
            raise found
        return is_sent, found

    async def _send(self, stream: Stream, request: bytes) -> bool:
        try:
            await stream.send_all(request)
        except trio.BrokenResourceError as error:
            # The request may have been refused before its end: then there is an answer to read.
            self._send_problem = broken(error)
            return False
        self.doing = "waiting for the answer"
        return True

    async def _receive(self, stream: Stream) -> Answer:
        reader = self._reader
        while (answer := reader.take(await self._receive_some(stream))) is None:
            if reader.has_head:
                self.doing = "reading the answer"
        return answer

    async def _receive_some(self, stream: Stream) -> bytes:
        try:
            data = bytes(await stream.receive_some(RECEIVE_BYTES))
        except trio.BrokenResourceError as error:
            raise self._lost(f"broke the connection ({broken(error)})") from error
        if not data:
            if not self._reader.has_begun:
                problem = self._send_problem
                raise self._lost(
                    f"broke the connection ({problem})" if problem else "closed the connection"
                )
            self._has_ended = True
        return data

    def _lost(self, how: str) -> ConnectionFailed:
        if self._reader.has_begun:
            return ConnectionFailed(f"{self._peer} {how} in the middle of its answer")
        return LostBeforeAnswer(f"{self._peer} {how} and gave no answer")

    def _what_is_wrong(self, error: h11.RemoteProtocolError) -> str:
        if self._has_ended:
            return f"{self._peer} closed the connection in the middle of its answer"
        return not_http(self._peer, error)

    @property
    def _peer(self) -> str:
        """The server that is sent requests, for messages."""
        proxy = self._target.asked_proxy
        return self._target.address if proxy is None else proxy.name


def not_http(name: str, error: h11.RemoteProtocolError) -> str:
    return f"{name} does not answer in HTTP: {str(error)[:TEXT_CHARACTERS_MAX]}"


def why_not_connected(error: OSError | UnicodeError, peer: Target | Proxy) -> str:
    """Why a connection failed, in words; of several addresses, the first one's reason."""
    if isinstance(error, socket.gaierror | UnicodeError):
        reason = error.strerror if isinstance(error, OSError) else error
        return f"the name {peer.host} cannot be resolved: {reason}"
    cause = error
    if isinstance(error.__cause__, ExceptionGroup):
        cause = next((one for one in error.__cause__.exceptions if isinstance(one, OSError)), error)
    if cause.errno == errno.ECONNREFUSED:
        return f"connection refused by {peer.address}"
    return f"no connection to {peer.address}: {cause.strerror or cause}"


def broken(error: trio.BrokenResourceError) -> str:
    """Why a stream is broken, in words."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return (cause.reason or "it went wrong").replace("_", " ").lower()
    if isinstance(cause, OSError):
        return (cause.strerror or str(cause)).lower()
    return str(cause or error)
