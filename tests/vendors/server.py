"""An HTTP server for vendors (tests/vendors/apis.py), in a thread of its own: a daemon that is
killed leaves it running.

Requests are taken apart by hand, and one event loop serves all connections. HTTP/1.1 with
Content-Length only, which is what forebay sends.
"""

import asyncio
import threading
from collections.abc import Iterable
from typing import Final, Self
from urllib.parse import unquote

from tests.vendors.base import Hang, Reply, Request, Reset, Vendor

REASONS: Final = {200: b"OK", 201: b"Created", 202: b"Accepted", 207: b"Multi-Status"}


class VendorServer:
    """Serves each vendor under its prefix. Use it in a `with` statement."""

    def __init__(self, *vendors: Vendor) -> None:
        self._vendors = sorted(vendors, key=lambda vendor: len(vendor.prefix), reverse=True)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._connections: set[_Connection] = set()
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def answer(self, request: Request) -> Reply | Hang | Reset:
        for vendor in self._vendors:
            if request.path.startswith(vendor.prefix):
                return vendor.answer(request)
        return Reply(404, {"message": f"nothing at {request.path}"})

    def _run(self) -> None:
        serving = self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        server = self._loop.run_until_complete(serving)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for connection in self._connections:
            connection.transport.abort()
        # Lets aborted transports close their sockets.
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.run_until_complete(server.wait_closed())
        self._loop.close()

    def opened(self, connection: "_Connection") -> None:
        self._connections.add(connection)

    def closed(self, connection: "_Connection") -> None:
        self._connections.discard(connection)


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, server: VendorServer) -> None:
        self._server = server
        self._read = bytearray()
        self._hangs = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._server.opened(self)

    def connection_lost(self, _error: Exception | None) -> None:
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        self._read += data
        while not self._hangs and (request := self._next()) is not None:
            match self._server.answer(request):
                case Reply() as reply:
                    self.transport.write(to_bytes(reply))
                case Hang():
                    self._hangs = True
                case Reset():
                    self.transport.abort()
                    return

    def _next(self) -> Request | None:
        """The next whole request; None if it has not arrived yet."""
        end = self._read.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = self._read[:end].decode("latin-1").split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        headers = {name.lower(): value for name, _, value in pairs}
        size = int(headers.get("content-length", 0))
        start = end + 4
        if len(self._read) < start + size:
            return None
        body = bytes(self._read[start : start + size])
        del self._read[: start + size]
        method, target, _ = first.split(" ")
        path, _, query = target.partition("?")
        return Request(method, unquote(path), query, headers, body)


def to_bytes(reply: Reply) -> bytes:
    body = reply.encoded()
    headers = {"Content-Type": "application/json", **reply.headers}
    headers["Content-Length"] = str(len(body))
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (
        reply.status,
        REASONS.get(reply.status, b"Refused"),
        _lines(headers.items()),
        body,
    )


def _lines(headers: Iterable[tuple[str, str]]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1")
