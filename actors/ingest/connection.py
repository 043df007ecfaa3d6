"""One client's connection: frames in, requests to `Requests`, answers out.

It owns the socket, its two buffers and the connection's window. It stops reading while its window,
the budget that all connections share, or its own unread answers allow no more (`window.py`,
docs/protocol.md "Windows"). It has no timers: ingest's reaper calls `tend` and `overdue` about once
per second.

As `Replies` it is called by the actors that answer: `put`, `answer` and `refuse` encode an answer
and free its place, `flush` sends it in the caller's task without blocking. All are harmless after
the client has gone.

On cancel it closes the socket at once: the client does not know about unanswered requests and sends
them again. A run that was handed to the spooler is stored all the same. In every case the leases of
the connection are given back.

It does not notice a client that vanishes while its pushes are in flight before it reads or answers
again, and it cannot tell a client that does not read why it closes.
"""

import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
import trio
from trio.lowlevel import wait_readable, wait_writable

from actors.ingest.buffers import Inbox, Outbox
from actors.ingest.peer import Peer
from actors.ingest.requests import IngestShared, Requests
from actors.ingest.window import Budget, Window, check, refuse_size
from actors.model.internal_errors import INTERNAL_ERRORS
from actors.model.refusals import draining, no_common_version, too_slow
from forebay import wire
from forebay.errors import BadFrame, BadRun, Refused
from forebay.limits import FRAME_HEAD_BYTES
from forebay.wire import FrameHead, Kind, Outcome, read_frame_head

FRAMES_AT_ONCE: Final = 256
"""After this many frames other tasks get a turn, however many more there are."""
UNREAD_BYTES_MAX: Final = 256 * 1024
"""With more unread answers than this, nothing is read from the client."""
PRESSED_S: Final = 5.0
"""The longest patience with a client that holds memory which others wait for."""

log = structlog.get_logger(__name__)


class Connection:
    def __init__(self, sock: socket.socket, peer: Peer, shared: IngestShared) -> None:
        self.peer = peer
        self.client = ""
        self._sock = sock
        self._shared = shared
        self._settings = shared.settings
        self._inbox = Inbox(shared.budget)
        self._outbox = Outbox(sock, shared.unread)
        self._window = Window(
            shared.settings.window_frames, shared.settings.window_bytes, shared.budget
        )
        self._receiving: FrameHead | None = None
        """The frame at the front of the inbox, once its head has been read and admitted."""
        self._to_drop = 0
        """Bytes of an oversized frame that are still to come."""
        self._is_greeted = False
        self._is_waiting = False
        """Not reading, because of the daemon or of unread answers."""
        self._is_writing = False
        self._has_bad_run = False
        self._opened_at = self._answered_at = trio.current_time()
        self._frame_since: float | None = None
        self._changed = trio.Event()
        self._reading = trio.CancelScope()
        self._whole = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._requests = Requests(shared, self)

    async def run(self) -> None:
        """Serves the client until either side ends it."""
        try:
            with self._whole:
                async with trio.open_nursery() as self._nursery:
                    try:
                        last_words = await self._listen()
                        await self._finish(last_words)
                    finally:
                        # From here on no answer may start a writer in the ending nursery.
                        self._outbox.close()
                        self._shared.unread.wake()
        finally:
            self._window.drop_in_hand()
            self._inbox.close()
            self._shared.budget.wake()
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()
            await self._requests.close()

    async def _listen(self) -> bytes:
        """Takes frames until there is a reason to stop; returns the last frame to send."""
        try:
            with self._reading:
                return await self._read()
        except BadFrame as problem:
            refused = Refused("BAD_FRAME", str(problem), fatal=True)
        except Refused as problem:
            refused = problem
        except OSError:
            # The client is gone; `put` and `flush` will notice.
            return b""
        except Exception as problem:
            refused = INTERNAL_ERRORS.note(problem, "reading", fatal=True, **self._about())
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
        """Takes all whole frames out of the inbox; returns FAREWELL if the client is done."""
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
                check(head, is_greeted=self._is_greeted, in_flight=self._window)
                refused = refuse_size(head, self._settings.max_run_bytes)
                if refused is not None:
                    self._to_drop = FRAME_HEAD_BYTES + head.body_bytes
                    self.refuse(head.sequence, refused)
                    continue
                if not self._has_room(head.body_bytes):
                    await self._wait_until(self._has_room, head.body_bytes)
                self._window.admit(head.sequence, head.body_bytes)
                self._receiving = head
            frame_bytes = FRAME_HEAD_BYTES + head.body_bytes
            if len(inbox) < frame_bytes:
                if not inbox.make_room(frame_bytes):
                    await self._wait_until(inbox.make_room, frame_bytes)
                return None
            self._receiving = None
            self._frame_since = None
            taken += 1
            if taken % FRAMES_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            body = inbox.take(FRAME_HEAD_BYTES, head.body_bytes)
            self._window.arrived()
            if head.kind is Kind.HELLO:
                self._hello(body)
            elif head.kind is Kind.GOODBYE:
                self._window.release(head.sequence)
                return wire.frame(Kind.FAREWELL, head.sequence)
            else:
                await self._requests.take(head.kind, head.sequence, body)

    def _has_room(self, size: int) -> bool:
        """Whether a frame may come in now."""
        return self._outbox.waiting_bytes <= UNREAD_BYTES_MAX and self._window.has_room(size)

    async def _wait_until(self, has_room: Callable[[int], bool], size: int) -> None:
        self._is_waiting = True
        self.flush()
        while not has_room(size):
            await self._wait_for_change(self._shared.budget)
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
        self.answer(wire.CONNECTION, wire.document(Kind.WELCOME, wire.CONNECTION, welcome))

    def put(self, sequence: int, answer: Outcome | Refused) -> None:
        """Encodes an answer and frees its place. Sends nothing yet."""
        if isinstance(answer, Refused):
            self.refuse(sequence, answer)
        else:
            self.answer(sequence, wire.ack(sequence, answer))

    def answer(self, sequence: int, data: bytes) -> None:
        """As `put`, for an answer that is already encoded."""
        try:
            self._window.release(sequence)
            self._outbox.put(data)
        except Exception as problem:
            self.give_up(problem)

    def refuse(self, sequence: int, refused: Refused) -> None:
        self._shared.refused[refused.code] += 1
        try:
            self.drop(sequence)
            self._outbox.put(wire.error(sequence, refused))
        except Exception as problem:
            self.give_up(problem)

    def fail(self, sequence: int, kind: Kind, problem: Exception) -> None:
        """Answers a request that met a bug; the connection goes on."""
        self.refuse(sequence, INTERNAL_ERRORS.note(problem, kind.name, **self._about()))

    def give_up(self, problem: Exception) -> None:
        """Ends the connection after a bug that prevents answers: the client would wait forever."""
        INTERNAL_ERRORS.note(problem, "answering", **self._about())
        self._lose()

    def drop(self, sequence: int) -> None:
        """Frees the place of a request that may get no answer."""
        if sequence in self._window:
            self._window.release(sequence)

    async def room(self) -> None:
        """Returns when an answer of any size may be made: this client has read nearly all of its
        answers, and all clients together do not leave too much unread."""
        unread = self._shared.unread
        while self._outbox.waiting_bytes > UNREAD_BYTES_MAX or unread.taken > unread.limit:
            await self._wait_for_change(unread)

    def hand_over(self) -> None:
        """Another actor will answer the current request."""
        self._window.hand_over()

    def start(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """Runs a longer request in a task; it ends when the connection is lost."""
        assert self._nursery is not None
        self._nursery.start_soon(work, *args)

    def flush(self) -> None:
        """Sends the answers, as far as the socket takes them; a task sends the rest."""
        self._answered_at = trio.current_time()
        try:
            if not self._is_writing and not self._outbox.is_closed:
                self._send()
            if self._shared.is_draining:
                self._end_when_done()
        except Exception as problem:
            self.give_up(problem)
        self._changed.set()
        self._shared.budget.wake()
        self._shared.unread.wake()

    def drain(self) -> None:
        """Called when `Shared.is_draining` is set: ends the connection once nothing is in flight
        and none of its leases still runs."""
        self._requests.end_waits()
        self._end_when_done()

    def overdue(self, now: float) -> str | None:
        """What the client has taken too long for, if anything."""
        settings = self._settings
        stuck_since = self._outbox.stuck_since
        if stuck_since is not None:
            patience_s = settings.write_timeout
            if self._outbox.waiting_bytes > UNREAD_BYTES_MAX and self._shared.unread.is_short:
                patience_s = min(patience_s, PRESSED_S)
            if now - stuck_since >= patience_s:
                return "reading its answers"
        if self._is_waiting:
            return None
        if not self._is_greeted:
            return "saying HELLO" if now - self._opened_at >= settings.hello_timeout else None
        if self._frame_since is not None:
            patience_s = settings.frame_timeout
            if self._inbox.shared_bytes and self._shared.budget.is_short:
                patience_s = min(patience_s, PRESSED_S)
            return "finishing a frame" if now - self._frame_since >= patience_s else None
        if self._window or self._requests.holds_leases or not settings.idle_timeout:
            return None
        return "saying anything" if now - self._answered_at >= settings.idle_timeout else None

    def expire(self, what: str) -> None:
        """Tells the client why, if it reads, and closes."""
        last_words = self._fatal(too_slow(what))
        if self._outbox.stuck_since is None:
            self._outbox.put(last_words)
            self._send()
        self._lose()

    def tend(self, now: float) -> None:
        """Does periodic upkeep."""
        if self._outbox.stuck_since is not None:
            # The kernel calls a socket writable when three quarters of it are free. A slow reader
            # makes room before that and must not be mistaken for one that does not read.
            try:
                self._outbox.flush()
            except OSError:
                self._lose()
        self._inbox.shrink()
        if self._shared.is_draining:
            # A lease that was waited for may have expired.
            self._end_when_done()

    def _fatal(self, refused: Refused) -> bytes:
        self._shared.refused[refused.code] += 1
        if refused.code != "DRAINING":
            log.warning(
                "ingest.connection_ended",
                code=refused.code,
                text=refused.text,
                **self._about(),
            )
        return wire.error(wire.CONNECTION, refused)

    def note_bad_run(self, problem: BadRun) -> None:
        """Logs one line per connection, however many bad runs it sends; `refused` counts all."""
        if not self._has_bad_run:
            self._has_bad_run = True
            log.warning("ingest.bad_run", text=str(problem), **self._about())

    def _about(self) -> dict[str, Any]:
        """Who is connected, for the log."""
        return {"client": self.client, "pid": self.peer.pid, "uid": self.peer.uid}

    async def _finish(self, last_words: bytes) -> None:
        """Waits for outstanding answers and sends everything."""
        self._window.drop_in_hand()
        self._is_waiting = True
        self._requests.end_waits()
        while self._window:
            await self._wait_for_change()
        self._outbox.put(last_words)
        self.flush()
        while self._outbox.waiting_bytes:
            await self._wait_for_change()

    async def _wait_for_change(self, shared: Budget | None = None) -> None:
        """Waits until something changes on this connection, or in the budget."""
        if self._changed.is_set():
            self._changed = trio.Event()
        if shared is not None:
            shared.wake_at_release(self._changed)
        await self._changed.wait()

    def _end_when_done(self) -> None:
        if not self._window and not self._requests.holds_leases:
            self._reading.cancel()

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
                is_stuck = self._outbox.flush()
                self._shared.unread.wake()
                if not is_stuck:
                    break
        except OSError:
            self._lose()
        self._is_writing = False
        self._changed.set()

    def _lose(self) -> None:
        """Ends the connection to an unreachable client: answers are dropped and free places."""
        self._outbox.close()
        self._shared.unread.wake()
        self._whole.cancel()
