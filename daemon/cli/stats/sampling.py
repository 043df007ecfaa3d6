"""Samples a daemon's statistics repeatedly, and computes the rates between two samples.

A sample is one STATS request, and now and then the queues and breakers, over the Unix socket; HTTP
is not needed. `Asker` blocks, and belongs to one thread. If the daemon does not answer, the next
`sample` opens a new connection. Texts are cleaned for display.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from daemon.process.terminal import clean, clean_tree

if TYPE_CHECKING:
    from daemon.cli.dead.groups import Grouped
    from forebay.client import Client

ASK_TIMEOUT_S: Final = 5.0
"""A daemon that takes longer is reported as unavailable."""
QUEUES_S: Final = 5.0
"""How often settings and pauses are fetched: they are large and change rarely."""
WINDOW_S: Final = 5.0
"""Rates cover this long, so that occasional large batches do not make them jump."""
COUNTED: Final = ("accepted", "delivered", "dead")
WHOLE: Final = ""
"""The name for all queues together; not a valid queue name."""


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    """On a monotonic clock."""
    at_ms: int
    report: Mapping[str, Any]
    queues: Mapping[str, Mapping[str, Any]]
    """The objects of `queues.ls`, by name."""
    breakers: Sequence[Mapping[str, Any]]

    def books(self, queue: str) -> Mapping[str, int]:
        """The counts of one queue, or of all together."""
        if queue == WHOLE:
            whole: Mapping[str, int] = self.report["daemon"]
            return whole
        found: Mapping[str, int] = self.report["queues"].get(queue, {})
        return found


@dataclass(frozen=True, slots=True)
class Rates:
    """In items per second."""

    accepted: float
    delivered: float
    dead: float


def rates_between(before: Sample, after: Sample) -> dict[str, Rates]:
    """By queue, and for all together. A count that decreased, such as dead letters after a retry,
    has the rate 0."""
    seconds = after.at_s - before.at_s
    if seconds <= 0:
        return {}
    rates = {}
    for queue in (WHOLE, *after.report["queues"]):
        then, now = before.books(queue), after.books(queue)
        rates[queue] = Rates(
            *(max(0, now.get(name, 0) - then.get(name, 0)) / seconds for name in COUNTED)
        )
    return rates


class Recent:
    """The latest samples that rates need."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)
        while len(self._samples) > 2 and sample.at_s - self._samples[1].at_s >= self._window_s:
            self._samples.popleft()

    def forget(self) -> None:
        """The daemon was unavailable: earlier samples say nothing about the time after that."""
        self._samples.clear()

    @property
    def span(self) -> tuple[Sample, Sample] | None:
        """The first and the last sample; None if there are fewer than two."""
        return (self._samples[0], self._samples[-1]) if len(self._samples) > 1 else None

    def rates(self) -> dict[str, Rates]:
        """Empty if there are fewer than two samples."""
        return rates_between(*self.span) if self.span else {}


class Asker:
    def __init__(self, socket: str | None, timeout_s: float = ASK_TIMEOUT_S) -> None:
        self._socket = socket
        self._timeout_s = timeout_s
        self._client: Client | None = None
        self._asked_s = 0.0
        self._queues: dict[str, Mapping[str, Any]] = {}
        self.path = socket or ""
        """The address at which the daemon was found last."""

    def report(self) -> Sample:
        """Only the counts. Raises ForebayError."""
        return self._take(has_queues=False)

    def sample(self, *, fresh: bool = False) -> Sample:
        """A full sample; `fresh` fetches the queues' state even if it was fetched just now."""
        if fresh:
            self._asked_s = 0.0
        return self._take(has_queues=True)

    def dead_groups(self, queue: str) -> "Grouped":
        """The dead letters of a queue by error, as many as the daemon reads in one request."""
        from daemon.cli.dead.groups import read_groups

        found = read_groups(self._opened().control, {"queue": queue}, letters_max=1)
        return found._replace(
            groups=[replace(group, error=clean(group.error)) for group in found.groups]
        )

    def close(self) -> None:
        if self._client is not None:
            self._client.abort()
            self._client = None

    def _take(self, *, has_queues: bool) -> Sample:
        from forebay.control import Control
        from forebay.errors import ForebayError

        try:
            client = self._opened()
            report = clean_tree(client.stats())
            breakers: Sequence[Mapping[str, Any]] = ()
            if has_queues:
                control = Control(client.control)
                breakers = clean_tree(control.breakers())
                self._look_at_queues(control)
        except ForebayError:
            self.close()
            raise
        at_ms = time.time_ns() // 1_000_000
        return Sample(time.monotonic(), at_ms, report, dict(self._queues), breakers)

    def _look_at_queues(self, control: Any) -> None:
        now_s = time.monotonic()
        if not self._asked_s or now_s - self._asked_s >= QUEUES_S:
            self._queues = {queue["queue"]: queue for queue in clean_tree(control.queues())}
            self._asked_s = now_s

    def _opened(self) -> "Client":
        from forebay.client import connect

        if self._client is None:
            self._client = connect(self._socket, self._timeout_s)
            self.path = str(self._client.path or self.path)
        return self._client
