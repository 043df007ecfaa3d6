"""Collects items into runs and submits them.

A run is cut when it has `run_items` items or the next item would take it over `run_bytes`. Nothing
is sent by a timer: an unfinished run waits for more items until `flush`, or the end of the context.
"""

import time
from collections.abc import Iterable, Mapping
from itertools import islice
from types import TracebackType
from typing import Protocol, Self

from forebay.column import OFFSET_BYTES
from forebay.errors import BadRun
from forebay.limits import RUN_ITEMS_MAX
from forebay.run import check_queue_name, encode_run
from forebay.tally import OutcomeCounts, PushResult, Tally


class Submitter(Protocol):
    """The part of a client that a pusher needs."""

    def submit(self, run: bytes, *, window: int, tally: Tally) -> None: ...

    def drain(self) -> object: ...


class Pusher:
    """Made by `Client.pusher`. Leaving the context flushes and waits for all acknowledgements;
    leaving it by an exception does neither."""

    def __init__(
        self,
        client: Submitter,
        queue: str,
        *,
        priority: int,
        due_ms: int,
        delay: float,
        flow: str,
        action: str,
        headers: Mapping[str, str] | None,
        run_items: int,
        run_bytes: int,
        compressed: bool,
        window: int,
        tally: Tally | None = None,
    ) -> None:
        check_queue_name(queue)
        if not 1 <= run_items <= RUN_ITEMS_MAX:
            raise BadRun(f"a run has 1 to {RUN_ITEMS_MAX} items, not {run_items}")
        if window < 1:
            raise ValueError(f"a window has at least 1 run, not {window}")
        if delay < 0 or (delay and due_ms):
            raise ValueError("a delay is not negative, and is not given together with a due time")
        self._client = client
        self._queue = queue
        self._priority = priority
        self._due_ms = due_ms
        self._delay = delay
        self._flow = flow
        self._action = action
        self._headers = headers
        self._run_items = run_items
        self._run_bytes = run_bytes
        self._compressed = compressed
        self._window = window
        self._tally = tally or Tally()
        self._payloads: list[bytes] = []
        self._keys: list[bytes] = []
        self._size = 0
        """Of the body of the run that has begun, before compression."""
        self._start_run()

    @property
    def result(self) -> PushResult:
        """What is acknowledged so far."""
        return self._tally.result()

    @property
    def outcomes(self) -> OutcomeCounts:
        """The outcomes of the items so far, in a queue with unique keys."""
        return self._tally.outcomes

    def send(self, payload: bytes | str, key: bytes | str | None = None) -> None:
        """Adds an item; submits the run before it if that is full."""
        data = payload.encode() if isinstance(payload, str) else payload
        mark = key.encode() if isinstance(key, str) else key or b""
        # A run without keys is counted a little too long: 4 bytes an item.
        size = len(data) + len(mark) + 2 * OFFSET_BYTES
        if self._size + size > self._run_bytes:
            self.flush()
        self._payloads.append(data)
        self._keys.append(mark)
        self._size += size
        if len(self._payloads) >= self._run_items:
            self.flush()

    def send_all(
        self, payloads: Iterable[bytes | str], keys: Iterable[bytes | str | None] | None = None
    ) -> None:
        """Adds items, with one key each if `keys` is given.

        Without keys whole runs are cut at once where they fit: 0.1 µs an item instead of 0.4.
        """
        if keys is None:
            rest = iter(payloads)
            while batch := list(islice(rest, self._run_items)):
                self._send_batch(batch)
        else:
            for payload, key in zip(payloads, keys, strict=True):
                self.send(payload, key)

    def _send_batch(self, batch: list[bytes | str]) -> None:
        """Adds at most `run_items` items, as one run if that can be."""
        data = [item.encode() if isinstance(item, str) else item for item in batch]
        size = sum(map(len, data)) + 2 * OFFSET_BYTES * (len(data) + 1)
        if self._payloads or len(data) < self._run_items or size > self._run_bytes:
            for item in data:
                self.send(item)
            return
        self._payloads = data
        self.flush()

    def flush(self) -> None:
        """Submits the run that has begun, if any, and does not wait for its acknowledgement."""
        if not self._payloads:
            return
        due_ms = self._due_ms
        now_ms = time.time_ns() // 1_000_000
        if self._delay:
            due_ms = now_ms + round(self._delay * 1000)
        run = encode_run(
            self._payloads,
            queue=self._queue,
            keys=self._keys if any(self._keys) else None,
            flow=self._flow,
            action=self._action,
            priority=self._priority,
            due_ms=due_ms,
            enqueued_ms=now_ms,
            headers=self._headers,
            compressed=self._compressed,
        )
        self._start_run()
        self._client.submit(run, window=self._window, tally=self._tally)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.flush()
            self._client.drain()

    def _start_run(self) -> None:
        self._payloads = []
        self._keys = []
        self._size = 2 * OFFSET_BYTES
