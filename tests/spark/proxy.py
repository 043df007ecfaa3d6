"""A socket between Spark and the daemon that does something at a chosen frame.

It passes whole frames on, in both directions. Before it passes on a STAGE, a `write.publish` or
the answer to one, it asks the test, which may do something terrible meanwhile, and says whether
the frame is passed on. If not, the connection ends there, as it does when a process dies.
"""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from forebay.wire import Kind

HEAD = struct.Struct("<IBBHI")

Moment = Literal["stage", "publish", "published"]
"""A STAGE, a request to publish, an answer to one."""
Decide = Callable[[Moment], bool]


class Proxy:
    """Listens at `path`, and passes on to `upstream`. A context manager."""

    def __init__(self, path: Path, upstream: Path, decide: Decide) -> None:
        self.path = path
        self._upstream = upstream
        self._decide = decide
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every connection, and takes no more."""
        self.path.unlink(missing_ok=True)
        _end(self._listener)
        self._listener.close()
        for end in list(self._open):
            _end(end)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(near,), daemon=True)
                thread.start()
                self._threads.append(thread)

    def _serve(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far:
            self._open += [near, far]
            with suppress(OSError):
                far.connect(str(self._upstream))
                asked: set[int] = set()
                answers = (far, near, asked, False)
                back = threading.Thread(target=self._pump, args=answers, daemon=True)
                back.start()
                self._pump(near, far, asked, True)
                back.join()

    def _pump(
        self, source: socket.socket, sink: socket.socket, asked: set[int], is_request: bool
    ) -> None:
        try:
            while True:
                head = _read(source, HEAD.size)
                body_bytes, kind, _, _, sequence = HEAD.unpack(head)
                body = _read(source, body_bytes)
                moment = _moment(kind, body, sequence, asked, is_request)
                if moment is not None:
                    with self._one_at_a_time:
                        is_passed_on = self._decide(moment)
                    if not is_passed_on:
                        return
                sink.sendall(head + body)
        except OSError:
            return
        finally:
            _end(source)
            _end(sink)


def _moment(
    kind: int, body: bytes, sequence: int, asked: set[int], is_request: bool
) -> Moment | None:
    if is_request and kind == Kind.STAGE:
        return "stage"
    if is_request and kind == Kind.CONTROL and b'"write.publish"' in body:
        asked.add(sequence)
        return "publish"
    return "published" if not is_request and sequence in asked else None


def _read(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = source.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionError("the end")
        data += part
    return data


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
