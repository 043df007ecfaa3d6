"""What a daemon says of itself, asked for again and again, and the rates between two answers.

A sample is one STATS, and now and then the queues and breakers, over the Unix socket: no HTTP is
needed. `Asker` blocks, and belongs to one thread. A daemon that is away is asked again, on a new
connection, by the next `sample`. Texts are clean: they are for a screen.
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
"""A daemon that takes longer is as good as away: whoever watches should hear of it."""
QUEUES_S: Final = 5.0
"""Settings and pauses are many bytes and change rarely: they are asked for so often."""
WINDOW_S: Final = 5.0
"""Rates are over so long: a batch that ends now and then does not make them jump."""
COUNTED: Final = ("accepted", "delivered", "dead")
WHOLE: Final = ""
"""The name of all queues together, which no queue has."""


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    """On a clock that is never set."""
    at_ms: int
    report: Mapping[str, Any]
    queues: Mapping[str, Mapping[str, Any]]
    """The objects of `queues.list`, by name."""
    breakers: Sequence[Mapping[str, Any]]

    def books(self, queue: str) -> Mapping[str, int]:
        """Of one queue, or of all together."""
        if queue == WHOLE:
            whole: Mapping[str, int] = self.report["daemon"]
            return whole
        found: Mapping[str, int] = self.report["queues"].get(queue, {})
        return found


@dataclass(frozen=True, slots=True)
class Rates:
    """Items a second."""

    accepted: float
    delivered: float
    dead: float


def rates_between(before: Sample, after: Sample) -> dict[str, Rates]:
    """By queue, and of all together. What goes down, as dead letters that are retried do, did not
    happen backwards: its rate is 0."""
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
    """The latest samples, as far as rates need them."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> None:
        # A gap is a daemon that was away: what came before says nothing about now.
        if self._samples and sample.at_s - self._samples[-1].at_s > 2 * self._window_s:
            self._samples.clear()
        self._samples.append(sample)
        while len(self._samples) > 2 and sample.at_s - self._samples[1].at_s >= self._window_s:
            self._samples.popleft()

    @property
    def span(self) -> tuple[Sample, Sample] | None:
        """The first and the last; None: there is one at most."""
        return (self._samples[0], self._samples[-1]) if len(self._samples) > 1 else None

    def rates(self) -> dict[str, Rates]:
        """Empty: there is nothing to compare with yet."""
        return rates_between(*self.span) if self.span else {}


class Asker:
    def __init__(self, socket: str | None, timeout_s: float = ASK_TIMEOUT_S) -> None:
        self._socket = socket
        self._timeout_s = timeout_s
        self._client: Client | None = None
        self._asked_s = 0.0
        self._queues: dict[str, Mapping[str, Any]] = {}
        self.path = socket or ""
        """Where the daemon was found last."""

    def report(self) -> Sample:
        """The books alone. Raises ForebayError."""
        return self._take(has_queues=False)

    def sample(self, *, fresh: bool = False) -> Sample:
        """All of it; `fresh`: the queues' state as well, although it was asked for just now."""
        if fresh:
            self._asked_s = 0.0
        return self._take(has_queues=True)

    def dead_groups(self, queue: str) -> "Grouped":
        """The dead letters of a queue by error, as far as the daemon sees them in one request."""
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
