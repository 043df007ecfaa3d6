"""Events: what the event log records. Ended slices, breakers, stores, queues, the daemon's state,
notices.

Types and pure functions; actors/observers/event_log.py collects the events, daemon/events/ writes
them. An event holds neither a payload nor a reference to a run's bytes, because it may outlive them
in memory. All kinds share one flat row, so that a directory of files is one table; columns that a
kind does not have are null.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple
from zlib import crc32

from actors.model.outcomes import Conclusion
from actors.model.slices import ERROR_TEXT_MAX, Slice
from actors.ports.tiers import Leased

Outcome = Literal["delivered", "retry", "dead"]
ColumnType = Literal["text", "whole", "real"]

COLUMNS: Final[dict[str, ColumnType]] = {
    "kind": "text",
    "at_ms": "whole",
    "host": "text",
    "pid": "whole",
    "queue": "text",
    "flow": "text",
    "action": "text",
    "priority": "whole",
    "destination": "text",
    "run": "text",
    "items": "whole",
    "bytes": "whole",
    "attempt": "whole",
    "outcome": "text",
    "error": "text",
    "enqueued_ms": "whole",
    "started_ms": "whole",
    "wait_ms": "whole",
    "processing_ms": "real",
    "batch_items": "whole",
    "sample": "real",
    "state": "text",
    "count": "whole",
    "workers": "whole",
    "batch_max": "whole",
    "rate_limit": "real",
    "warm_max_items": "whole",
}
"""The columns of a row, in this order; docs/operations.md explains each."""


@dataclass(frozen=True, slots=True)
class Sending:
    """The send that produced the outcomes."""

    destination: str
    batch_items: int
    started_ms: int | None = None
    """None: consumers pulled the items, and when they began is unknown."""
    processing_ms: float | None = None


class SliceEnded(NamedTuple):
    """One outcome of items of one slice."""

    at_ms: int
    queue: str
    flow: str
    action: str
    priority: int
    run_id: bytes
    items: int
    bytes: int
    attempt: int
    """Which attempt this was, from 1."""
    outcome: Outcome
    error: str | None
    enqueued_ms: int
    ready_ms: int
    """Since when it waited only for a worker."""
    sending: Sending

    @property
    def wait_ms(self) -> int | None:
        started_ms = self.sending.started_ms
        # Clocks of two hosts differ, and clocks are set: a negative wait becomes 0.
        return None if started_ms is None else max(0, started_ms - self.ready_ms)

    def row(self) -> dict[str, Any]:
        sending = self.sending
        return {
            "kind": "slice",
            "at_ms": self.at_ms,
            "queue": self.queue,
            "flow": self.flow,
            "action": self.action,
            "priority": self.priority,
            "destination": sending.destination,
            "run": self.run_id.hex(),
            "items": self.items,
            "bytes": self.bytes,
            "attempt": self.attempt,
            "outcome": self.outcome,
            "error": self.error,
            "enqueued_ms": self.enqueued_ms,
            "started_ms": sending.started_ms,
            "wait_ms": self.wait_ms,
            "processing_ms": sending.processing_ms,
            "batch_items": sending.batch_items,
        }


class BreakerChanged(NamedTuple):
    at_ms: int
    destination: str
    phase: str
    failures: int
    error: str

    def row(self) -> dict[str, Any]:
        return {
            "kind": "breaker",
            "at_ms": self.at_ms,
            "destination": self.destination,
            "state": self.phase,
            "count": self.failures,
            "error": self.error or None,
        }


class StoreChanged(NamedTuple):
    """A store went away or came back; seen within a second."""

    at_ms: int
    store: str
    is_away: bool

    def row(self) -> dict[str, Any]:
        state = "away" if self.is_away else "back"
        return {"kind": "store", "at_ms": self.at_ms, "destination": self.store, "state": state}


class DaemonChanged(NamedTuple):
    at_ms: int
    state: Literal["started", "draining", "stopped"]

    def row(self) -> dict[str, Any]:
        return {"kind": "daemon", "at_ms": self.at_ms, "state": self.state}


class QueueStaffed(NamedTuple):
    """A queue got workers: how many, and the other settings that determine its pace."""

    at_ms: int
    queue: str
    destination: str
    workers: int
    batch_max: int
    rate_limit: float
    warm_max_items: int

    def row(self) -> dict[str, Any]:
        return {"kind": "queue", **self._asdict()}


class NoticeMade(NamedTuple):
    """A notice was made, or could not be delivered."""

    at_ms: int
    notification: str
    state: Literal["dead", "trigger_failed", "not_sent"]
    source: str
    number: int
    """Items; for a trigger, how many times it has failed."""
    error: str

    def row(self) -> dict[str, Any]:
        return {
            "kind": "notice",
            "at_ms": self.at_ms,
            "queue": None if self.state == "trigger_failed" else self.source,
            "destination": self.notification,
            "state": self.state,
            "count": self.number,
            "error": self.error or None,
        }


class TriggerFailed(NamedTuple):
    at_ms: int
    trigger: str
    queue: str
    error: str

    def row(self) -> dict[str, Any]:
        return {
            "kind": "trigger",
            "at_ms": self.at_ms,
            "queue": self.queue,
            "destination": self.trigger,
            "state": "failed",
            "error": self.error[:ERROR_TEXT_MAX],
        }


class EventsLost(NamedTuple):
    """`number` events were not written."""

    at_ms: int
    number: int

    def row(self) -> dict[str, Any]:
        return {"kind": "lost", "at_ms": self.at_ms, "count": self.number}


Event = (
    SliceEnded
    | BreakerChanged
    | StoreChanged
    | DaemonChanged
    | QueueStaffed
    | NoticeMade
    | TriggerFailed
    | EventsLost
)


def is_sampled(run_id: bytes, share: float) -> bool:
    """Whether a run is in the sample: the same answer on every host and at every attempt."""
    return share >= 1 or crc32(run_id) < share * 2**32


def slices_ended(
    queue: str,
    sending: Sending,
    pairs: Sequence[tuple[Leased, Conclusion]],
    at_ms: int,
    share: float,
) -> list[SliceEnded]:
    """The events of a batch: one per outcome of each slice whose run is in the sample. Items given
    back untried have no outcome."""
    events: list[SliceEnded] = []
    for leased, conclusion in pairs:
        piece = leased.slice
        if not is_sampled(piece.run.head.run_id, share):
            continue
        if conclusion.delivered:
            items = conclusion.delivered.bit_count()
            events.append(_ended(queue, sending, piece, items, "delivered", None, at_ms))
        for again in conclusion.again:
            if again.attempt > piece.attempt:
                error = again.errors[-1].text
                events.append(_ended(queue, sending, piece, again.items, "retry", error, at_ms))
        for dead in conclusion.dead:
            error = dead.errors[-1].text
            events.append(_ended(queue, sending, piece, dead.items, "dead", error, at_ms))
    return events


def _ended(
    queue: str,
    sending: Sending,
    piece: Slice,
    items: int,
    outcome: Outcome,
    error: str | None,
    at_ms: int,
) -> SliceEnded:
    run, head = piece.run, piece.run.head
    return SliceEnded(
        at_ms=at_ms,
        queue=queue,
        flow=head.flow,
        action=head.action,
        priority=head.priority,
        run_id=head.run_id,
        items=items,
        bytes=items * run.item_bytes,
        attempt=piece.attempt + 1,
        outcome=outcome,
        error=None if error is None else error[:ERROR_TEXT_MAX],
        enqueued_ms=head.enqueued_ms,
        ready_ms=max(head.enqueued_ms, head.due_ms, piece.due_ms),
        sending=sending,
    )
