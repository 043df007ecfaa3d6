"""A blocking client: pushes runs, many in flight, and does not lose one.

A run is kept until the daemon has acknowledged it, or has refused it for good (`Refused` is
raised). After a lost connection, or a refusal that passes (`QUEUE_FULL`, `DISK_FULL`, `DRAINING`
and the like), the same bytes are sent again, and the daemon stores them once, whichever of the
tries arrived. That goes on until `timeout` seconds have brought no acknowledgement at all; then
`Refused` or `Unreachable` is raised, the unacknowledged runs stay, and `drain` tries them again.

    with forebay.connect() as client:
        client.push("crm", (json.dumps(row) for row in rows))

A client can lease items as well (`lease`), and control the daemon (`control`).

One thread at a time: nothing here is locked, and nothing happens between calls.
"""

import os
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from forebay import wire
from forebay.errors import BadFrame, ForebayError, Refused, Unreachable
from forebay.lease_frames import LeaseWish
from forebay.leases import WAIT_STEP_S, Lease, take
from forebay.limits import (
    LEASE_ITEMS_DEFAULT,
    LEASE_RUN_BYTES_DEFAULT,
    PING_BYTES_MAX,
    PRIORITY_NORMAL,
    RUN_ITEMS_DEFAULT,
    RUN_RAW_BYTES_DEFAULT,
    RUN_RAW_BYTES_MAX,
)
from forebay.link import Cut, Link, Lost, NotAllowed
from forebay.places import socket_candidates
from forebay.pusher import Pusher
from forebay.run import check_queue_name
from forebay.tally import PushResult, Tally
from forebay.wire import Buffer, Kind, Outcome

TIMEOUT_S: Final = 60.0
"""Longer than the 30 s for which a daemon may hold a push while a queue is full."""
WINDOW_RUNS: Final = 8
BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0
FAREWELL_S: Final = 5.0

CLIENT_NAME: Final = "forebay-python"


class _Request:
    """What was sent and is not answered, in a form that can be sent again."""

    __slots__ = ("answer", "body", "kind", "tally")

    def __init__(self, kind: Kind, body: Buffer, tally: Tally | None) -> None:
        self.kind = kind
        self.body = body
        self.tally = tally
        self.answer: bytes | Refused | None = None


class _Postponed(NamedTuple):
    not_before: float
    request: _Request


def connect(
    socket: str | os.PathLike[str] | None = None, timeout: float = TIMEOUT_S, *, wait: float = 0.0
) -> "Client":
    """Connects to the daemon at `socket`, at `FOREBAY_SOCKET`, or at one of the default places.

    `wait` is how long the daemon may take to appear: by default it must be there. One that is
    there and is just stopping or starting has `timeout` to come back.
    """
    places = socket_candidates() if socket is None else [Path(socket)]
    return Client(places, timeout=timeout, wait=wait)


class Client:
    """A connection to a daemon that mends itself. Made by `connect`; a context manager.

    Leaving the context waits for all acknowledgements; leaving it by an exception does not.
    """

    def __init__(self, places: Iterable[Path], *, timeout: float, wait: float = 0.0) -> None:
        self._places = list(places)
        self._timeout = timeout
        self._link: Link | None = None
        self._sequence = 0
        self._in_flight: dict[int, _Request] = {}
        self._postponed: deque[_Postponed] = deque()
        self._refusals: deque[Refused] = deque()
        self._tally = Tally()
        self._problem: ForebayError = Unreachable("nothing was tried")
        """The last thing that stood in the way."""
        self._backoff = BACKOFF_MIN_S
        self._was_cut = False
        """At the last try to connect somebody listened; no more came of it."""
        self._is_closed = False
        self._deadline = 0.0
        self._connect_at_first(wait)

    @property
    def path(self) -> Path | None:
        """The socket of the daemon, while there is a connection."""
        return None if self._link is None else self._link.path

    @property
    def max_run_bytes(self) -> int:
        """The largest body of a run, before compression, that the daemon takes."""
        limit = 0 if self._link is None else self._link.welcome.get("max_run_bytes", 0)
        return limit if isinstance(limit, int) and limit > 0 else RUN_RAW_BYTES_MAX

    @property
    def unacknowledged(self) -> int:
        """How many runs have been submitted and neither acknowledged nor refused for good."""
        return len(self._in_flight) + len(self._postponed)

    def push(
        self,
        queue: str,
        payloads: Iterable[bytes | str],
        *,
        keys: Iterable[bytes | str | None] | None = None,
        priority: int = PRIORITY_NORMAL,
        due_ms: int = 0,
        delay: float = 0.0,
        flow: str = "",
        action: str = "",
        headers: Mapping[str, str] | None = None,
        run_items: int = RUN_ITEMS_DEFAULT,
        run_bytes: int = RUN_RAW_BYTES_DEFAULT,
        compressed: bool = True,
        window: int = WINDOW_RUNS,
    ) -> PushResult:
        """Pushes items and returns when all of them are acknowledged.

        `payloads` may be endless: at most `window` runs are kept in memory. What an exception
        leaves behind is stored or not; `Pusher` tells how much was acknowledged by then.
        """
        pusher = self.pusher(
            queue,
            priority=priority,
            due_ms=due_ms,
            delay=delay,
            flow=flow,
            action=action,
            headers=headers,
            run_items=run_items,
            run_bytes=run_bytes,
            compressed=compressed,
            window=window,
        )
        with pusher:
            pusher.send_all(payloads, keys)
        return pusher.result

    def pusher(
        self,
        queue: str,
        *,
        priority: int = PRIORITY_NORMAL,
        due_ms: int = 0,
        delay: float = 0.0,
        flow: str = "",
        action: str = "",
        headers: Mapping[str, str] | None = None,
        run_items: int = RUN_ITEMS_DEFAULT,
        run_bytes: int = RUN_RAW_BYTES_DEFAULT,
        compressed: bool = True,
        window: int = WINDOW_RUNS,
    ) -> Pusher:
        """Collects single items into runs; see `Pusher`."""
        return Pusher(
            self,
            queue,
            priority=priority,
            due_ms=due_ms,
            delay=delay,
            flow=flow,
            action=action,
            headers=headers,
            run_items=run_items,
            run_bytes=min(run_bytes, self.max_run_bytes),
            compressed=compressed,
            window=window,
        )

    def submit(self, run: Buffer, *, window: int = WINDOW_RUNS, tally: Tally | None = None) -> None:
        """Sends an encoded run; waits only while `window` runs are unacknowledged.

        The bytes are not copied, and must not change before they are acknowledged. The refusal
        of an earlier run may be raised here; this run is in flight all the same.
        """
        self._deadline = monotonic() + self._timeout
        while len(self._in_flight) + len(self._postponed) >= window:
            self._advance()
        self._send(_Request(Kind.PUSH, run, tally or self._tally))
        self._raise_refusal()

    def drain(self) -> PushResult:
        """Waits until nothing is unacknowledged; what `submit` got acknowledged so far."""
        self._deadline = monotonic() + self._timeout
        while self._in_flight or self._postponed:
            self._advance()
        self._raise_refusal()
        return self._tally.result()

    def ping(self, body: bytes = b"") -> float:
        """Seconds that the daemon takes to answer."""
        if len(body) > PING_BYTES_MAX:
            raise ValueError(f"a PING has at most {PING_BYTES_MAX} bytes, not {len(body)}")
        started = monotonic()
        if self._ask(Kind.PING, body) != body:
            raise BadFrame("a PONG is not what was sent")
        return monotonic() - started

    def stats(self) -> dict[str, Any]:
        """The daemon's report: its books, and those of every queue."""
        return wire.read_json(self._ask(Kind.STATS, b""))

    def lease(
        self,
        queue: str,
        items: int = LEASE_ITEMS_DEFAULT,
        *,
        lease_s: float = 60.0,
        wait_s: float = 0.0,
        bytes_max: int = LEASE_RUN_BYTES_DEFAULT,
        consumer: str = "",
        keep: bool = False,
    ) -> Lease:
        """Leases at most `items` items that are due, for `lease_s` seconds (0: as the queue says).

        Waits for `wait_s` seconds if there are none; then the lease is empty. Leaving its context
        acknowledges the items; see `Lease`. They are given back when this client's connection
        ends, unless they are to be kept until the lease ends.
        """
        check_queue_name(queue)
        wish = LeaseWish(queue, items, bytes_max, round(lease_s * 1000), 0, consumer, keep)
        step_s = min(WAIT_STEP_S, self._timeout / 2)
        return take(self._ask, wish, wait_s=wait_s, step_s=step_s, patience_s=self._timeout)

    def control(self, op: str, /, **fields: Any) -> dict[str, Any]:
        """An operation on the daemon, as docs/protocol.md lists them; `Control` has them typed."""
        return wire.read_json(self._ask(Kind.CONTROL, wire.pack_json({"op": op, **fields})))

    def close(self) -> None:
        """Waits until nothing is unacknowledged, and says GOODBYE."""
        if self._is_closed:
            return
        self.drain()
        self._is_closed = True
        if self._link is not None:
            # Everything is acknowledged: how the connection ends is not worth an error.
            with suppress(Lost):
                goodbye = wire.frame(Kind.GOODBYE, self._next_sequence())
                self._link.send([goodbye], monotonic() + FAREWELL_S)
                self._link.receive(FAREWELL_S)
            self._disconnect()

    def abort(self) -> None:
        """Closes at once. Unacknowledged runs are stored or not."""
        self._is_closed = True
        self._disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _ask(self, kind: Kind, body: bytes) -> bytes:
        self._deadline = monotonic() + self._timeout
        request = _Request(kind, body, None)
        self._send(request)
        while request.answer is None:
            self._advance()
        if isinstance(request.answer, Refused):
            raise request.answer
        return request.answer

    def _send(self, request: _Request) -> None:
        if self._is_closed:
            raise Unreachable("the client is closed")
        sequence = self._next_sequence()
        self._in_flight[sequence] = request
        if self._link is None:
            return
        head = wire.frame_head(request.kind, sequence, len(request.body))
        try:
            self._link.send([head, request.body], self._deadline)
        except Lost as lost:
            self._lose(lost)

    def _next_sequence(self) -> int:
        while True:
            self._sequence = self._sequence % wire.SEQUENCE_MAX + 1
            if self._sequence not in self._in_flight:
                return self._sequence

    def _advance(self) -> None:
        """Waits for one thing: answers, the time of a second try, or a new connection."""
        now = monotonic()
        if now >= self._deadline:
            self._give_up()
        if self._link is None:
            self._reconnect()
            return
        until = self._deadline
        if self._postponed:
            not_before, request = self._postponed[0]
            if not_before <= now:
                self._postponed.popleft()
                self._send(request)
                return
            until = min(until, not_before)
        try:
            frames = self._link.receive(until - now)
        except Lost as lost:
            self._lose(lost)
            return
        if not frames and until == self._deadline and self._in_flight:
            self._problem = Unreachable(
                f"the daemon at {self._link.path} did not answer for {self._timeout:g} s"
            )
        for kind, sequence, body in frames:
            self._take(kind, sequence, body)

    def _take(self, kind: Kind, sequence: int, body: bytes) -> None:
        if kind is Kind.ERROR:
            refused = wire.read_error(body)
            if sequence == wire.CONNECTION or refused.fatal:
                self._end(refused)
            else:
                self._take_refusal(sequence, refused)
            return
        request = self._in_flight.pop(sequence, None)
        if request is None or kind != request.kind + 1:
            raise BadFrame(f"a {kind.name} answers nothing that was asked")
        self._deadline = monotonic() + self._timeout
        self._backoff = BACKOFF_MIN_S
        if request.tally is None:
            request.answer = body
        else:
            request.tally.add(request.body, wire.read_ack(body) is Outcome.DUPLICATE)

    def _take_refusal(self, sequence: int, refused: Refused) -> None:
        request = self._in_flight.pop(sequence, None)
        if request is None:
            raise BadFrame("an ERROR answers nothing that was asked")
        if request.tally is None:
            request.answer = refused
        elif refused.retryable:
            self._problem = refused
            pause = max(refused.retry_after_ms / 1000, self._backoff)
            self._backoff = min(self._backoff * 2, BACKOFF_MAX_S)
            self._postponed.append(_Postponed(monotonic() + pause, request))
        else:
            self._refusals.append(refused)

    def _end(self, refused: Refused) -> None:
        """The daemon's last words on this connection."""
        self._disconnect()
        self._problem = refused
        if not refused.retryable:
            raise refused
        self._backoff = max(self._backoff, refused.retry_after_ms / 1000)

    def _lose(self, lost: Lost) -> None:
        """The connection broke. What the daemon said before that still counts."""
        link, self._link = self._link, None
        assert link is not None
        self._problem = Unreachable(str(lost))
        try:
            while frames := link.receive(0):
                for kind, sequence, body in frames:
                    self._take(kind, sequence, body)
        except Lost:
            pass  # Now there is nothing more to read.
        finally:
            link.close()

    def _disconnect(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _reconnect(self) -> None:
        """One try, and after it a pause if it failed; then everything unanswered again."""
        self._connect(self._deadline)
        if self._link is None:
            self._back_off()
            return
        requests = list(self._in_flight.values())
        self._in_flight.clear()
        for request in requests:
            self._send(request)

    def _connect_at_first(self, wait: float) -> None:
        started = monotonic()
        while True:
            self._connect(started + self._timeout)
            if self._link is not None:
                return
            # A daemon that is there and says "later", or one that ends while its socket stays
            # (systemd holds it for the next one), is worth more patience than none at all.
            is_there = self._was_cut or isinstance(self._problem, Refused)
            patience = max(self._timeout, wait) if is_there else wait
            self._deadline = started + patience
            if monotonic() >= self._deadline:
                raise self._problem
            self._back_off()

    def _connect(self, deadline: float) -> None:
        """Tries each place once. NotAllowed and a refusal that will not pass are raised."""
        reasons = []
        denied: NotAllowed | None = None
        self._was_cut = False
        for path in self._places:
            try:
                self._link = Link(path, CLIENT_NAME, deadline)
            except NotAllowed as problem:
                denied = problem
            except Refused as refused:
                self._end(refused)
                return
            except Lost as lost:
                reasons.append(str(lost))
                self._was_cut = self._was_cut or isinstance(lost, Cut)
            else:
                return
        if denied is not None:
            raise denied
        self._problem = Unreachable("no daemon: " + "; ".join(reasons))

    def _back_off(self) -> None:
        pause = min(self._backoff, max(self._deadline - monotonic(), 0.0))
        # Clients that lost the same daemon do not all come back at the same moment.
        sleep(pause * (0.5 + os.urandom(1)[0] / 510))
        self._backoff = min(self._backoff * 2, BACKOFF_MAX_S)

    def _give_up(self) -> None:
        """Nothing was acknowledged for the whole of the timeout."""
        problem = self._problem
        if self.unacknowledged:
            problem.add_note(f"{self.unacknowledged} runs are not acknowledged")
        raise problem

    def _raise_refusal(self) -> None:
        if self._refusals:
            raise self._refusals.popleft()
