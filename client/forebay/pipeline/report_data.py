"""What the report's page shows: small, frozen, and made of plain values."""

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.pipeline.sizing import QueueLoad


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds; None: nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Step:
    """A step of time of one queue."""

    at_ms: int
    queue: str
    arrived: float
    delivered: float
    retried: float
    dead: float
    wait_p95_ms: float | None
    processing_p95_ms: float | None


@dataclass(frozen=True, slots=True)
class Flow:
    queue: str
    flow: str
    tries: float
    delivered: float
    retried: float
    dead: float
    wait: Percentiles
    processing: Percentiles


@dataclass(frozen=True, slots=True)
class ErrorKind:
    queue: str
    destination: str
    error: str
    retried: float
    dead: float
    last_ms: int


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which something was not there."""

    what: str
    """breaker, store or daemon."""
    host: str
    name: str
    from_ms: int
    to_ms: int
    error: str | None
    is_over: bool = True
    """False: nothing is known after `to_ms`, the last event of that daemon's life."""


@dataclass(frozen=True, slots=True)
class ReportData:
    title: str
    first_ms: int
    last_ms: int
    step_s: int
    hosts: int
    events: int
    lost: int
    """Events that daemons could not write."""
    sample: float
    """The smallest share of runs that a host has noted."""
    steps: tuple[Step, ...]
    flows: tuple[Flow, ...]
    flows_total: int
    errors: tuple[ErrorKind, ...]
    gaps: tuple[Gap, ...]
    gaps_total: int
    loads: tuple[QueueLoad, ...]
    tables: Mapping[str, str]
    """Where the whole tables are."""

    @property
    def span_s(self) -> float:
        return max(1.0, (self.last_ms - self.first_ms) / 1000)
