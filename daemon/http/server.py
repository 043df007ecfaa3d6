"""The HTTP server: accepts connections, bounds their cost, and closes them.

hypercorn speaks HTTP. Connections are accepted here, because their cost must be bounded: there are
at most `max_connections`, a client that does not read its answer within `timeout` is cut off, and
an error in a connection ends that connection and not the daemon.

`close` accepts no more connections, lets requests finish for two seconds, and cuts off the rest.
Streams must end before that, on the doors's `stopping`.
"""

import socket
from contextlib import suppress
from typing import Any, Final

import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app

from actors.config.settings import HttpSettings
from daemon.http.guard import App

log = structlog.get_logger()

GRACE_S: Final = 2.0
BUSY_S: Final = 1.0
BUSY: Final = (
    b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)
IDLE_S: Final = 15.0
"""How long the head of a request may take, and the pause between two requests."""


class HttpServer:
    def __init__(self, settings: HttpSettings, sock: socket.socket, app: App) -> None:
        self._settings = settings
        self._sock = sock
        self._app = wrap_app(app, settings.request_bytes_max, "asgi")  # type: ignore[arg-type]
        self._config = hypercorn_config()
        self._context = WorkerContext(None)
        self._accepting = trio.CancelScope()
        self._streams: set[trio.SocketStream] = set()
        self._is_closing = False
        self._empty = trio.Event()
        self._ended = trio.Event()
        self.refused_total = 0
        """How many connections were refused because there were too many."""

    @property
    def connections(self) -> int:
        return len(self._streams)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until `close`."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._sock.dup()))
        try:
            async with listener, trio.open_nursery() as connections:
                task_status.started()
                with self._accepting:
                    await trio.serve_listeners(
                        self._connection, [listener], handler_nursery=connections
                    )
                await self._end(connections.cancel_scope)
        finally:
            self._ended.set()

    async def close(self) -> None:
        """Returns when all connections have ended."""
        self._is_closing = True
        # This ends idle connections at once.
        await self._context.terminated.set()
        self._accepting.cancel()
        await self._ended.wait()

    async def _end(self, scope: trio.CancelScope) -> None:
        if self._streams:
            with trio.move_on_after(GRACE_S):
                await self._empty.wait()
        # hypercorn shields a send: only closing its socket ends it.
        for stream in list(self._streams):
            await trio.aclose_forcefully(stream)
        scope.cancel()

    async def _connection(self, stream: trio.SocketStream) -> None:
        if len(self._streams) >= self._settings.max_connections:
            self.refused_total += 1
            await _say_busy(stream)
            return
        self._streams.add(stream)
        patient = PatientStream(stream, self._settings.timeout)
        try:
            with patient.scope:
                await TCPServer(
                    self._app,
                    self._config,
                    self._context,
                    ConnectionState({}),
                    patient,  # type: ignore[arg-type]
                ).run()
        except* Exception:
            log.exception("http.connection_failed")
        finally:
            self._streams.discard(stream)
            if self._is_closing and not self._streams:
                self._empty.set()


async def _say_busy(stream: trio.SocketStream) -> None:
    with trio.move_on_after(BUSY_S), suppress(trio.BrokenResourceError):
        await stream.send_all(BUSY)
    await trio.aclose_forcefully(stream)


class PatientStream:
    """A connection that is cut off, with all work for it, if its client does not read."""

    def __init__(self, stream: trio.SocketStream, seconds: float) -> None:
        self._stream = stream
        self._seconds = seconds
        self.scope = trio.CancelScope()
        self.socket = stream.socket

    async def send_all(self, data: bytes) -> None:
        with trio.move_on_after(self._seconds) as scope:
            await self._stream.send_all(data)
        if scope.cancelled_caught:
            self.scope.cancel()
            await trio.aclose_forcefully(self._stream)
            raise trio.BrokenResourceError("the client does not read")

    async def receive_some(self, bytes_max: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(bytes_max)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Quiet:
    """Silences hypercorn's log: requests are counted and failures logged elsewhere."""

    def __init__(self, config: Config) -> None:
        pass

    async def access(self, *_: Any) -> None: ...

    async def info(self, *_: Any) -> None: ...

    async def warning(self, message: str, *_: Any) -> None:
        log.debug("http.hypercorn", message=message)

    async def exception(self, message: str, *_: Any) -> None:
        log.exception("http.connection_failed", message=message)


def hypercorn_config() -> Config:
    config = Config()
    config.logger_class = _Quiet  # type: ignore[assignment]
    config.include_server_header = False
    config.keep_alive_timeout = IDLE_S
    config.graceful_timeout = GRACE_S
    return config
