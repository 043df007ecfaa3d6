"""The destination of the http rows: nginx has no counters, so it is a small server in C.

bench/http_sink.c is compiled with `cc` when it is first needed, into ./.bench, and removed with
it. Without a compiler a server in Python replaces it, which is far slower than what it should
measure: the rows say so.
"""

import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Final, Self

SOURCE: Final = Path(__file__).with_name("http_sink.c")
CFLAGS: Final = ("-O2", "-D_GNU_SOURCE", "-pthread")
HOST: Final = "127.0.0.1"
TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Counters:
    requests: int
    items: int
    bytes: int
    """Of the bodies."""

    def since(self, before: "Counters") -> "Counters":
        return Counters(
            self.requests - before.requests, self.items - before.items, self.bytes - before.bytes
        )


class Sink:
    """Started as a context manager, or by `start`; `start` after `stop` takes the same port."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc")
        self.name = "C server" if compiler else "Python server: no C compiler here"
        self._command = [sys.executable, "-m", "bench.deliver_sink"]
        if compiler is not None:
            program = directory / "http_sink"
            subprocess.run([compiler, *CFLAGS, "-o", program, SOURCE], check=True)
            self._command = [str(program)]
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/items"

    def start(self) -> Self:
        self._process = subprocess.Popen(
            [*self._command, str(self.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the http sink did not start")
        self.port = int(line)
        return self

    def stop(self) -> None:
        """Frees the port: connections are refused. The counters are lost."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def counters(self) -> Counters:
        with socket.create_connection((HOST, self.port), TIMEOUT_S) as sock:
            sock.sendall(b"GET /counters HTTP/1.1\r\nHost: sink\r\nConnection: close\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += sock.recv(4096)
        return Counters(**json.loads(answer.partition(b"\r\n\r\n")[2]))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def bare_posts(port: int, connections: int, body_bytes: int, requests: int) -> None:
    """Ready-made requests, one in flight on each connection, from one thread that does nothing
    else: what the sink, the sockets and a Python loop allow."""
    request = (
        b"POST /items HTTP/1.1\r\nHost: sink\r\nContent-Type: application/x-ndjson\r\n"
        b"Content-Length: %d\r\n\r\n" % body_bytes
    ) + bytes(body_bytes)
    with ExitStack() as stack:
        socks = [
            stack.enter_context(socket.create_connection((HOST, port), TIMEOUT_S))
            for _ in range(connections)
        ]
        for sock in socks:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(0, requests, connections):
            _exchange(socks, request)


def _exchange(socks: Sequence[socket.socket], request: bytes) -> None:
    for sock in socks:
        sock.sendall(request)
    for sock in socks:
        answer = sock.recv(4096)
        while not answer.endswith(b"\r\n\r\n"):
            more = sock.recv(4096)
            if not more:
                raise ConnectionError("the sink closed the connection")
            answer += more


class _Handler(BaseHTTPRequestHandler):
    """The stand-in: bodies by Content-Length only, which is how the handler sends them."""

    protocol_version = "HTTP/1.1"
    lock = threading.Lock()
    counts: Final = dict.fromkeys(("requests", "items", "bytes"), 0)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.lock:
            self.counts["requests"] += 1
            self.counts["items"] += body.count(b"\n") + (body[-1:] not in (b"", b"\n"))
            self.counts["bytes"] += len(body)
        self._answer(b"")

    def do_GET(self) -> None:
        with self.lock:
            answer = json.dumps(self.counts).encode()
        self._answer(answer)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: bytes) -> None:
        self.send_response_only(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(port: int) -> None:
    ThreadingHTTPServer.allow_reuse_address = True
    server = ThreadingHTTPServer((HOST, port), _Handler)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
