"""Queues: list, show, add, set, rm, pause, resume, purge, their statistics, and trials of handlers.

Definitions and pauses belong to the catalogue, items to their stores. A queue exists if the
configuration or `queues.add` defines it, if it is paused, or if it holds items or dead letters;
with `auto_create_queues` also if items were pushed to it since it was last removed.
"""

from bisect import bisect_right
from typing import Annotated, Any, ClassVar, Final, Literal

import trio
from pydantic import ConfigDict, Field

from actors.config.catalogue import UNSEEN, QueueCounts
from actors.control.actors import Actors
from actors.control.operation import (
    About,
    Cursor,
    Flow,
    Http,
    Limit,
    Operation,
    QueueName,
    Settings,
    View,
)
from actors.control.purge import Purges, Purging
from actors.control.stats import queue_stats
from actors.model.refusals import not_found
from actors.ports.tiers import DeadFilter, DeadLetters
from forebay.errors import Refused

EMPTY_S: Final = 20.0
"""How long one request may take to empty a queue."""
LETTERS_AT_ONCE: Final = 1000

SETTINGS_EXAMPLE: Final[dict[str, Any]] = {
    "handler": {"type": "http", "url": "https://crm.example/hook"}
}
QUEUE_EXAMPLE: Final[dict[str, Any]] = {
    "queue": "crm",
    "origin": "control",
    "created_ms": 1755000000000,
    "updated_ms": 1755000000000,
    "is_paused": False,
    "paused_flows": [],
    "held": 1200,
    "settings": SETTINGS_EXAMPLE,
}


class Queue(View):
    """A queue as operators see it; secrets in its settings are masked."""

    model_config = ConfigDict(json_schema_extra={"examples": [QUEUE_EXAMPLE]})

    queue: str
    origin: Literal["file", "control", "push"] = Field(
        description="Who defined it: the configuration file, an operator, or a push."
    )
    created_ms: int | None = Field(
        description="When an operator defined it, or the configuration first did."
    )
    updated_ms: int | None = Field(description="When its definition last changed.")
    is_paused: bool
    paused_flows: list[str]
    held: int = Field(description="How many items it holds, including staged ones.")
    settings: dict[str, Any] = Field(description="All keys in force, as in etc/forebay.yaml.")


class QueueList(View):
    queues: list[Queue]
    creates_queues: bool = Field(description="Whether a push to a new name creates a queue.")
    cursor: str | None = Field(description="For the next page; null: this was the last.")


class ListQueues(Operation):
    """List the queues that exist, by name: where each was defined, its settings, what it holds."""

    about: ClassVar = About(
        "queues.ls",
        role="read",
        example={},
        http=Http("GET", "/api/v2/queues"),
        repeats="cursor",
    )

    limit: Limit = 100
    cursor: Cursor = None

    async def perform(self, actors: Actors) -> QueueList:
        catalogue = actors.catalogue
        seen = await actors.metrics.books.seen()
        names = sorted({*catalogue.names(), *seen})
        first = bisect_right(names, self.cursor) if self.cursor is not None else 0
        found: list[Queue] = []
        for name in names[first:]:
            entry = seen.get(name, UNSEEN)
            if not catalogue.exists(name, entry):
                continue
            if len(found) == self.limit:
                return QueueList(
                    queues=found,
                    creates_queues=catalogue.creates_queues,
                    cursor=found[-1].queue,
                )
            found.append(_queue(actors, name, entry))
        return QueueList(queues=found, creates_queues=catalogue.creates_queues, cursor=None)


class ShowQueue(Operation):
    """Show a queue and all its settings in force."""

    about: ClassVar = About(
        "queues.show",
        role="read",
        example={"queue": "crm"},
        http=Http("GET", "/api/v2/queues/{queue}", errors=(404,)),
    )

    queue: QueueName

    async def perform(self, actors: Actors) -> Queue:
        return _queue(actors, self.queue, await existing(actors, self.queue))


class AddQueue(Operation):
    """Define a queue. Settings that are not given have the daemon's defaults.

    It survives restarts. Its handler can be pull, http or null; the others run code as the
    daemon's user and must be in the configuration file.
    """

    about: ClassVar = About(
        "queues.add",
        role="admin",
        example={"queue": "mail", "settings": {"handler": {"type": "pull"}}},
        http=Http("POST", "/api/v2/queues", status=201, errors=(409,)),
        done="{queue} added",
    )

    queue: QueueName
    settings: Settings = Field(default_factory=dict)

    async def perform(self, actors: Actors) -> Queue:
        await actors.catalogue.create(self.queue, self.settings)
        return await _now(actors, self.queue)


class SetQueue(Operation):
    """Change settings of a queue that was defined at run time; the others stay as they are.

    Queues of the configuration file are changed there.
    """

    about: ClassVar = About(
        "queues.set",
        role="admin",
        example={"queue": "mail", "settings": {"max_retries": 3}},
        http=Http("PATCH", "/api/v2/queues/{queue}", errors=(404, 409)),
        done="{queue} changed",
    )

    queue: QueueName
    settings: Settings

    async def perform(self, actors: Actors) -> Queue:
        await actors.catalogue.change(self.queue, self.settings)
        return await _now(actors, self.queue)


class RemoveQueue(Operation):
    """Remove a queue's definition and pauses. Its name may be used again.

    The queue must be empty, unless its items are deleted too. Items that a worker or consumer has
    leased are never deleted: while there are any, or if there was not enough time for all, the
    answer is a CONFLICT, and the operation may be repeated. The books keep what it has counted.
    """

    about: ClassVar = About(
        "queues.rm",
        role="admin",
        example={"queue": "mail"},
        http=Http(
            "DELETE", "/api/v2/queues/{queue}", status=204, query=("items",), errors=(404, 409)
        ),
        asks="Remove the queue {queue}?",
        done="{queue} removed",
    )

    queue: QueueName
    items: Annotated[
        Literal["keep", "delete"],
        Field(
            description="delete: its waiting items and dead letters too; keep: it must be empty."
        ),
    ] = "keep"

    async def perform(self, actors: Actors) -> None:
        _check_is_not_in_file(actors, self.queue)
        await existing(actors, self.queue)
        if self.items == "delete":
            purging = Purging(actors.tiers, actors.metrics.books)
            await empty(self.queue, purging, actors.tiers.cold.dead_letters)
        entry = await existing(actors, self.queue)
        if entry.held or entry.dead:
            raise Refused(
                "CONFLICT", f"{self.queue} is not empty: held {entry.held}, dead {entry.dead}"
            )
        await actors.catalogue.delete(self.queue, entry.accepted)


class PauseQueue(Operation):
    """Stop delivering and leasing items of a queue, or of one of its flows, until it is resumed.

    Pushes are still accepted and stored. Deliveries in flight are finished. A pause survives
    restarts.
    """

    about: ClassVar = About(
        "queues.pause",
        role="admin",
        example={"queue": "crm", "flow": "nightly"},
        http=Http("POST", "/api/v2/queues/{queue}/pause", query=("flow",), errors=(404,)),
    )

    queue: QueueName
    flow: Flow = None

    async def perform(self, actors: Actors) -> Queue:
        await existing(actors, self.queue)
        await actors.catalogue.pause(self.queue, self.flow)
        return await _now(actors, self.queue)


class ResumeQueue(Operation):
    """Resume a paused queue or flow.

    Flows that were paused by name stay paused when their queue is resumed. A queue whose setting
    is_active is false cannot be resumed: set it to true.
    """

    about: ClassVar = About(
        "queues.resume",
        role="admin",
        example={"queue": "crm", "flow": "nightly"},
        http=Http("POST", "/api/v2/queues/{queue}/resume", query=("flow",), errors=(404, 409)),
    )

    queue: QueueName
    flow: Flow = None

    async def perform(self, actors: Actors) -> Queue:
        await existing(actors, self.queue)
        if not actors.catalogue.settings_of(self.queue).is_active:
            raise Refused(
                "CONFLICT",
                f"{self.queue} stays as it is: its setting is_active is false; set it to true",
            )
        await actors.catalogue.resume(self.queue, self.flow)
        actors.tiers.wake(self.queue)
        return await _now(actors, self.queue)


class Purged(View):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"queue": "crm", "deleted": 100000, "more": False}]}
    )

    queue: str
    deleted: int = Field(description="How many items were deleted.")
    more: bool = Field(description="Items are left, because there were too many for one request.")


class PurgeQueue(Operation):
    """Delete all items that wait in a queue. This cannot be undone.

    Items that workers or consumers have leased, or a stream has claimed, stay, and so do dead
    letters and staged writes. Purged items are not in the history; the books count them as deleted.
    """

    about: ClassVar = About(
        "queues.purge",
        role="admin",
        example={"queue": "mail"},
        http=Http("POST", "/api/v2/queues/{queue}/purge", errors=(404,)),
        asks="Delete all items that wait in {queue}? This cannot be undone.",
        done="{deleted} items of {queue} deleted",
        repeats="more",
        counts="deleted",
    )

    queue: QueueName

    async def perform(self, actors: Actors) -> Purged:
        await existing(actors, self.queue)
        deleted, more = await Purging(actors.tiers, actors.metrics.books).purge(self.queue)
        return Purged(queue=self.queue, deleted=deleted, more=more)


class Processing(View):
    """How long items took from the start of a send, or a consumer's lease, to its end, in
    milliseconds. Every attempt counts."""

    items: int
    average_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


class Exceptions(View):
    """Attempts that failed, by their failure reason."""

    application: int = Field(description="Timeouts, connections, exits, 5xx; also the default.")
    business: int = Field(
        description="The handler or consumer said that the item asks for something impossible."
    )


class QueueStats(View):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "queue": "crm",
                    "states": {"SPOOLED": 0, "QUEUED": 1200, "RUNNING": 40, "DONE": 98000},
                    "books": {"accepted": 99240, "delivered": 98000, "held": 1240},
                    "exceptions": {"application": 12, "business": 3},
                    "processing": {
                        "items": 98015,
                        "average_ms": 41.0,
                        "p50_ms": 32.0,
                        "p95_ms": 120.5,
                        "p99_ms": 310.0,
                    },
                }
            ]
        }
    )

    queue: str
    states: dict[str, int]
    books: dict[str, int] = Field(
        description="accepted + moved_in = delivered + dead + dropped + deleted + lost + held "
        "+ moved_out."
    )
    exceptions: Exceptions
    processing: Processing | None = Field(description="null: nothing was processed yet.")


class ShowStats(Operation):
    """Show a queue's figures: items by state, the books, failures, how long processing takes.

    Exceptions and processing times are of all attempts since the queue was first seen, by all
    daemons that share the cold store, whether the queue keeps a history or not. They outlive
    restarts and the items. A crash loses up to a second of them, and those of other daemons may be
    a second old.
    """

    about: ClassVar = About(
        "queues.stats",
        role="read",
        example={"queue": "crm"},
        http=Http("GET", "/api/v2/queues/{queue}/stats", errors=(404,)),
    )

    queue: QueueName

    async def perform(self, actors: Actors) -> QueueStats:
        await existing(actors, self.queue)
        report = await actors.metrics.books.report()
        attempts = await actors.metrics.attempts(self.queue)
        return QueueStats.model_validate(queue_stats(self.queue, report, attempts))


async def existing(actors: Actors, queue: str) -> QueueCounts:
    """The counts of a queue in the books. Raises NOT_FOUND if the queue does not exist."""
    entry = (await actors.metrics.books.seen()).get(queue, UNSEEN)
    if not actors.catalogue.exists(queue, entry):
        raise not_found(f"queue {queue}")
    return entry


async def _now(actors: Actors, queue: str) -> Queue:
    entry = (await actors.metrics.books.seen()).get(queue, UNSEEN)
    return _queue(actors, queue, entry)


def _queue(actors: Actors, queue: str, entry: QueueCounts) -> Queue:
    return Queue(**actors.catalogue.describe(queue), held=entry.held)


async def empty(queue: str, purging: Purges, letters: DeadLetters) -> None:
    """Deletes waiting items and dead letters; leased items stay. Refused if it takes too long."""
    deadline = trio.current_time() + EMPTY_S
    more = True
    while more:
        _, more = await purging.purge(queue)
        _check_time(queue, deadline, more=more)
    which, cursor = DeadFilter(queue=queue), None
    while True:
        cursor = (await letters.remove(which, LETTERS_AT_ONCE, cursor)).cursor
        if cursor is None:
            return
        _check_time(queue, deadline, more=True)


def _check_time(queue: str, deadline: float, *, more: bool) -> None:
    if more and trio.current_time() >= deadline:
        text = f"{queue} holds more than could be deleted in {EMPTY_S:g} s: send it again"
        raise Refused("CONFLICT", text)


def _check_is_not_in_file(actors: Actors, queue: str) -> None:
    if actors.catalogue.describe(queue)["origin"] == "file":
        raise Refused("CONFLICT", f"{queue} is defined in the configuration: change it there")


OPERATIONS: Final = (
    ListQueues,
    ShowQueue,
    AddQueue,
    SetQueue,
    RemoveQueue,
    PauseQueue,
    ResumeQueue,
    PurgeQueue,
    ShowStats,
)
