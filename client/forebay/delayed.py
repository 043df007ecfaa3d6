"""A delayed queue: items under keys, each due at its time, acknowledged by lock (docs/delayed.md).

    queue = client.delayed("reminders")
    queue.offer("invoice-17", payload, at=datetime(2026, 3, 1, 9, tzinfo=UTC))
    if polled := queue.try_poll():
        remind(polled.payload)
        queue.ack(polled.lock)

`Delayed` wraps offers and leases and owns nothing. Only its lock holds a polled item: the lock
outlives the connection, and another process may use its text. An item that is not acknowledged
within the lease is delivered again. A redelivery shows: `attempt` has grown, and `scheduled_at_ms`
is later than `scheduled_at_initially_ms`.

It cannot acknowledge only some items of a batch (`Client.lease` can), look up keys in a queue whose
keys are not unique, or use a lock with a daemon other than the one that gave it.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, Self, overload

import forebay.lease_frames as lease_frames
from forebay.errors import BadRun, LeaseLost, Refused
from forebay.item import FailureReason, Item, check_reason
from forebay.keyed import KeyOutcome
from forebay.lease_frames import TOKEN_MAX, LeasedRun, LeaseReport, LeaseWish, Part, What, as_text
from forebay.leases import DELAY_MS_MAX, WAIT_STEP_S, Ask, batches, say, take_runs, unpack
from forebay.limits import LEASE_MS_MAX, LEASES_MAX, PRIORITY_NORMAL
from forebay.pusher import Offered, Timed
from forebay.run import check_queue_name, read_head
from forebay.wire import Kind

At = datetime | timedelta | int | None
"""When an item is due: a moment with its time zone, a time from now, milliseconds since 1970, or
None for at once."""
READ_TRIES: Final = 3
"""How often `read` looks for an item that is replaced or done between its two requests."""
_LOCK: Final = re.compile(r"([0-9]{1,20}(?:\+[0-9]{1,20})*)\.(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Lock:
    """The lock of polled items, with which any process can acknowledge them.

    A lock names the queue and its leases, so its text is enough to acknowledge: `17.crm`, or
    `17+18.crm` if items of several runs were polled together. REST calls a text with one lease a
    token. A lock is valid until its lease runs out or the daemon that gave it ends.
    """

    queue: str
    tokens: tuple[int, ...]

    def __str__(self) -> str:
        return f"{'+'.join(map(str, self.tokens))}.{self.queue}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError if the text is not a valid lock."""
        match = _LOCK.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a valid lock")
        tokens, queue = tuple(map(int, match[1].split("+"))), match[2]
        try:
            check_queue_name(queue)
        except BadRun as problem:
            raise ValueError(f"{text!r} is not a valid lock: {problem}") from None
        if max(tokens) > TOKEN_MAX or len(set(tokens)) != len(tokens):
            raise ValueError(f"{text!r} is not a valid lock")
        return cls(queue, tokens)


class LockLost(LeaseLost):
    """The lock was used before or has run out: other consumers may have the items. Nothing was
    changed under the lost leases."""

    def __init__(self, lock: Lock, lost: int) -> None:
        text = f"lock {lock} is lost: it has run out, was used before, or never existed"
        if lost < len(lock.tokens):
            text = f"{lost} of the {len(lock.tokens)} leases of lock {lock} are lost"
        Refused.__init__(self, "LEASE_LOST", text)
        self.items = []
        self.lock = lock


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
        """How many attempts have failed so far: the item was refused, or its lease ran out."""
        return self.item.attempt

    @property
    def is_redelivery(self) -> bool:
        """Whether an attempt was made before. The times do not tell: an operator may have postponed
        the item."""
        return self.attempt > 0


class Batch(Sequence[Polled]):
    """Items that were polled together, under one lock; falsy if nothing was due."""

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
    """The item that has a key, as it is now; reading it does not lease it."""

    id: str
    key: str
    payload: bytes
    state: str
    """waiting, started, or dead."""
    attempt: int
    scheduled_at_ms: int
    scheduled_at_initially_ms: int


class Offering(Protocol):
    """The part of a client that `Delayed` needs."""

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
    """One delayed queue. Made by `Client.delayed`."""

    def __init__(self, client: Offering, ask: Ask, queue: str, patience_s: float) -> None:
        check_queue_name(queue)
        self.queue = queue
        self._client = client
        self._ask = ask
        self._patience_s = patience_s
        self._has_keys = False
        """Whether the daemon has said that the queue's keys are unique."""

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

        Neighbours that are due at the same time are one run: a thousand of them cost little more
        than one.
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
        """Acknowledges all items under the lock, durably. LockLost if it is too late. `result` as
        for `Lease.ack`."""
        self._settle(lock, Part(What.DELIVERED, 0, as_text(result)))

    def nack(
        self,
        lock: Lock | str,
        delay_s: float | None = None,
        error: str = "",
        permanent: bool | None = None,
        reason: FailureReason = "application",
    ) -> None:
        """Reports all items under the lock as failed; see `Lease.nack`."""
        if delay_s is not None and not 0 <= delay_s * 1000 <= DELAY_MS_MAX:
            raise ValueError(f"a delay of {delay_s} s is out of range")
        check_reason(reason)
        delay_ms = None if delay_s is None else round(delay_s * 1000)
        is_permanent = reason == "business" if permanent is None else permanent
        self._settle(lock, Part(What.FAILED, 0, error, delay_ms, is_permanent, reason))

    def extend(self, lock: Lock | str, seconds: float) -> None:
        """Keeps the lock valid for `seconds` from now. LockLost if it is too late."""
        own, lease_ms = self._own(lock), round(seconds * 1000)
        if not 1 <= lease_ms <= LEASE_MS_MAX:
            raise ValueError(f"a lease of {seconds} s is out of range")
        held: list[bool] = []
        for at in range(0, len(own.tokens), LEASES_MAX):
            some = own.tokens[at : at + LEASES_MAX]
            body = lease_frames.pack_extend(self.queue, lease_ms, some)
            held += say(self._ask, Kind.EXTEND, body, len(some), self._patience_s)
        check_held(own, held)

    def read(self, key: bytes | str) -> Stored | None:
        """The item that has a key, without leasing it; None if the key is free, or its item is
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
                # It has gone since the daemon said which item has the key.
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
        """The runs that can be unpacked. The others are reported as failed for good."""
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
        """Raises ValueError if the keys are not unique: then no item can be found by its key."""
        if self._has_keys:
            return
        settings = self._client.control("queues.show", queue=self.queue)["settings"]
        if settings.get("unique", "off") == "off":
            raise ValueError(f"the keys of {self.queue} are not unique: its `unique` is off")
        self._has_keys = True


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
        raise ValueError("a time without a time zone is ambiguous: give it one")
    return round(at.timestamp() * 1000)
