"""A small forward proxy on a real socket: CONNECT for https, the absolute form for http.

Like the faulty server it takes requests apart by hand.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import trio


@dataclass
class ProxyServer:
    port: int = 0
    connections: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Method and target of every request."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """By lower-case name, of every request."""
    says: bytes | None = None
    """Instead of doing what it is asked; empty: it closes the connection."""
    is_silent: bool = False
    asking: trio.Event = field(default_factory=trio.Event)
    """A request has come."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        return f"the proxy 127.0.0.1:{self.port}"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, client: trio.SocketStream) -> None:
        self.connections += 1
        rest = bytearray()
        try:
            while await self._serve_one(client, rest):
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            client.socket.close()

    async def _serve_one(self, client: trio.SocketStream, rest: bytearray) -> bool:
        """Serves a request; False if it was the last on its connection."""
        head = await _read_head(client, rest)
        if not head:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        self.asked.append((method, target))
        self.headers.append(headers)
        self.asking.set()
        if self.is_silent:
            await trio.sleep_forever()
        if method == "CONNECT":
            return await self._connect(client, target)
        body = await _read_body(client, rest, int(headers["content-length"]))
        if self.says is not None:
            await client.send_all(self.says)
            return bool(self.says)
        parts = urlsplit(target)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        passed_on = [line for line in lines if not line.lower().startswith("proxy-")]
        request = "\r\n".join([f"{method} {path} HTTP/1.1", *passed_on, "", ""]).encode("latin-1")
        server = await trio.open_tcp_stream(parts.hostname or "", parts.port or 80)
        async with server:
            await server.send_all(request + body)
            answered = bytearray()
            answer = await _read_head(server, answered)
            (length,) = [
                int(line.split(": ")[1])
                for line in answer.decode("latin-1").split("\r\n")
                if line.lower().startswith("content-length: ")
            ]
            said = await _read_body(server, answered, length)
            await client.send_all(answer + b"\r\n\r\n" + said)
        return True

    async def _connect(self, client: trio.SocketStream, target: str) -> bool:
        if self.says is not None:
            await client.send_all(self.says)
            return False
        host, _, port = target.rpartition(":")
        server = await trio.open_tcp_stream(host, int(port))
        async with server, trio.open_nursery() as nursery:
            await client.send_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
            nursery.start_soon(_pass_on, client, server, nursery.cancel_scope)
            nursery.start_soon(_pass_on, server, client, nursery.cancel_scope)
        return False


async def _pass_on(
    source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope
) -> None:
    try:
        async for data in source:
            await sink.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    scope.cancel()


async def _read_head(stream: trio.SocketStream, rest: bytearray) -> bytes:
    """Everything before the empty line; empty if the other side has closed."""
    while b"\r\n\r\n" not in rest:
        data = await stream.receive_some(65536)
        if not data:
            return b""
        rest += data
    head, _, after = bytes(rest).partition(b"\r\n\r\n")
    rest[:] = after
    return head


async def _read_body(stream: trio.SocketStream, rest: bytearray, length: int) -> bytes:
    while len(rest) < length:
        rest += await stream.receive_some(65536)
    body = bytes(rest[:length])
    del rest[:length]
    return body


@asynccontextmanager
async def proxy_server() -> AsyncIterator[ProxyServer]:
    proxy = ProxyServer()
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        yield proxy
        nursery.cancel_scope.cancel()
