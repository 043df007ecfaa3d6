"""A delayed queue: items under keys, each due at its time, acknowledged by lock (docs/delayed.md).

    queue = client.delayed("reminders")
    queue.offer("invoice-17", payload, at=datetime(2026, 3, 1, 9, tzinfo=UTC))
    if polled := queue.try_poll():
        remind(polled.payload)
        queue.ack(polled.lock)

A face on offers and leases, which owns nothing. What is polled is held by its lock alone: it
outlives the connection, and its text may be used by another process. What is not acknowledged
within the lease is delivered again, and shows it: `attempt` counts, and `scheduled_at_ms` is later
than `scheduled_at_initially_ms`.

What it can't do: acknowledge some items of a batch and not the others (`Client.lease` can), know
by key what a queue holds whose keys are not unique, and use a lock with another daemon than the
one that gave it.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import forebay.lease_frames as lease_frames
from forebay.errors import BadRun, Refused
from forebay.failure_reason import FailureReason, check_reason
from forebay.item import Item
from forebay.keyed import KeyOutcome
from forebay.lease_frames import LeasedRun, LeaseReport, LeaseWish, Part, What, as_text
from forebay.leases import DELAY_MS_MAX, WAIT_STEP_S, Ask, batches, say, take_runs, unpack
from forebay.limits import LEASE_MS_MAX, LEASES_MAX, PRIORITY_NORMAL
from forebay.locks import Lock, LockLost
from forebay.offers import Offered, Timed
from forebay.polled import Batch, Polled, Stored, polled, stored
from forebay.run import check_queue_name
from forebay.wire import Kind

At = datetime | timedelta | int | None
"""When an item is due: a moment (with its zone), so long from now, milliseconds since 1970, or at
once."""
READ_TRIES: Final = 3
"""An item that is replaced or done between two requests is looked for again."""


class Offering(Protocol):
    """What it needs of a client, beside asking."""

    def offer(
        self, queue: str, key: bytes | str, payload: bytes | str, **options: Any
    ) -> KeyOutcome: ...

    def offer_timed(
        self, queue: str, items: Iterable[Timed], **options: Any
    ) -> list[KeyOutcome]: ...

    def key_show(self, queue: str, key: bytes | str) -> dict[str, Any]: ...

    def key_drop(self, queue: str, key: bytes | str) -> dict[str, Any]: ...

    def control(self, op: str, /, **fields: Any) -> dict[str, Any]: ...


class Delayed:
    """One queue of a client's. Made by `Client.delayed`."""

    def __init__(self, client: Offering, ask: Ask, queue: str, patience_s: float) -> None:
        check_queue_name(queue)
        self.queue = queue
        self._client = client
        self._ask = ask
        self._patience_s = patience_s
        self._has_keys = False
        """It is known that the queue's keys are unique."""

    def offer(
        self, key: bytes | str, payload: bytes | str, at: At = None, **options: Any
    ) -> KeyOutcome:
        """Offers an item that is due at a time. The queue's `unique` decides the outcome.
        Options as for `Client.offer`: `only_if`, `priority`, `headers` and the like."""
        return self._client.offer(self.queue, key, payload, due_ms=due_ms_of(at), **options)

    def offer_many(
        self,
        items: Iterable[Offered | tuple[bytes | str | None, bytes | str, At]],
        at: At = None,
        *,
        priority: int | str = PRIORITY_NORMAL,
        headers: Mapping[str, str] | None = None,
    ) -> list[KeyOutcome]:
        """Offers items, (key, payload) or (key, payload, at) each; returns their outcomes in order.

        Items that follow each other and are due at the same time are one run: a thousand of those
        cost little more than one.
        """
        due_ms = due_ms_of(at)
        timed = (
            (each[0], each[1], due_ms_of(each[2]) if len(each) == 3 else due_ms) for each in items
        )
        return self._client.offer_timed(self.queue, timed, priority=priority, headers=headers)

    def try_poll(
        self, *, lease_s: float = 0.0, wait_s: float = 0.0, consumer: str = ""
    ) -> Polled | None:
        """The next item that is due, for `lease_s` seconds (0: the queue's setting); None if no
        item is due within `wait_s`."""
        batch = self.try_poll_many(1, lease_s=lease_s, wait_s=wait_s, consumer=consumer)
        return batch[0] if batch else None

    def try_poll_many(
        self, items: int, *, lease_s: float = 0.0, wait_s: float = 0.0, consumer: str = ""
    ) -> Batch:
        """At most `items` items that are due, under one lock, which acknowledges all of them.
        Falsy if nothing is due."""
        wish = LeaseWish(
            self.queue,
            items,
            lease_ms=round(lease_s * 1000),
            consumer=consumer,
            keep=True,
            times=True,
        )
        step_s = min(WAIT_STEP_S, self._patience_s / 2)
        runs = self._readable(take_runs(self._ask, wish, wait_s=wait_s, step_s=step_s))
        lock = Lock(self.queue, tuple(run.token for run, _ in runs))
        return Batch(lock, [one for run, unpacked in runs for one in polled(run, unpacked, lock)])

    def ack(self, lock: Lock | str, result: Any = "") -> None:
        """All items under the lock are done. LockLost if it is too late to say so. `result` as for
        `Lease.ack`."""
        self._settle(lock, Part(What.DELIVERED, 0, as_text(result)))

    def nack(
        self,
        lock: Lock | str,
        delay_s: float | None = None,
        error: str = "",
        permanent: bool | None = None,
        reason: FailureReason = "application",
    ) -> None:
        """All items under the lock have failed; as `Lease.nack`."""
        if delay_s is not None and not 0 <= delay_s * 1000 <= DELAY_MS_MAX:
            raise ValueError(f"a delay of {delay_s} s cannot be")
        check_reason(reason)
        delay_ms = None if delay_s is None else round(delay_s * 1000)
        is_permanent = reason == "business" if permanent is None else permanent
        self._settle(lock, Part(What.FAILED, 0, error, delay_ms, is_permanent, reason))

    def extend(self, lock: Lock | str, seconds: float) -> None:
        """The lock is good for so long from now. LockLost if it is too late."""
        own, lease_ms = self._own(lock), round(seconds * 1000)
        if not 1 <= lease_ms <= LEASE_MS_MAX:
            raise ValueError(f"a lease of {seconds} s cannot be")
        held: list[bool] = []
        for at in range(0, len(own.tokens), LEASES_MAX):
            some = own.tokens[at : at + LEASES_MAX]
            body = lease_frames.pack_extend(self.queue, lease_ms, some)
            held += say(self._ask, Kind.EXTEND, body, len(some), self._patience_s)
        check_held(own, held)

    def read(self, key: bytes | str) -> Stored | None:
        """The item that has a key, without taking it; None if the key is free, or its item is
        done."""
        self._check_keys()
        for _ in range(READ_TRIES):
            holder = self._holder(key)
            if holder is None or holder["state"] not in ("waiting", "started", "dead"):
                return None
            try:
                shown = self._client.control("items.show", id=holder["id"], whole=True)
            except Refused as refused:
                if refused.code != "NOT_FOUND":
                    raise
                # It has gone since it was said who has the key.
                continue
            return stored(holder, shown)
        return None

    def contains(self, key: bytes | str) -> bool:
        """Whether an item under this key waits, is leased, or is a dead letter."""
        self._check_keys()
        holder = self._holder(key)
        return holder is not None and holder["state"] not in ("done", "unreadable")

    def drop(self, key: bytes | str) -> bool:
        """Deletes the item that waits under a key; False if the key is free. Refused if the item
        is leased, or a dead letter."""
        self._check_keys()
        try:
            self._client.key_drop(self.queue, key)
        except Refused as refused:
            if refused.code != "NOT_FOUND":
                raise
            return False
        return True

    def _holder(self, key: bytes | str) -> dict[str, Any] | None:
        try:
            return self._client.key_show(self.queue, key)
        except Refused as refused:
            if refused.code != "NOT_FOUND":
                raise
            return None

    def _settle(self, lock: Lock | str, part: Part) -> None:
        own = self._own(lock)
        held: list[bool] = []
        for some in batches([LeaseReport(token, (part,)) for token in own.tokens]):
            body = lease_frames.pack_settle(self.queue, some)
            held += say(self._ask, Kind.SETTLE, body, len(some), self._patience_s)
        check_held(own, held)

    def _own(self, lock: Lock | str) -> Lock:
        own = Lock.parse(lock) if isinstance(lock, str) else lock
        if own.queue != self.queue:
            raise ValueError(f"lock {own} is not of the queue {self.queue}")
        return own

    def _readable(self, runs: Sequence[LeasedRun]) -> list[tuple[LeasedRun, list[Item]]]:
        """What cannot be unpacked is said to have failed, once and for all."""
        readable = []
        for run in runs:
            try:
                readable.append((run, unpack(run)))
            except BadRun as problem:
                part = Part(What.FAILED, 0, f"cannot be unpacked: {problem}", None, True)
                body = lease_frames.pack_settle(self.queue, [LeaseReport(run.token, (part,))])
                say(self._ask, Kind.SETTLE, body, 1, self._patience_s)
        return readable

    def _check_keys(self) -> None:
        """A queue whose keys are not unique cannot tell who has one: raise, do not say "no"."""
        if self._has_keys:
            return
        settings = self._client.control("queue.show", queue=self.queue)["settings"]
        if settings.get("unique", "off") == "off":
            raise ValueError(f"the keys of {self.queue} are not unique: its `unique` is off")
        self._has_keys = True


def check_held(lock: Lock, held: Sequence[bool]) -> None:
    if not all(held):
        raise LockLost(lock, held.count(False))


def due_ms_of(at: At) -> int:
    """Milliseconds since 1970; 0: at once."""
    if at is None or isinstance(at, int):
        return at or 0
    if isinstance(at, timedelta):
        try:
            at = datetime.now(UTC) + at
        except OverflowError:
            raise ValueError(f"{at} from now is out of range") from None
    if at.tzinfo is None:
        raise ValueError("a time without a zone may be any: give it one")
    return round(at.timestamp() * 1000)
