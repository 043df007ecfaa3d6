"""A daemon that keeps nothing: the limit of the Spark sink, whatever stands behind the socket.

Speaks as much of docs/protocol.md as a write needs: it acknowledges every STAGE at once and throws
it away, and publishes what it does not have. A thread for each connection, in a process of its own.
"""

import json
import multiprocessing
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

from forebay import wire
from forebay.limits import FRAME_HEAD_BYTES
from forebay.wire import Kind, Outcome

START_S: Final = 60.0
BUFFER_BYTES: Final = 8 * 1024 * 1024
WELCOME: Final = {
    "version": 1,
    "daemon": "discarding",
    "max_run_bytes": 4 * 1024 * 1024,
    "window_bytes": 16 * 1024 * 1024,
    "window_frames": 1024,
    "idle_timeout_ms": 0,
}


@contextmanager
def discarding_daemon(path: Path) -> Iterator[Path]:
    context = multiprocessing.get_context("spawn")
    listening = context.Event()
    process = context.Process(target=_run, args=(path, listening), daemon=True)
    process.start()
    try:
        if not listening.wait(START_S):
            raise RuntimeError("the discarding daemon did not start")
        yield path
    finally:
        process.kill()
        process.join()


def _run(path: Path, listening: Event) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listening.set()
        while True:
            sock = listener.accept()[0]
            threading.Thread(target=_serve, args=(sock,), daemon=True).start()


def _serve(sock: socket.socket) -> None:
    buffer = memoryview(bytearray(BUFFER_BYTES))
    with sock:
        while len(head := sock.recv(FRAME_HEAD_BYTES, socket.MSG_WAITALL)) == FRAME_HEAD_BYTES:
            kind, sequence, size = wire.read_frame_head(head)
            if size and sock.recv_into(buffer, size, socket.MSG_WAITALL) < size:
                return
            sock.sendall(_answer(kind, sequence, buffer[:size]))
            if kind is Kind.GOODBYE:
                return


def _answer(kind: Kind, sequence: int, body: memoryview) -> bytes:
    match kind:
        case Kind.HELLO:
            return wire.document(Kind.WELCOME, wire.CONNECTION, WELCOME)
        case Kind.STAGE:
            return wire.ack(sequence, Outcome.STORED)
        case Kind.CONTROL:
            return wire.document(Kind.RESULT, sequence, _result(json.loads(bytes(body))))
        case Kind.GOODBYE:
            return wire.frame(Kind.FAREWELL, sequence)
        case _:
            raise AssertionError(f"the sink sends no {kind.name}")


def _result(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to whatever the sink asks for: what it said, done."""
    if request["op"] == "write.publish":
        return {"outcome": "published", "write": request["write"], "items": 0, "published_ms": 1}
    return request
