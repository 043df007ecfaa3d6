"""Items that were leased from a queue, and how a consumer reports their outcomes.

    with client.lease("crm", 100, wait_s=20) as items:
        for item in items:
            send(item.json())

Leaving the block normally acknowledges every item without an outcome. Leaving it by an exception
gives those items back: they are due again at once, and no attempt is used up. In between, `ack`,
`nack` and `release` set the outcome of single items. After `until_ms` the daemon may give the items
to another consumer; `extend` postpones that.

The daemon ends a lease as a whole, and there is one lease for each run that items come from. So the
outcome of an item is sent as soon as all items of its run here have one, or at the end of the
block; if the process dies before that, all of them are delivered again. What was sent and answered
is durable.

Delivery is at least once, with an item id that never changes.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Final, Self, overload

import forebay.lease_frames as lease_frames
from forebay.errors import BadRun, ForebayError, LeaseLost, Refused
from forebay.item import FailureReason, Item, check_reason
from forebay.lease_frames import LeasedRun, LeaseReport, LeaseWish, Part, What, as_text
from forebay.limits import (
    LEASE_MS_MAX,
    LEASES_MAX,
    QUEUE_BYTES_MAX,
    SETTLE_BYTES_MAX,
    SETTLE_PARTS_MAX,
)
from forebay.run import read_run
from forebay.wire import Kind

WAIT_STEP_S: Final = 20.0
"""A longer wait consists of several requests, each well within the client's own timeout."""
RETRY_S: Final = 0.1
DELAY_MS_MAX: Final = lease_frames.NO_DELAY - 1
SETTLE_ROOM: Final = SETTLE_BYTES_MAX - 1 - QUEUE_BYTES_MAX - 2

Ask = Callable[[Kind, bytes], bytes]
"""Sends a request and waits for its answer; raises Refused."""


def take(
    ask: Ask, wish: LeaseWish, *, wait_s: float, step_s: float = WAIT_STEP_S, patience_s: float
) -> "Lease":
    """Leases due items; waits until there are some, for at most `wait_s` seconds."""
    deadline = monotonic() + wait_s
    while True:
        left_s = max(deadline - monotonic(), 0.0)
        leased = take_runs(ask, wish, wait_s=left_s, step_s=step_s)
        lease = Lease(ask, wish.queue, leased, patience_s)
        if lease or monotonic() >= deadline:
            return lease


def take_runs(
    ask: Ask, wish: LeaseWish, *, wait_s: float, step_s: float = WAIT_STEP_S
) -> list[LeasedRun]:
    """As `take`, but returns the runs as the daemon sends them.

    It also waits while the daemon refuses temporarily (it restarts, a store is unreachable).
    """
    deadline = monotonic() + wait_s
    while True:
        left = max(deadline - monotonic(), 0.0)
        step = replace(wish, wait_ms=round(min(left, step_s) * 1000))
        try:
            leased = lease_frames.read_leased(ask(Kind.LEASE, lease_frames.pack_lease(step)))
        except Refused as refused:
            if not refused.retryable or left <= 0:
                raise
            sleep(min(max(refused.retry_after_ms / 1000, RETRY_S), left))
            continue
        if leased or monotonic() >= deadline:
            return leased


@dataclass(slots=True, eq=False)
class _Share:
    """The items of one run, which are settled together."""

    token: int
    until_ms: int
    items: list[Item]
    open: int
    """One bit per item without an outcome."""
    delivered: int = 0
    results: dict[str, int] = field(default_factory=dict)
    """The bits of delivered items, by result."""
    failed: dict[Part, int] = field(default_factory=dict)
    """The bits of failed items, by the rest of their report."""

    def report(self) -> LeaseReport:
        """Items that are neither delivered nor failed are left out, which releases them."""
        parts = [Part(What.DELIVERED, bits, said) for said, bits in self.results.items()]
        parts += [part._replace(bits=bits) for part, bits in self.failed.items()]
        return LeaseReport(self.token, tuple(parts))

    def reported(self) -> list[Item]:
        """The items whose outcome is lost if the report comes too late."""
        bits = self.delivered
        for failed in self.failed.values():
            bits |= failed
        return [item for index, item in enumerate(self.items) if bits >> index & 1]


class Lease(Sequence[Item]):
    """Leased items, in order. Made by `Client.lease`; a context manager and a sequence.

    Falsy if nothing was due. Use it from one thread at a time, together with its client.
    """

    def __init__(
        self, ask: Ask, queue: str, leased: Sequence[LeasedRun], patience_s: float
    ) -> None:
        self.queue = queue
        self.unreadable = 0
        """Leases on runs that could not be unpacked; their items are reported as failed."""
        self._ask = ask
        self._patience_s = patience_s
        self._items: list[Item] = []
        self._shares: dict[int, _Share] = {}
        """Leases that are not settled, by token."""
        self._places: dict[str, tuple[_Share, int]] = {}
        """The share and index of each item that is not settled, by item id."""
        spoiled = []
        for run in leased:
            try:
                self._add(run)
            except BadRun as problem:
                part = Part(What.FAILED, 0, f"cannot be unpacked: {problem}", None, True)
                spoiled.append(LeaseReport(run.token, (part,)))
        self.unreadable = len(spoiled)
        if spoiled:
            self._settle(spoiled)

    @property
    def until_ms(self) -> int:
        """When the first open lease ends, in milliseconds since 1970; 0 if all are settled."""
        return min((share.until_ms for share in self._shares.values()), default=0)

    def ack(self, items: Item | Iterable[Item], result: Any = "") -> None:
        """Acknowledges these items. LeaseLost if it is too late. `result`: a text or any JSON value
        for their history; it is cut after 16 KiB."""
        said = as_text(result)
        for share, bit in self._decide(items):
            share.delivered |= bit
            share.results[said] = share.results.get(said, 0) | bit
        self._send_complete()

    def nack(
        self,
        items: Item | Iterable[Item],
        delay_s: float | None = None,
        error: str = "",
        permanent: bool | None = None,
        reason: FailureReason = "application",
    ) -> None:
        """Reports these items as failed, which uses up an attempt. They are retried after the
        queue's backoff, and not before `delay_s`. After the last attempt, or if `permanent`, they
        become dead letters. `error` says why; its first 2,000 characters are kept. `reason` is one
        of FAILURE_REASONS; a `business` failure is permanent unless `permanent` is False."""
        if delay_s is not None and not 0 <= delay_s * 1000 <= DELAY_MS_MAX:
            raise ValueError(f"a delay of {delay_s} s is out of range")
        check_reason(reason)
        delay_ms = None if delay_s is None else round(delay_s * 1000)
        if permanent is None:
            permanent = reason == "business"
        failed = Part(What.FAILED, 0, error, delay_ms, permanent, reason)
        for share, bit in self._decide(items):
            share.failed[failed] = share.failed.get(failed, 0) | bit
        self._send_complete()

    def release(self, items: Item | Iterable[Item] | None = None) -> None:
        """Gives these items back, or all without an outcome: they are due again at once, and no
        attempt is used up."""
        for _ in self._decide(self.open_items() if items is None else items):
            pass  # Items that a report leaves out are released.
        self._send_complete()

    def extend(self, seconds: float) -> None:
        """Keeps the leases for `seconds` from now. LeaseLost names the items for which it is too
        late."""
        lease_ms = round(seconds * 1000)
        if not 1 <= lease_ms <= LEASE_MS_MAX:
            raise ValueError(f"a lease of {seconds} s is out of range")
        lost: list[Item] = []
        tokens = list(self._shares)
        for at in range(0, len(tokens), LEASES_MAX):
            some = tokens[at : at + LEASES_MAX]
            held = self._statuses(
                Kind.EXTEND, lease_frames.pack_extend(self.queue, lease_ms, some), len(some)
            )
            until_ms = time.time_ns() // 1_000_000 + lease_ms
            for token, is_held in zip(some, held, strict=True):
                if is_held:
                    self._shares[token].until_ms = until_ms
                else:
                    lost += self._forget(token).items
        if lost:
            raise LeaseLost(lost)

    def open_items(self) -> list[Item]:
        """The items without an outcome, in order."""
        return [
            item
            for share in self._shares.values()
            for index, item in enumerate(share.items)
            if share.open >> index & 1
        ]

    def close(self) -> None:
        """Acknowledges all items without an outcome, and sends everything."""
        self.ack(self.open_items())

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
            # The current exception says more than a second one about the same daemon would.
            self._patience_s = 0.0
            with suppress(ForebayError):
                self.release()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        return self._items[index]

    def _add(self, leased: LeasedRun) -> None:
        items = unpack(leased)
        share = _Share(leased.token, leased.until_ms, items, (1 << len(items)) - 1)
        self._shares[leased.token] = share
        self._items += items
        for index, item in enumerate(items):
            self._places[item.id] = (share, index)

    def _decide(self, items: Item | Iterable[Item]) -> list[tuple[_Share, int]]:
        """Takes these items, all or none; ValueError if one has an outcome already."""
        given = [items] if isinstance(items, Item) else list(items)
        chosen: list[tuple[_Share, int]] = []
        for item in given:
            place = self._places.get(item.id)
            if place is None or not place[0].open >> place[1] & 1:
                raise ValueError(f"item {item.id} is not leased here, or was settled before")
            chosen.append((place[0], 1 << place[1]))
        for share, bit in chosen:
            share.open &= ~bit
        return chosen

    def _send_complete(self) -> None:
        """Settles the runs whose items all have an outcome."""
        complete = [share for share in self._shares.values() if not share.open]
        if not complete:
            return
        held = self._settle([share.report() for share in complete])
        lost: list[Item] = []
        for share, is_held in zip(complete, held, strict=True):
            self._forget(share.token)
            if not is_held:
                lost += share.reported()
        if lost:
            raise LeaseLost(lost)

    def _settle(self, reports: Sequence[LeaseReport]) -> list[bool]:
        held: list[bool] = []
        for some in batches(reports):
            body = lease_frames.pack_settle(self.queue, some)
            held += self._statuses(Kind.SETTLE, body, len(some))
        return held

    def _statuses(self, kind: Kind, body: bytes, leases: int) -> list[bool]:
        return say(self._ask, kind, body, leases, self._patience_s)

    def _forget(self, token: int) -> _Share:
        share = self._shares.pop(token)
        for item in share.items:
            self._places.pop(item.id, None)
        return share


def say(ask: Ask, kind: Kind, body: bytes, leases: int, patience_s: float) -> list[bool]:
    """Sends a SETTLE or EXTEND until its answer is final; which of the leases were held."""
    deadline = monotonic() + patience_s
    while True:
        try:
            return lease_frames.read_statuses(ask(kind, body))
        except Refused as refused:
            if refused.code == "LEASE_LOST":
                return [False] * leases
            if not refused.retryable or monotonic() >= deadline:
                raise
            sleep(max(refused.retry_after_ms / 1000, RETRY_S))


def unpack(leased: LeasedRun) -> list[Item]:
    """The leased items of a run. BadRun if it cannot be unpacked."""
    run = read_run(leased.run)
    head = run.head
    headers = head.headers()
    bits = leased.bits or (1 << head.count) - 1
    if bits.bit_length() > head.count:
        raise BadRun(f"a run of {head.count} items has no item {bits.bit_length() - 1}")
    columns = zip(run.item_ids(), run.keys(), run.payloads(), strict=True)
    return [
        Item(
            id=item_id,
            queue=head.queue,
            key=key.decode(errors="replace") or None,
            payload=payload,
            priority=head.priority,
            flow=head.flow,
            action=head.action,
            attempt=leased.attempt,
            headers=headers,
            enqueued_ms=head.enqueued_ms,
        )
        for index, (item_id, key, payload) in enumerate(columns)
        if bits >> index & 1
    ]


def batches(reports: Sequence[LeaseReport]) -> Iterator[list[LeaseReport]]:
    """Groups the reports, as many as fit into a frame."""
    some: list[LeaseReport] = []
    parts, room = 0, SETTLE_ROOM
    for report in reports:
        length = len(lease_frames.pack_report(report))
        parts += len(report.parts)
        if some and (length > room or parts > SETTLE_PARTS_MAX or len(some) == LEASES_MAX):
            yield some
            some, parts, room = [], len(report.parts), SETTLE_ROOM
        some.append(report)
        room -= length
    if some:
        yield some
