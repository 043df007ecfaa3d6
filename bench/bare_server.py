"""The ceiling: a socket, a file and nothing else. No trio, no checks, no index, no books.

It takes the frames of docs/protocol.md, writes their bodies to a pre-written file and answers
each with an ACK once that is synced. It knows neither HELLO nor any error, and takes one client.

`serve_each` does one after the other in one thread, as simple as it can be; `serve_groups` reads
on while a sync is under way, and all that came meanwhile shares the next one.
"""

import multiprocessing
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final

from bench.disk import WrittenFile
from bench.sync_trace import SyncTrace, record_syncs
from forebay import wire
from forebay.limits import FRAME_HEAD_BYTES
from forebay.wire import Outcome

START_S: Final = 60.0
BUFFERS: Final = 32
"""More than any window in these benchmarks."""
BUFFER_BYTES: Final = 512 * 1024

Frame = tuple[int, int]
"""The sequence number and the length of the body."""


@contextmanager
def bare_server(path: Path, file: Path, *, is_grouped: bool) -> Iterator[SyncTrace]:
    """Runs in a process of its own until the context is left."""
    trace = SyncTrace(path.with_suffix(".syncs"))
    context = multiprocessing.get_context("spawn")
    listening = context.Event()
    process = context.Process(
        target=_run, args=(path, file, is_grouped, trace.path, listening), daemon=True
    )
    process.start()
    try:
        if not listening.wait(START_S):
            raise RuntimeError("the bare server did not start")
        yield trace
    finally:
        process.kill()
        process.join()
        trace.close()


def _run(path: Path, file_path: Path, is_grouped: bool, trace: Path, listening: Event) -> None:
    record_syncs(SyncTrace(trace))
    with socket.socket(socket.AF_UNIX) as listener, WrittenFile(file_path) as file:
        listener.bind(str(path))
        listener.listen()
        listening.set()
        while True:
            with listener.accept()[0] as sock:
                (serve_groups if is_grouped else serve_each)(sock, file)


def serve_each(sock: socket.socket, file: WrittenFile) -> None:
    buffer = memoryview(bytearray(BUFFER_BYTES))
    while (frame := _receive(sock, buffer)) is not None:
        sequence, size = frame
        file.write([buffer[:size]])
        sock.sendall(wire.ack(sequence, Outcome.STORED))


def serve_groups(sock: socket.socket, file: WrittenFile) -> None:
    received: queue.SimpleQueue[tuple[Frame, memoryview] | None] = queue.SimpleQueue()
    free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
    for _ in range(BUFFERS):
        free.put(memoryview(bytearray(BUFFER_BYTES)))

    def receive() -> None:
        while True:
            buffer = free.get()
            frame = _receive(sock, buffer)
            received.put(None if frame is None else (frame, buffer))
            if frame is None:
                return

    reader = threading.Thread(target=receive, daemon=True)
    reader.start()
    is_open = True
    while is_open:
        group = []
        entry = received.get()
        while entry is not None:
            group.append(entry)
            if received.empty():
                break
            entry = received.get()
        is_open = entry is not None
        if group:
            file.write([buffer[:size] for (_, size), buffer in group])
            acks = [wire.ack(sequence, Outcome.STORED) for (sequence, _), _ in group]
            for _, buffer in group:
                free.put(buffer)
            if is_open:
                sock.sendall(b"".join(acks))
    reader.join()


def _receive(sock: socket.socket, buffer: memoryview) -> Frame | None:
    """One frame's body into the buffer; None at the end of the connection."""
    head = sock.recv(FRAME_HEAD_BYTES, socket.MSG_WAITALL)
    if len(head) < FRAME_HEAD_BYTES:
        return None
    _, sequence, size = wire.read_frame_head(head)
    if size and sock.recv_into(buffer, size, socket.MSG_WAITALL) < size:
        return None
    return sequence, size
