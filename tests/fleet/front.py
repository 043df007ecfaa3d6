"""A socket in front of a server's: what passes through it can be refused, hang, or be cut.

Each daemon has its own for each server, so that one of them can lose a server that the others
still have. Bytes are passed on as they come, nothing of them is understood.
"""

import selectors
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 1 << 18


class Front:
    """Listens at `path`, and passes on to `upstream`, which need not be there yet."""

    def __init__(self, path: Path, upstream: Path) -> None:
        self.path = path
        self._upstream = upstream
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._flows = threading.Event()
        self._flows.set()
        self._is_refused = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        path.chmod(0o777)
        self._listener.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Ends every connection; new ones are taken."""
        with self._lock:
            for pair in self._pairs:
                _end(pair)

    def refuse(self) -> None:
        """Ends every connection, and each new one at once."""
        self._is_refused = True
        self.cut()

    def hang(self) -> None:
        """Nothing passes any more, in neither direction, and nothing is closed."""
        self._flows.clear()

    def restore(self) -> None:
        """Everything passes again; what was held back comes late."""
        self._is_refused = False
        self._flows.set()

    def close(self) -> None:
        self.refuse()
        self._flows.set()
        _end((self._listener,))
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._is_refused:
                    near.close()
                    continue
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far:
            pair = near, far
            with self._lock:
                self._pairs.add(pair)
            try:
                with suppress(OSError):
                    far.connect(str(self._upstream))
                    self._pump(near, far)
            finally:
                with self._lock:
                    self._pairs.remove(pair)

    def _pump(self, near: socket.socket, far: socket.socket) -> None:
        """Until one side ends."""
        with selectors.DefaultSelector() as ready:
            ready.register(near, selectors.EVENT_READ, far)
            ready.register(far, selectors.EVENT_READ, near)
            while True:
                for key, _ in ready.select():
                    source, target = key.fileobj, key.data
                    assert isinstance(source, socket.socket)
                    data = source.recv(CHUNK_BYTES)
                    self._flows.wait()
                    if not data:
                        return
                    target.sendall(data)


def _end(sockets: tuple[socket.socket, ...]) -> None:
    for end in sockets:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
