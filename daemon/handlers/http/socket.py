"""A TCP connection that sends a request and receives an answer with one trio step each.

Owns its socket. `send_all` waits only if the socket does not take everything at once;
`receive_some` waits first, since an answer cannot arrive before the request was read. trio's own
streams enter the scheduler after every send, and try to read before they wait: a request and its
answer on one connection cost 43 to 51 µs of processor time, here 38.

Raises the errors of trio's streams. After a cancel it is unknown how much of a request was sent,
and the connection must be closed.
"""

import select
import socket

import trio


class TcpSocket:
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
