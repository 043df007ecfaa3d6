"""One HTTP/1.1 connection over TCP, plain or with TLS.

Owns its socket. After an error, a cancel, or an answer that was not read to its end, the connection
is closed at once and `is_open` is False; closing does not wait for the other side. It has no
deadline; the caller sets one. Requests come as bytes; daemon/handlers/http/reader.py reads the
answers.
"""

import errno
import socket
import ssl
from typing import Final, Protocol

import h11
import trio

from daemon.handlers.http.answer import TEXT_CHARACTERS_MAX, Answer
from daemon.handlers.http.head import Header, RequestHead
from daemon.handlers.http.reader import AnswerReader
from daemon.handlers.http.request import Target
from daemon.handlers.http.socket import TcpSocket

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
        target = self._target
        try:
            stream = await trio.open_tcp_stream(target.host, target.port)
        except (OSError, UnicodeError) as error:
            raise ConnectionFailed(why_not_connected(error, target)) from error
        if self._tls is None:
            self._socket = self._stream = TcpSocket(stream)
        else:
            self._socket = stream
            self._stream = await self._secure(stream, self._tls)

    async def _secure(self, stream: trio.SocketStream, tls: ssl.SSLContext) -> Stream:
        self.doing = "agreeing on TLS"
        host = self._target.host
        secured = trio.SSLStream(stream, tls, server_hostname=host, https_compatible=True)
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError as error:
            self.close()
            raise ConnectionFailed(
                f"no TLS with {self._target.address}: {broken(error)}"
            ) from error
        except BaseException:
            self.close()
            raise
        return secured

    async def exchange(
        self, method: str, path: bytes, headers: list[Header], body: bytes, answer_bytes_max: int
    ) -> Answer:
        """Sends a request and reads the answer, up to its limit."""
        length = (b"Content-Length", b"%d" % len(body))
        shared = [header for header in headers if header[0].lower() != b"content-length"]
        head = RequestHead(method, path, shared)
        return await self.ask(head, head.write([length]) + body, answer_bytes_max)

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
            return ConnectionFailed(f"{self._target.address} {how} in the middle of its answer")
        return LostBeforeAnswer(f"{self._target.address} {how} and gave no answer")

    def _what_is_wrong(self, error: h11.RemoteProtocolError) -> str:
        if self._has_ended:
            return f"{self._target.address} closed the connection in the middle of its answer"
        return f"{self._target.address} does not answer in HTTP: {str(error)[:TEXT_CHARACTERS_MAX]}"


def why_not_connected(error: OSError | UnicodeError, target: Target) -> str:
    """Why a connection failed, in words; of several addresses, the first one's reason."""
    if isinstance(error, socket.gaierror | UnicodeError):
        reason = error.strerror if isinstance(error, OSError) else error
        return f"the name {target.host} cannot be resolved: {reason}"
    cause = error
    if isinstance(error.__cause__, ExceptionGroup):
        cause = next((one for one in error.__cause__.exceptions if isinstance(one, OSError)), error)
    if cause.errno == errno.ECONNREFUSED:
        return f"connection refused by {target.address}"
    return f"no connection to {target.address}: {cause.strerror or cause}"


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
