"""Requests in flight on a connection that reconnects: the part of the client that sends again.

The exchange keeps a run, pushed or staged, until the daemon has acknowledged it or refused it for
good. After a lost connection it sends the unanswered requests again on the next one, in order. A
request that was refused temporarily is sent again after a pause. When `timeout` seconds pass
without an answer, it raises the last problem; unanswered runs stay, and the next call goes on with
them. Other requests are forgotten then, because no caller waits for them.

Use it from one thread at a time: nothing here is locked, and nothing happens between calls.
"""

import os
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, NamedTuple

import forebay.wire as wire
from forebay.errors import BadFrame, ForebayError, Refused, Unreachable
from forebay.keyed import is_decided, read_decided
from forebay.limits import RUN_RAW_BYTES_MAX
from forebay.link import Cut, Link, Lost, NotAllowed
from forebay.run import read_count
from forebay.tally import Tally
from forebay.wire import Buffer, Kind, Outcome

BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0
FAREWELL_S: Final = 5.0
WINDOW_RUNS: Final = 8
"""How many runs in flight keep the disk busy."""

CLIENT_NAME: Final = "forebay-python"


class _Request:
    """An unanswered request, in a form that can be sent again."""

    __slots__ = (
        "answer",
        "body",
        "insists",
        "is_forgotten",
        "kind",
        "postponed",
        "prefix",
        "tally",
    )

    def __init__(
        self,
        kind: Kind,
        body: Buffer,
        *,
        prefix: bytes = b"",
        tally: Tally | None = None,
        insists: bool = False,
    ) -> None:
        self.kind = kind
        self.prefix = prefix
        """The bytes before the body, kept apart so that the body is not copied."""
        self.body = body
        self.tally = tally
        """For a run: where it is counted when it is acknowledged."""
        self.insists = insists
        """A retryable refusal does not count as an answer: the request is sent again."""
        self.postponed: tuple[float, Refused] | None = None
        """When it was last refused temporarily, and why."""
        self.answer: bytes | Refused | None = None
        self.is_forgotten = False
        """The caller no longer waits for the answer."""


class _Postponed(NamedTuple):
    not_before: float
    request: _Request


class Exchange:
    def __init__(self, places: Iterable[Path], *, timeout: float, wait: float) -> None:
        """Connects. `wait` is how long the daemon may take to appear."""
        self._places = list(places)
        self._timeout = timeout
        self._link: Link | None = None
        self._sequence = 0
        self._in_flight: dict[int, _Request] = {}
        self._postponed: deque[_Postponed] = deque()
        self._refusals: deque[Refused] = deque()
        self._problem: ForebayError = Unreachable("nothing was tried")
        """The last problem."""
        self._backoff = BACKOFF_MIN_S
        self._was_cut = False
        """At the last attempt to connect a process listened, but sent no WELCOME."""
        self._is_closed = False
        self._deadline = 0.0
        self._patience = timeout
        """How long the current call waits for the next answer."""
        self._connect_at_first(wait)

    @property
    def path(self) -> Path | None:
        """The socket of the daemon, while there is a connection."""
        return None if self._link is None else self._link.path

    @property
    def max_run_bytes(self) -> int:
        limit = 0 if self._link is None else self._link.welcome.get("max_run_bytes", 0)
        return limit if isinstance(limit, int) and limit > 0 else RUN_RAW_BYTES_MAX

    @property
    def unanswered(self) -> int:
        """How many runs are neither acknowledged nor refused for good."""
        postponed = (request for _, request in self._postponed)
        return sum(each.tally is not None for each in (*self._in_flight.values(), *postponed))

    def push(self, run: Buffer, window: int, tally: Tally) -> None:
        """Sends a run; waits only while `window` requests are unanswered.

        Raises the refusal of an earlier run, if there is one; this run is in flight all the same.
        """
        self._submit(_Request(Kind.PUSH, run, tally=tally, insists=True), window)

    def stage(self, head: bytes, run: Buffer, window: int, tally: Tally) -> None:
        """As `push`, for a run of the stage that `head` names."""
        self._submit(_Request(Kind.STAGE, run, prefix=head, tally=tally, insists=True), window)

    def drain(self) -> None:
        """Waits until no run is unanswered; raises a refusal, if there is one."""
        self._begin(None)
        while self.unanswered:
            self._advance()
        self._raise_refusal()

    def ask(
        self, kind: Kind, body: bytes, *, insists: bool = False, timeout: float | None = None
    ) -> bytes:
        """The body of the answer; raises a refusal. A temporary refusal is raised as well, unless
        the caller insists: then the request is repeated until the timeout."""
        self._begin(timeout)
        request = _Request(kind, body, insists=insists)
        try:
            self._send(request)
            while request.answer is None:
                self._advance(request)
        finally:
            request.is_forgotten = True
        if isinstance(request.answer, Refused):
            raise request.answer
        return request.answer

    def perform(
        self, op: str, members: Mapping[str, Any], *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Sends a CONTROL that may be repeated, until its answer is final."""
        body = wire.pack_json({"op": op, **members})
        return wire.read_json(self.ask(Kind.CONTROL, body, insists=True, timeout=timeout))

    def close(self) -> None:
        """Waits until no run is unanswered, and sends GOODBYE."""
        if self._is_closed:
            return
        self.drain()
        self._is_closed = True
        if self._link is not None:
            # Everything is acknowledged: a lost connection is not an error now.
            with suppress(Lost):
                goodbye = wire.frame(Kind.GOODBYE, self._next_sequence())
                self._link.send([goodbye], monotonic() + FAREWELL_S)
                self._link.receive(FAREWELL_S)
            self._disconnect()

    def abort(self) -> None:
        """Closes at once."""
        self._is_closed = True
        self._disconnect()

    def _begin(self, timeout: float | None) -> None:
        self._patience = self._timeout if timeout is None else timeout
        self._deadline = monotonic() + self._patience

    def _submit(self, request: _Request, window: int) -> None:
        self._begin(None)
        while len(self._in_flight) + len(self._postponed) >= window:
            self._advance()
        self._send(request)
        self._raise_refusal()

    def _send(self, request: _Request) -> None:
        if self._is_closed:
            raise Unreachable("the client is closed")
        sequence = self._next_sequence()
        self._in_flight[sequence] = request
        if self._link is None:
            return
        size = len(request.prefix) + len(request.body)
        head = wire.frame_head(request.kind, sequence, size) + request.prefix
        try:
            self._link.send([head, request.body], self._deadline)
        except Lost as lost:
            self._lose(lost)

    def _next_sequence(self) -> int:
        while True:
            self._sequence = self._sequence % wire.SEQUENCE_MAX + 1
            if self._sequence not in self._in_flight:
                return self._sequence

    def _advance(self, awaited: _Request | None = None) -> None:
        """Waits for one event: answers, the time of a retry, or a new connection. `awaited` is the
        request that the call waits for, if it does not wait for runs."""
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
                if not request.is_forgotten:
                    self._send(request)
                return
            until = min(until, not_before)
        try:
            frames = self._link.receive(until - now)
        except Lost as lost:
            self._lose(lost)
            return
        if not frames and until == self._deadline and self._in_flight:
            self._problem = self._last_refusal(awaited) or Unreachable(
                f"the daemon at {self._link.path} did not answer for {self._patience:g} s"
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
        if request is None or kind != wire.answer_to(request.kind):
            raise BadFrame(f"a {kind.name} answers no request")
        self._deadline = monotonic() + self._patience
        self._backoff = BACKOFF_MIN_S
        if request.tally is None:
            request.answer = body
        elif is_decided(body):
            request.tally.decide(request.body, read_decided(body, read_count(request.body)))
        else:
            request.tally.add(request.body, wire.read_ack(body) is Outcome.DUPLICATE)

    def _last_refusal(self, awaited: _Request | None) -> Refused | None:
        """The newest refusal of an unanswered request during this wait. A daemon without room is
        silent until the queue's `full_timeout`; then the refusal says more than the silence."""
        waits_since = self._deadline - self._patience
        postponed = (request for _, request in self._postponed)
        requests = (awaited,) if awaited else (*self._in_flight.values(), *postponed)
        said = [each.postponed for each in requests if each.postponed and not each.is_forgotten]
        at, refused = max(said, key=lambda each: each[0], default=(0.0, None))
        return refused if at >= waits_since else None

    def _take_refusal(self, sequence: int, refused: Refused) -> None:
        request = self._in_flight.pop(sequence, None)
        if request is None:
            raise BadFrame("an ERROR answers no request")
        if request.insists and refused.retryable:
            self._problem = refused
            request.postponed = monotonic(), refused
            pause = max(refused.retry_after_ms / 1000, self._backoff)
            self._backoff = min(self._backoff * 2, BACKOFF_MAX_S)
            self._postponed.append(_Postponed(monotonic() + pause, request))
        elif request.tally is None:
            request.answer = refused
        else:
            self._refusals.append(refused)

    def _end(self, refused: Refused) -> None:
        """The daemon ended the connection with this error."""
        self._disconnect()
        self._problem = refused
        if not refused.retryable:
            raise refused
        self._backoff = max(self._backoff, refused.retry_after_ms / 1000)

    def _lose(self, lost: Lost) -> None:
        """The connection broke. Answers that the daemon sent before that still count."""
        link, self._link = self._link, None
        assert link is not None
        self._problem = Unreachable(str(lost))
        try:
            while frames := link.receive(0):
                for kind, sequence, body in frames:
                    self._take(kind, sequence, body)
        except Lost:
            pass  # Everything is read.
        finally:
            link.close()

    def _disconnect(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _reconnect(self) -> None:
        """Tries once: on failure it pauses, on success it sends all unanswered requests again."""
        self._connect(self._deadline)
        if self._link is None:
            self._back_off()
            return
        requests = [each for each in self._in_flight.values() if not each.is_forgotten]
        self._in_flight.clear()
        for request in requests:
            self._send(request)

    def _connect_at_first(self, wait: float) -> None:
        started = monotonic()
        while True:
            self._connect(started + self._timeout)
            if self._link is not None:
                return
            # A daemon that refuses temporarily, or one that ends while its socket stays (systemd
            # holds it for the next one), gets more time than one that is not there.
            is_there = self._was_cut or isinstance(self._problem, Refused)
            patience = max(self._timeout, wait) if is_there else wait
            self._deadline = started + patience
            if monotonic() >= self._deadline:
                raise self._problem
            self._back_off()

    def _connect(self, deadline: float) -> None:
        """Tries each place once. Raises NotAllowed, and a refusal that is not temporary."""
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
        """The timeout has passed without an acknowledgement."""
        problem = self._problem
        if self.unanswered:
            problem.add_note(f"{self.unanswered} runs are not acknowledged")
        raise problem

    def _raise_refusal(self) -> None:
        if self._refusals:
            raise self._refusals.popleft()
