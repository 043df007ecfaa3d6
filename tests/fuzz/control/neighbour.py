"""A client that does nothing wrong, beside a fuzzer: it pushes to a queue of its own, takes the
items out again, and is served all the time.

It runs in a thread. Every item that was acknowledged comes back, and comes once unless the daemon
was killed in between.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from forebay import Client, connect

QUEUE: Final = "beside"
ITEMS: Final = 3
PAUSE_S: Final = 0.05
PATIENCE_S: Final = 60.0


class Neighbour:
    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()
        self._turn = threading.Lock()
        self._pushed = 0
        self._seen: Counter[bytes] = Counter()
        self._was_killed = False
        self._problem: Exception | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @contextmanager
    def paused(self, *, is_exact: bool) -> Iterator[None]:
        """While the daemon restarts. Not exact: what was under way may come twice."""
        with self._turn:
            self._was_killed |= not is_exact
            yield

    def check(self) -> None:
        if self._problem is not None:
            raise AssertionError("the neighbour is not served") from self._problem

    def end(self) -> None:
        """All its items have come back."""
        self.abandon()
        self.check()
        with connect(self._socket, timeout=PATIENCE_S, wait=PATIENCE_S) as client:
            while len(self._seen) < self._pushed and self._take(client, wait_s=PATIENCE_S):
                pass
        assert len(self._seen) == self._pushed, (len(self._seen), self._pushed)
        twice = [payload for payload, count in self._seen.items() if count > 1]
        assert self._was_killed or not twice, twice

    def abandon(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            self._thread = None

    def _work(self) -> None:
        while not self._is_over.wait(PAUSE_S):
            try:
                with self._turn, connect(self._socket, timeout=PATIENCE_S, wait=1) as client:
                    self._round(client)
            except Exception as problem:
                self._problem = problem
                return

    def _round(self, client: Client) -> None:
        payloads = [f"item {self._pushed + n}" for n in range(ITEMS)]
        client.push(QUEUE, payloads)
        self._pushed += ITEMS
        self._take(client, wait_s=PATIENCE_S)

    def _take(self, client: Client, wait_s: float) -> int:
        with client.lease(QUEUE, wait_s=wait_s, lease_s=600) as lease:
            found = [item.payload for item in lease]
        self._seen.update(found)
        return len(found)
