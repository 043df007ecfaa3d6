"""What one push costs with less than forebay in the way: the steps between the bare server and it.

Each of these takes a frame, writes its body to a pre-written file, syncs it and answers, for one
client, with no check, index or book. They differ in what is between socket and disk:

    trio         trio waits for the socket; written and synced in its own thread, which a disk that
                 hangs would stop
    thread       a plain loop receives; another thread stores and answers
    there, back  the same, but the answer comes from the loop, which the thread has to wake
    trio, thread trio waits for the socket and for the thread, as forebay does

Blocking and in one thread it is the bare server (bench/bare_server.py).
"""

import multiprocessing
import os
import queue
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final

import trio

from actors.ports.thread import OwnThread
from bench.bare_server import START_S
from bench.disk import WrittenFile
from forebay import wire
from forebay.limits import FRAME_HEAD_BYTES
from forebay.wire import Outcome

RECEIVE_BYTES: Final = 64 * 1024
FILE_BYTES: Final = 16 * 1024 * 1024


@contextmanager
def floor_server(kind: str, path: Path, file: Path) -> Iterator[None]:
    """One of `FLOORS`, in a process of its own until the context is left."""
    context = multiprocessing.get_context("spawn")
    listening = context.Event()
    process = context.Process(target=_run, args=(kind, path, file, listening), daemon=True)
    process.start()
    try:
        if not listening.wait(START_S):
            raise RuntimeError(f"the server {kind!r} did not start")
        yield
    finally:
        process.kill()
        process.join()


def _run(kind: str, path: Path, file_path: Path, listening: Event) -> None:
    with (
        socket.socket(socket.AF_UNIX) as listener,
        WrittenFile(file_path, FILE_BYTES) as file,
    ):
        listener.bind(str(path))
        listener.listen()
        listening.set()
        with listener.accept()[0] as sock:
            sock.setblocking(False)
            FLOORS[kind](sock, file)


def _in_trio(sock: socket.socket, file: WrittenFile) -> None:
    async def serve() -> None:
        while True:
            await trio.lowlevel.wait_readable(sock)
            if not (data := sock.recv(RECEIVE_BYTES)):
                return
            _store(file, data)
            _answer(sock, data)

    trio.run(serve)


def _in_thread(sock: socket.socket, file: WrittenFile) -> None:
    received: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def store() -> None:
        while data := received.get():
            _store(file, data)
            _answer(sock, data)

    thread = threading.Thread(target=store)
    thread.start()
    poll = select.epoll()
    poll.register(sock, select.EPOLLIN)
    data = b"?"
    while data:
        poll.poll()
        data = sock.recv(RECEIVE_BYTES)
        received.put(data)
    thread.join()


def _there_and_back(sock: socket.socket, file: WrittenFile) -> None:
    received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    stored: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    is_stored = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def store() -> None:
        while data := received.get():
            _store(file, data)
            stored.put(data)
            os.eventfd_write(is_stored, 1)

    thread = threading.Thread(target=store)
    thread.start()
    poll = select.epoll()
    poll.register(sock, select.EPOLLIN)
    poll.register(is_stored, select.EPOLLIN)
    data = b"?"
    while data:
        for descriptor, _ in poll.poll():
            if descriptor == is_stored:
                os.eventfd_read(is_stored)
                _answer(sock, stored.get())
            else:
                data = sock.recv(RECEIVE_BYTES)
                received.put(data)
    thread.join()


def _in_trio_and_thread(sock: socket.socket, file: WrittenFile) -> None:
    async def serve() -> None:
        thread = OwnThread("floor")
        thread.start()
        while True:
            await trio.lowlevel.wait_readable(sock)
            if not (data := sock.recv(RECEIVE_BYTES)):
                return
            await thread.call(_store, file, data)
            _answer(sock, data)

    trio.run(serve)


def _store(file: WrittenFile, frame: bytes) -> None:
    file.write([memoryview(frame)[FRAME_HEAD_BYTES:]])


def _answer(sock: socket.socket, frame: bytes) -> None:
    sock.send(wire.ack(wire.read_frame_head(frame).sequence, Outcome.STORED))


FLOORS: Final[dict[str, Callable[[socket.socket, WrittenFile], None]]] = {
    "trio": _in_trio,
    "thread": _in_thread,
    "there, back": _there_and_back,
    "trio, thread": _in_trio_and_thread,
}
