"""One client's connection: frames in, one `Append` a run to the spooler, answers out.

Owns the socket, its two buffers and the connection's window. It stops reading while its window,
the budget that all connections share, or its own unread answers allow no more (`window.py`,
docs/protocol.md "Windows"). There are no timers here: the ingest's reaper calls `tend` and
`overdue` about every second.

As `Answers` it is called by the spooler's task: `put` encodes an answer and frees its place,
`flush` sends from right there, without blocking. Both are harmless after the client has gone.

Cancelled, it closes the socket at once: what was not answered is unknown to the client, which
sends it again. A run that was handed to the spooler is stored all the same.

What it cannot do: it takes no notice of a client that vanishes while its pushes are in flight
before it reads or answers again, and cannot say why it closes to a client that does not read.
"""

import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

import structlog
import trio
from trio.lowlevel import wait_readable, wait_writable

from actors.inbox import Inbox
from actors.messages import Append, Inquire, SpoolerMessage
from actors.outbox import Outbox
from actors.peer import Peer
from actors.refusals import draining, no_common_version, too_large, too_slow, unknown_queue
from actors.settings import SocketSettings, stored_run_bytes_max
from actors.window import Budget, Window
from forebay import wire
from forebay.errors import BadFrame, BadRun, Refused
from forebay.limits import (
    FRAME_BODY_BYTES_MAX,
    FRAME_HEAD_BYTES,
    HELLO_BYTES_MAX,
    PING_BYTES_MAX,
    REPORT_BYTES_MAX,
)
from forebay.run import read_head, verify
from forebay.wire import FrameHead, Kind, Outcome, read_frame_head

FRAMES_AT_ONCE: Final = 256
"""After so many frames others have their turn, however many more there are."""
UNREAD_BYTES_MAX: Final = 256 * 1024
"""With more answers than this waiting for the client to read them, nothing is read from it."""
QUIET_S: Final = 1.0
"""After that long the memory of a large frame is given back."""

_BODY_BYTES_MAX: Final = {
    Kind.HELLO: HELLO_BYTES_MAX,
    Kind.PUSH: FRAME_BODY_BYTES_MAX,
    Kind.PING: PING_BYTES_MAX,
    Kind.STATS: 0,
    Kind.GOODBYE: 0,
}

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Shared:
    """What the connections of one ingest have in common."""

    settings: SocketSettings
    spooler: trio.MemorySendChannel[SpoolerMessage]
    known_queue: Callable[[str], bool]
    budget: Budget
    figures: Callable[[], dict[str, Any]]
    """What a report says about the ingest."""
    refused: Counter[str] = field(default_factory=Counter)
    is_draining: bool = False


class Connection:
    def __init__(self, sock: socket.socket, peer: Peer, shared: Shared) -> None:
        self.peer = peer
        self.client = ""
        self._sock = sock
        self._shared = shared
        self._settings = shared.settings
        self._push_bytes_max = stored_run_bytes_max(shared.settings.max_run_bytes)
        self._inbox = Inbox()
        self._outbox = Outbox(sock)
        self._window = Window(
            shared.settings.window_frames, shared.settings.window_bytes, shared.budget
        )
        self._receiving: FrameHead | None = None
        """The frame at the front of the inbox, once its head has been read and admitted."""
        self._to_drop = 0
        """Bytes of a frame that is too large, still to come."""
        self._is_greeted = False
        self._is_waiting = False
        """Not reading, for a reason that lies with the daemon or with unread answers."""
        self._is_writing = False
        self._has_bad_run = False
        self._opened_at = self._answered_at = trio.current_time()
        self._frame_since: float | None = None
        self._changed = trio.Event()
        self._reading = trio.CancelScope()
        self._whole = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Serves the client until one of the two ends it."""
        try:
            with self._whole:
                async with trio.open_nursery() as self._nursery:
                    try:
                        last_words = await self._listen()
                        await self._finish(last_words)
                    finally:
                        # From here on no answer may start a writer in a nursery that ends.
                        self._outbox.close()
        finally:
            self._window.drop_in_hand()
            self._shared.budget.wake()
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()

    async def _listen(self) -> bytes:
        """Takes frames until there is a reason to stop; what is to be said at the end."""
        try:
            with self._reading:
                return await self._read()
        except BadFrame as problem:
            refused = Refused("BAD_FRAME", str(problem), fatal=True)
        except Refused as problem:
            refused = problem
        except OSError:
            # The client is gone; `put` and `flush` will find out.
            return b""
        else:
            refused = draining(fatal=True)
        return self._fatal(refused)

    async def _read(self) -> bytes:
        inbox, sock = self._inbox, self._sock
        while True:
            await wait_readable(sock)
            try:
                if not inbox.fill(sock):
                    return b""
            except BlockingIOError:
                continue
            farewell = await self._take_frames()
            if self._outbox.waiting_bytes:
                self.flush()
            if farewell is not None:
                return farewell
            if not inbox and not self._to_drop:
                self._frame_since = None
            elif self._frame_since is None:
                self._frame_since = trio.current_time()

    async def _take_frames(self) -> bytes | None:
        """Takes all whole frames out of the inbox; FAREWELL if the client is done."""
        inbox = self._inbox
        taken = 0
        while True:
            if self._to_drop:
                self._to_drop -= inbox.drop(self._to_drop)
                if self._to_drop:
                    return None
                self._frame_since = None
            head = self._receiving
            if head is None:
                if len(inbox) < FRAME_HEAD_BYTES:
                    return None
                head = read_frame_head(*inbox.front())
                self._check(head)
                if head.kind is Kind.PUSH and head.body_bytes > self._push_bytes_max:
                    self._to_drop = FRAME_HEAD_BYTES + head.body_bytes
                    self._refuse(head.sequence, too_large(self._settings.max_run_bytes))
                    continue
                if not self._has_room(head.body_bytes):
                    await self._wait_for_room(head.body_bytes)
                self._window.admit(head.sequence, head.body_bytes)
                self._receiving = head
            if len(inbox) < FRAME_HEAD_BYTES + head.body_bytes:
                inbox.make_room(FRAME_HEAD_BYTES + head.body_bytes)
                return None
            self._receiving = None
            self._frame_since = None
            taken += 1
            if taken % FRAMES_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            body = inbox.take(FRAME_HEAD_BYTES, head.body_bytes)
            match head.kind:
                case Kind.PUSH:
                    await self._push(head.sequence, body)
                case Kind.PING:
                    self._answer(head.sequence, wire.frame(Kind.PONG, head.sequence, body))
                case Kind.STATS:
                    await self._stats(head.sequence)
                case Kind.HELLO:
                    self._hello(body)
                case Kind.GOODBYE:
                    self._window.release(head.sequence)
                    return wire.frame(Kind.FAREWELL, head.sequence)
                case Kind.WELCOME | Kind.ACK | Kind.PONG | Kind.REPORT | Kind.FAREWELL | Kind.ERROR:
                    raise AssertionError("_check lets no answer through")
                case _:
                    assert_never(head.kind)

    def _check(self, head: FrameHead) -> None:
        """What can be wrong with a frame before its body is read."""
        kind, sequence, body_bytes = head
        bytes_max = _BODY_BYTES_MAX.get(kind)
        if bytes_max is None:
            raise BadFrame(f"{kind.name} is the daemon's to send")
        if body_bytes > bytes_max:
            raise BadFrame(f"a {kind.name} of {body_bytes} bytes: at most {bytes_max} are allowed")
        if (kind is Kind.HELLO) is self._is_greeted:
            raise BadFrame(
                "a second HELLO" if self._is_greeted else f"{kind.name} comes before HELLO"
            )
        if (sequence == wire.CONNECTION) is self._is_greeted:
            raise BadFrame(f"a {kind.name} with the sequence number {sequence}")
        if sequence in self._window:
            raise BadFrame(f"the sequence number {sequence} is still in flight")

    def _has_room(self, size: int) -> bool:
        """Whether a frame may come in now."""
        return self._outbox.waiting_bytes <= UNREAD_BYTES_MAX and self._window.has_room(size)

    async def _wait_for_room(self, size: int) -> None:
        self._is_waiting = True
        self.flush()
        while not self._has_room(size):
            await self._wait_for_change(also_others=True)
        self._is_waiting = False
        self._frame_since = trio.current_time()

    def _hello(self, body: bytes) -> None:
        lowest, highest, about = wire.read_hello(body)
        version = wire.choose_version(lowest, highest)
        if version is None:
            raise no_common_version(lowest, highest)
        self.client = str(about.get("client", ""))[:100]
        self._is_greeted = True
        settings = self._settings
        welcome = {
            "version": version,
            "daemon": "forebay",
            "max_run_bytes": settings.max_run_bytes,
            "window_bytes": settings.window_bytes,
            "window_frames": settings.window_frames,
            "idle_timeout_ms": round(settings.idle_timeout * 1000),
        }
        self._answer(wire.CONNECTION, wire.document(Kind.WELCOME, wire.CONNECTION, welcome))

    async def _push(self, sequence: int, data: bytes) -> None:
        shared = self._shared
        if shared.is_draining:
            self._refuse(sequence, draining())
            return
        try:
            head = read_head(data)
            if head.raw_bytes > self._settings.max_run_bytes:
                self._refuse(sequence, too_large(self._settings.max_run_bytes))
                return
            verify(head, data)
        except BadRun as problem:
            self._note_bad_run(problem)
            self._refuse(sequence, Refused("BAD_RUN", str(problem)))
            return
        if not shared.known_queue(head.queue):
            self._refuse(sequence, unknown_queue(head.queue))
            return
        await self._hand_over(sequence, Append(head, data, self, sequence))

    async def _stats(self, sequence: int) -> None:
        def answer(report: dict[str, Any]) -> None:
            figures = self._shared.figures()
            document = wire.document(Kind.REPORT, sequence, {**report, "ingest": figures})
            if len(document) > FRAME_HEAD_BYTES + REPORT_BYTES_MAX:
                self._refuse(sequence, too_large(REPORT_BYTES_MAX))
            else:
                self._answer(sequence, document)
            self.flush()

        await self._hand_over(sequence, Inquire(answer))

    async def _hand_over(self, sequence: int, message: Append | Inquire) -> None:
        try:
            try:
                self._shared.spooler.send_nowait(message)
            except trio.WouldBlock:
                self.flush()
                await self._shared.spooler.send(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The spooler ends before its clients only when the daemon does.
            self._refuse(sequence, draining())
        else:
            self._window.hand_over()

    def put(self, sequence: int, answer: Outcome | Refused) -> None:
        """Encodes an answer and frees its place. Sends nothing yet."""
        if isinstance(answer, Refused):
            self._refuse(sequence, answer)
        else:
            self._window.release(sequence)
            self._outbox.put(wire.ack(sequence, answer))

    def flush(self) -> None:
        """Sends the answers, as far as the socket takes them; a task sends the rest."""
        self._answered_at = trio.current_time()
        if not self._is_writing and not self._outbox.is_closed:
            self._send()
        if self._shared.is_draining and not self._window:
            self._reading.cancel()
        self._changed.set()
        self._shared.budget.wake()

    def drain(self) -> None:
        """`Shared.is_draining` has come true: ends the connection once nothing is in flight."""
        if not self._window:
            self._reading.cancel()

    def overdue(self, now: float) -> str | None:
        """What the client has taken too long for, if anything."""
        settings = self._settings
        stuck_since = self._outbox.stuck_since
        if stuck_since is not None and now - stuck_since >= settings.write_timeout:
            return "reading its answers"
        if self._is_waiting:
            return None
        if not self._is_greeted:
            return "saying HELLO" if now - self._opened_at >= settings.hello_timeout else None
        if self._frame_since is not None:
            is_late = now - self._frame_since >= settings.frame_timeout
            return "finishing a frame" if is_late else None
        if self._window or not settings.idle_timeout:
            return None
        return "saying anything" if now - self._answered_at >= settings.idle_timeout else None

    def expire(self, what: str) -> None:
        """Says why, if the client can hear it, and closes."""
        last_words = self._fatal(too_slow(what))
        if self._outbox.stuck_since is None:
            self._outbox.put(last_words)
            self._send()
        self._lose()

    def tend(self, now: float) -> None:
        """What is worth doing once in a while."""
        if self._outbox.stuck_since is not None:
            # The kernel calls a socket writable when three quarters of it are free. A slow reader
            # has made room before that, and must not be taken for one that does not read.
            try:
                self._outbox.flush()
            except OSError:
                self._lose()
        if now - self._answered_at >= QUIET_S:
            self._inbox.shrink()

    def _refuse(self, sequence: int, refused: Refused) -> None:
        self._shared.refused[refused.code] += 1
        if sequence in self._window:
            self._window.release(sequence)
        self._outbox.put(wire.error(sequence, refused))

    def _answer(self, sequence: int, data: bytes) -> None:
        self._window.release(sequence)
        self._outbox.put(data)

    def _fatal(self, refused: Refused) -> bytes:
        self._shared.refused[refused.code] += 1
        if refused.code != "DRAINING":
            log.warning(
                "ingest.connection_ended",
                code=refused.code,
                text=refused.text,
                client=self.client,
                pid=self.peer.pid,
                uid=self.peer.uid,
            )
        return wire.error(wire.CONNECTION, refused)

    def _note_bad_run(self, problem: BadRun) -> None:
        """One line a connection, however many bad runs it sends; `refused` counts them all."""
        if not self._has_bad_run:
            self._has_bad_run = True
            log.warning(
                "ingest.bad_run",
                text=str(problem),
                client=self.client,
                pid=self.peer.pid,
                uid=self.peer.uid,
            )

    async def _finish(self, last_words: bytes) -> None:
        """Waits for the answers that are outstanding and sees everything sent."""
        self._window.drop_in_hand()
        self._is_waiting = True
        while self._window:
            await self._wait_for_change()
        self._outbox.put(last_words)
        self.flush()
        while self._outbox.waiting_bytes:
            await self._wait_for_change()

    async def _wait_for_change(self, *, also_others: bool = False) -> None:
        self._changed = trio.Event()
        if also_others:
            self._shared.budget.wake_at_release(self._changed)
        await self._changed.wait()

    def _send(self) -> None:
        try:
            if self._outbox.flush() and self._nursery is not None:
                self._is_writing = True
                self._nursery.start_soon(self._write_rest)
        except OSError:
            self._lose()

    async def _write_rest(self) -> None:
        try:
            while True:
                await wait_writable(self._sock)
                if not self._outbox.flush():
                    break
        except OSError:
            self._lose()
        self._is_writing = False
        self._changed.set()

    def _lose(self) -> None:
        """No word reaches the client any more: answers are dropped, and free their places."""
        self._outbox.close()
        self._whole.cancel()
