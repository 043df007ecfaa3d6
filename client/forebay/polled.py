"""Items of a delayed queue as they were polled, or read, with the times that tell a redelivery."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from forebay.item import Item
from forebay.lease_frames import LeasedRun
from forebay.locks import Lock
from forebay.run import read_head


@dataclass(frozen=True, slots=True)
class Polled:
    """An item that is the caller's until `until_ms`."""

    item: Item
    lock: Lock
    until_ms: int
    scheduled_at_ms: int
    """When it was due this time."""
    scheduled_at_initially_ms: int
    """When it was due for the first time."""

    @property
    def payload(self) -> bytes:
        return self.item.payload

    @property
    def key(self) -> str | None:
        return self.item.key

    @property
    def attempt(self) -> int:
        """Attempts that were made before, and failed: it was refused, or its lease ran out."""
        return self.item.attempt

    @property
    def is_redelivery(self) -> bool:
        """Whether an attempt was made before. The times do not say so: an operator may have put the
        item off."""
        return self.attempt > 0


class Batch(Sequence[Polled]):
    """What was polled together, under one lock; falsy if nothing was due."""

    def __init__(self, lock: Lock, polled: Sequence[Polled]) -> None:
        self.lock = lock
        self._polled = list(polled)

    def __len__(self) -> int:
        return len(self._polled)

    def __iter__(self) -> Iterator[Polled]:
        return iter(self._polled)

    @overload
    def __getitem__(self, index: int) -> Polled: ...

    @overload
    def __getitem__(self, index: slice) -> list[Polled]: ...

    def __getitem__(self, index: int | slice) -> Polled | list[Polled]:
        return self._polled[index]


@dataclass(frozen=True, slots=True)
class Stored:
    """The item that has a key, as it is now; it is not taken."""

    id: str
    key: str
    payload: bytes
    state: str
    """waiting, started, or dead."""
    attempt: int
    scheduled_at_ms: int
    scheduled_at_initially_ms: int


def polled(run: LeasedRun, items: Sequence[Item], lock: Lock) -> Iterator[Polled]:
    head = read_head(run.run)
    first_ms = head.due_ms or head.enqueued_ms
    scheduled_ms = run.due_ms or first_ms
    times = (run.until_ms, scheduled_ms, min(first_ms, scheduled_ms))
    return (Polled(item, lock, *times) for item in items)


def stored(holder: Mapping[str, Any], shown: Mapping[str, Any]) -> Stored:
    payload = shown.get("payload")
    return Stored(
        shown["id"],
        shown["key"] or "",
        base64.b64decode(shown.get("payload_b64", "")) if payload is None else payload.encode(),
        holder["state"],
        shown["attempt"],
        shown["scheduled_at_ms"],
        shown["scheduled_at_initially_ms"],
    )
