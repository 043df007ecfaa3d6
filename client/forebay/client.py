"""A blocking client: pushes runs, many in flight, and does not lose one.

The client keeps a run until the daemon has acknowledged it, or has refused it for good (the client
raises `Refused`). After a lost connection or a temporary refusal (`QUEUE_FULL`, `DISK_FULL`,
`DRAINING` and the like) it sends the same bytes again; the daemon stores them once, whichever try
arrived. When `timeout` seconds pass without any acknowledgement it raises `Refused` or
`Unreachable`; unacknowledged runs stay, and `drain` tries them again.

    with forebay.connect() as client:
        client.push("crm", (json.dumps(row) for row in rows))

A client can also lease items (`lease`) and control the daemon (`control`). The other parts of the
client have their own modules: `pusher` (items with unique keys), `writes` (writes that are seen
whole or not at all), `receipts`, `streams` (reading a queue as a stream) and `delayed`.

One thread at a time: nothing here is locked, and nothing happens between calls.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self

import forebay.wire as wire
from forebay.delayed import Delayed
from forebay.errors import BadFrame
from forebay.exchange import WINDOW_RUNS, Exchange
from forebay.lease_frames import LeaseWish
from forebay.leases import WAIT_STEP_S, Lease, take
from forebay.limits import (
    LEASE_ITEMS_DEFAULT,
    LEASE_RUN_BYTES_DEFAULT,
    PING_BYTES_MAX,
    PRIORITY_NORMAL,
    RUN_ITEMS_DEFAULT,
    RUN_RAW_BYTES_DEFAULT,
)
from forebay.places import socket_candidates
from forebay.priorities import resolve
from forebay.pusher import Offers, Pusher, PushOptions
from forebay.receipts import Receipts
from forebay.run import check_queue_name
from forebay.streams import Streams
from forebay.tally import PushResult, Tally
from forebay.wire import Buffer, Kind
from forebay.writes import Writes

TIMEOUT_S: Final = 60.0
"""Longer than the 30 s for which a daemon may hold a push while a queue is full."""


def connect(
    socket: str | os.PathLike[str] | None = None, timeout: float = TIMEOUT_S, *, wait: float = 0.0
) -> "Client":
    """Connects to the daemon at `socket`, at `FOREBAY_SOCKET`, or at one of the default places.

    `wait` is how long the daemon may take to appear: by default it must be there. One that is
    there and is just stopping or starting has `timeout` to come back.
    """
    places = socket_candidates() if socket is None else [Path(socket)]
    return Client(places, timeout=timeout, wait=wait)


class Client(Writes, Receipts, Streams, Offers):
    """A connection to a daemon that mends itself. Made by `connect`; a context manager.

    Leaving the context waits for all acknowledgements; leaving it by an exception does not.
    """

    def __init__(self, places: Iterable[Path], *, timeout: float, wait: float = 0.0) -> None:
        self._timeout = timeout
        self._exchange = Exchange(places, timeout=timeout, wait=wait)
        self._tally = Tally()

    @property
    def path(self) -> Path | None:
        """The socket of the daemon, while there is a connection."""
        return self._exchange.path

    @property
    def max_run_bytes(self) -> int:
        """The largest body of a run, before compression, that the daemon takes."""
        return self._exchange.max_run_bytes

    @property
    def unacknowledged(self) -> int:
        """How many runs have been submitted and neither acknowledged nor refused for good."""
        return self._exchange.unanswered

    def push(
        self,
        queue: str,
        payloads: Iterable[bytes | str],
        *,
        keys: Iterable[bytes | str | None] | None = None,
        priority: int | str = PRIORITY_NORMAL,
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

        `priority` is a number, or a label that the daemon's configuration has. `payloads` may be
        endless: at most `window` runs are kept in memory. What an exception leaves behind is
        stored or not; `Pusher` tells how much was acknowledged by then.
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
        priority: int | str = PRIORITY_NORMAL,
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
        """Collects single items into runs; see `Pusher`. A label is looked up now, once."""
        options = PushOptions(
            priority=resolve(priority, self.priorities),
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
        return Pusher(self._exchange, queue, options, Tally())

    def submit(self, run: Buffer, *, window: int = WINDOW_RUNS, tally: Tally | None = None) -> None:
        """Sends an encoded run; waits only while `window` runs are unacknowledged.

        The bytes are not copied, and must not change before they are acknowledged. The refusal
        of an earlier run may be raised here; this run is in flight all the same.
        """
        self._exchange.push(run, window, tally or self._tally)

    def drain(self) -> PushResult:
        """Waits until nothing is unacknowledged; what `submit` got acknowledged so far."""
        self._exchange.drain()
        return self._tally.result()

    def ping(self, body: bytes = b"") -> float:
        """Seconds that the daemon takes to answer."""
        if len(body) > PING_BYTES_MAX:
            raise ValueError(f"a PING has at most {PING_BYTES_MAX} bytes, not {len(body)}")
        started = monotonic()
        if self._exchange.ask(Kind.PING, body) != body:
            raise BadFrame("a PONG is not what was sent")
        return monotonic() - started

    def stats(self) -> dict[str, Any]:
        """The daemon's report: its books, and those of every queue."""
        return wire.read_json(self._exchange.ask(Kind.STATS, b""))

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
        """Leases at most `items` due items, for `lease_s` seconds (0: the queue's setting).

        Waits for at most `wait_s` seconds for items; the lease may be empty then. Leaving its
        context acknowledges the items; see `Lease`. They are given back when this client's
        connection ends, unless `keep` is set.
        """
        check_queue_name(queue)
        wish = LeaseWish(queue, items, bytes_max, round(lease_s * 1000), 0, consumer, keep)
        step_s = min(WAIT_STEP_S, self._timeout / 2)
        return take(
            self._exchange.ask, wish, wait_s=wait_s, step_s=step_s, patience_s=self._timeout
        )

    def delayed(self, queue: str) -> Delayed:
        """A queue as one of keys and due times, whose items are acknowledged by lock."""
        return Delayed(self, self._exchange.ask, queue, self._timeout)

    def control(self, op: str, /, **fields: Any) -> dict[str, Any]:
        """An operation on the daemon, as docs/protocol.md lists them; `Control` has them typed."""
        return wire.read_json(
            self._exchange.ask(Kind.CONTROL, wire.pack_json({"op": op, **fields}))
        )

    def close(self) -> None:
        """Waits until nothing is unacknowledged, and says GOODBYE."""
        self._exchange.close()

    def abort(self) -> None:
        """Closes at once. Unacknowledged runs are stored or not."""
        self._exchange.abort()

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
