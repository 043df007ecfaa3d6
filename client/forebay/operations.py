"""Every operation of the daemon as a method (docs/reference/operations.md).

    with forebay.connect() as client:
        operations = forebay.Operations(client.control)
        print(operations.queues_show("crm")["held"])

Written by `python -m daemon.generate`: change the operations in actors/control instead.
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypedDict, cast


class Perform(Protocol):
    """`Client.control`: an operation and its fields, for its answer."""

    def __call__(self, op: str, /, **fields: Any) -> dict[str, Any]: ...


class Queue(TypedDict):
    """A queue as operators see it; secrets in its settings are masked."""

    queue: str
    origin: Literal["file", "control", "push"]
    created_ms: int | None
    updated_ms: int | None
    is_paused: bool
    paused_flows: list[str]
    held: int
    settings: dict[str, Any]


class QueueList(TypedDict):
    queues: list[Queue]
    creates_queues: bool
    cursor: str | None


class Purged(TypedDict):
    queue: str
    deleted: int
    more: bool


class Exceptions(TypedDict):
    """Attempts that failed, by their failure reason."""

    application: int
    business: int


class Processing(TypedDict):
    """How long items took from the start of a send, or a consumer's lease, to its end, in
    milliseconds. Every attempt counts."""

    items: int
    average_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


class QueueStats(TypedDict):
    queue: str
    states: dict[str, int]
    books: dict[str, int]
    exceptions: Exceptions
    processing: Processing | None


class TriedAnswer(TypedDict):
    """A request as it goes out, with secrets masked, and its answer if it was sent."""

    method: str
    url: str
    headers: dict[str, str]
    body: str | None
    body_b64: str | None
    status: int | None
    answer: str | None


class TrialView(TypedDict):
    requests: list[TriedAnswer]
    outcome: Literal["ready", "delivered", "refused", "retry"]
    error: str | None


class Breaker(TypedDict):
    destination: str
    state: Literal["closed", "open", "half_open"]
    forced: bool
    failures: int
    open_until_ms: int | None
    last_error: str
    queues: list[str]


class BreakerList(TypedDict):
    breakers: list[Breaker]


class KeyHolder(TypedDict):
    """The item that has a key."""

    id: str
    state: Literal["waiting", "started", "dead", "done", "unreadable"]
    due_ms: int
    attempt: int
    until_ms: int | None


class StreamOfQueue(TypedDict):
    """A consumer that reads a queue as a stream."""

    claim: int | None
    rows: int
    items: int
    bytes: int
    backlog: int
    acknowledged: int
    queue: str
    consumer: str


class StreamList(TypedDict):
    streams: list[StreamOfQueue]


class Claim(TypedDict):
    """A consumer's open claim, and the backlog behind it."""

    claim: int | None
    rows: int
    items: int
    bytes: int
    backlog: int


class StreamStatus(TypedDict):
    claim: int | None
    rows: int
    items: int
    bytes: int
    backlog: int
    acknowledged: int


class Released(TypedDict):
    released: int


class Member(TypedDict):
    daemon: str
    is_this: bool
    state: Literal["running", "draining", "stopped", "lost"]
    host: str
    version: str
    started_ms: int
    seen_ms: int
    accepted_per_s: float
    delivered_per_s: float
    backlog: int
    unreachable: list[str]
    last_hand_over_ms: int | None


class MemberList(TypedDict):
    now_ms: int
    daemons: list[Member]


class Forgotten(TypedDict):
    daemon: str
    host: str
    backlog: int


class Priorities(TypedDict):
    priorities: dict[str, int]


class Operations:
    def __init__(self, perform: Perform) -> None:
        self._perform = perform

    def queues_ls(self, *, limit: int = 100, cursor: str | None = None) -> QueueList:
        """List the queues that exist, by name: where each was defined, its settings, what it
        holds."""
        return cast(QueueList, self._perform("queues.ls", limit=limit, cursor=cursor))

    def queues_show(self, queue: str) -> Queue:
        """Show a queue and all its settings in force."""
        return cast(Queue, self._perform("queues.show", queue=queue))

    def queues_add(self, queue: str, *, settings: Mapping[str, Any] | None = None) -> Queue:
        """Define a queue. Settings that are not given have the daemon's defaults."""
        return cast(Queue, self._perform("queues.add", queue=queue, settings=settings))

    def queues_set(self, queue: str, settings: Mapping[str, Any]) -> Queue:
        """Change settings of a queue that was defined at run time; the others stay as they are."""
        return cast(Queue, self._perform("queues.set", queue=queue, settings=settings))

    def queues_rm(self, queue: str, *, items: Literal["keep", "delete"] = "keep") -> None:
        """Remove a queue's definition and pauses. Its name may be used again."""
        self._perform("queues.rm", queue=queue, items=items)

    def queues_pause(self, queue: str, *, flow: str | None = None) -> Queue:
        """Stop delivering and leasing items of a queue, or of one of its flows, until it is
        resumed."""
        return cast(Queue, self._perform("queues.pause", queue=queue, flow=flow))

    def queues_resume(self, queue: str, *, flow: str | None = None) -> Queue:
        """Resume a paused queue or flow."""
        return cast(Queue, self._perform("queues.resume", queue=queue, flow=flow))

    def queues_purge(self, queue: str) -> Purged:
        """Delete all items that wait in a queue. This cannot be undone."""
        return cast(Purged, self._perform("queues.purge", queue=queue))

    def queues_stats(self, queue: str) -> QueueStats:
        """Show a queue's figures: items by state, the books, failures, how long processing
        takes."""
        return cast(QueueStats, self._perform("queues.stats", queue=queue))

    def queues_try(
        self,
        queue: str,
        *,
        payload: str | None = None,
        payload_b64: str | None = None,
        key: str | None = None,
        flow: str | None = None,
        action: str | None = None,
        from_dead: str | None = None,
        send: bool = False,
    ) -> TrialView:
        """Show the request that a queue's handler makes of an item, and send it if asked."""
        return cast(
            TrialView,
            self._perform(
                "queues.try",
                queue=queue,
                payload=payload,
                payload_b64=payload_b64,
                key=key,
                flow=flow,
                action=action,
                from_dead=from_dead,
                send=send,
            ),
        )

    def breakers_ls(self) -> BreakerList:
        """List the breakers: state, consecutive failures, time of the next trial, and last
        error."""
        return cast(BreakerList, self._perform("breakers.ls"))

    def breakers_set(self, destination: str, state: Literal["open", "closed", "auto"]) -> Breaker:
        """Open or close a breaker, or let the outcome of sends decide again."""
        return cast(Breaker, self._perform("breakers.set", destination=destination, state=state))

    def keys_show(
        self, queue: str, *, key: str | None = None, key_b64: str | None = None
    ) -> KeyHolder:
        """Show which item has a key, and how far it is."""
        return cast(KeyHolder, self._perform("keys.show", queue=queue, key=key, key_b64=key_b64))

    def keys_rm(
        self, queue: str, *, key: str | None = None, key_b64: str | None = None
    ) -> KeyHolder:
        """Take an item back that waits under a key: the item is deleted, and its key is free."""
        return cast(KeyHolder, self._perform("keys.rm", queue=queue, key=key, key_b64=key_b64))

    def streams_ls(self, *, queue: str | None = None) -> StreamList:
        """List the consumers that read queues as streams, and the progress of each."""
        return cast(StreamList, self._perform("streams.ls", queue=queue))

    def streams_claim(self, queue: str, consumer: str, after: int, *, items: int = 100000) -> Claim:
        """Acknowledge a consumer's claim, and make the next one."""
        return cast(
            Claim,
            self._perform(
                "streams.claim",
                queue=queue,
                consumer=consumer,
                after=after,
                items=items,
            ),
        )

    def streams_show(self, queue: str, consumer: str) -> StreamStatus:
        """Show a consumer's progress. A consumer that is not known has acknowledged nothing."""
        return cast(StreamStatus, self._perform("streams.show", queue=queue, consumer=consumer))

    def streams_rm(self, queue: str, consumer: str) -> Released:
        """Forget a consumer. The items of its open claim wait again, in their old place."""
        return cast(Released, self._perform("streams.rm", queue=queue, consumer=consumer))

    def fleet_ls(self) -> MemberList:
        """List the daemons of the fleet, their states and rates."""
        return cast(MemberList, self._perform("fleet.ls"))

    def fleet_rm(self, daemon: str) -> Forgotten:
        """Remove a daemon that is gone from the list."""
        return cast(Forgotten, self._perform("fleet.rm", daemon=daemon))

    def config_priorities(self) -> Priorities:
        """Show the numbers that labels of priorities stand for."""
        return cast(Priorities, self._perform("config.priorities"))
