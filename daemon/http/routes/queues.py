"""Queues: list, create, read, change, delete, pause, resume, purge, and their statistics.

A queue of the configuration file can be paused and purged here, not changed: 409.
"""

from typing import Annotated, Any, Final, Literal

import trio
from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from daemon.http.access import Admin, Reader
from daemon.http.doors import Doors, Performs
from daemon.http.models.items import QUEUE_PATTERN
from daemon.http.problems import Problem, documented
from daemon.http.strict import Body, StrictRoute
from forebay.limits import QUEUE_BYTES_MAX

EMPTY_S: Final = 20.0
"""How long one request may take to empty a queue."""
QueueName = Annotated[
    str,
    Path(
        description="A queue's name", max_length=QUEUE_BYTES_MAX, pattern=QUEUE_PATTERN,
        examples=["crm"],
    ),
]  # fmt: skip
SETTINGS_EXAMPLE: Final[JsonDict] = {"handler": {"type": "http", "url": "https://crm.example/hook"}}
QUEUE_EXAMPLE: Final[JsonDict] = {
    "queue": "crm",
    "origin": "control",
    "created_ms": 1755000000000,
    "updated_ms": 1755000000000,
    "is_paused": False,
    "paused_flows": [],
    "held": 1200,
    "settings": SETTINGS_EXAMPLE,
}


class QueueObject(BaseModel):
    """A queue as operators see it; secrets in its settings are masked."""

    model_config = ConfigDict(json_schema_extra={"examples": [QUEUE_EXAMPLE]})

    queue: str
    origin: Literal["file", "control", "push"] = Field(
        description="Who defined it: the configuration file, an operator, or a push"
    )
    created_ms: int | None
    updated_ms: int | None
    is_paused: bool
    paused_flows: list[str]
    held: int = Field(description="How many items it holds, including staged ones")
    settings: dict[str, Any] = Field(description="All keys in force, as in etc/forebay.yaml")


class QueueList(BaseModel):
    queues: list[QueueObject]


class NewQueue(Body):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"queue": "crm", "settings": SETTINGS_EXAMPLE}]},
    )

    queue: str = Field(max_length=QUEUE_BYTES_MAX, pattern=QUEUE_PATTERN)
    settings: dict[str, Any] = Field(
        default_factory=dict, description="Keys of a queue that differ from the defaults"
    )


class QueueChange(Body):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"settings": {"max_retries": 3}}]}
    )

    settings: dict[str, Any] = Field(description="Keys to change; the others stay")


class TrialItem(Body):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"payload": '{"email": "ann@example.org"}'}]},
    )

    payload: str | None = None
    payload_b64: str | None = Field(None, description="For a payload that is not text")
    key: str | None = None
    flow: str | None = None
    action: str | None = None
    from_dead: str | None = Field(None, description="The id of a dead letter, instead of a payload")
    send: bool = Field(False, description="Send the request; otherwise it is only shown")


class TriedRequest(BaseModel):
    """A request as it goes out; secrets are masked."""

    method: str
    url: str
    headers: dict[str, str]
    body: str | None = None
    body_b64: str | None = None
    status: int | None = Field(description="Of the answer, if the request was sent")
    answer: str | None = Field(description="The beginning of the answer's text")


class Trial(BaseModel):
    requests: list[TriedRequest]
    outcome: Literal["ready", "delivered", "refused", "retry"]
    error: str | None


class Purged(BaseModel):
    """What was deleted. Repeat while `more` is true."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"queue": "crm", "deleted": 100000, "more": False}]}
    )

    queue: str
    deleted: int
    more: bool = Field(description="Items are left, because there were too many for one request")


class Processing(BaseModel):
    """How long one item took from the start of its send to its outcome, in milliseconds."""

    items: int
    average_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


class Exceptions(BaseModel):
    """Attempts that failed, by their `failure_reason`."""

    application: int = Field(description="Timeouts, connections, exits, 5xx; also the default")
    business: int = Field(
        description="The handler or consumer said that the item asks for something impossible"
    )


class QueueStats(BaseModel):
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
        "+ moved_out"
    )
    exceptions: Exceptions
    processing: Processing | None = Field(description="null: nothing was processed yet")


Flow = Annotated[
    str | None, Query(description="Only this flow of the queue", max_length=255, examples=["daily"])
]


def routes(doors: Doors) -> APIRouter:
    router = APIRouter(prefix="/api/v2/queues", tags=["queues"], route_class=StrictRoute)
    _reading(router, doors)
    _changing(router, doors)
    _running(router, doors)
    return router


def _reading(router: APIRouter, doors: Doors) -> None:
    @router.get("", operation_id="listQueues")
    async def list_queues(_: Reader) -> QueueList:
        """All queues that exist: defined, paused, or created by a push and not deleted since."""
        return QueueList.model_validate(await doors.perform("queues.list", {}))

    @router.get("/{queue}", operation_id="showQueue", responses=documented(404))
    async def show(queue: QueueName, _: Reader) -> QueueObject:
        """A queue and all its settings in force."""
        return QueueObject.model_validate(await doors.perform("queue.show", {"queue": queue}))

    @router.get("/{queue}/stats", operation_id="queueStats", responses=documented(404))
    async def stats(queue: QueueName, _: Reader) -> QueueStats:
        """Items by state, exceptions, and how long processing takes."""
        stats = await doors.perform("queue.stats", {"queue": queue})
        return QueueStats.model_validate(stats)


def _changing(router: APIRouter, doors: Doors) -> None:
    @router.post("", status_code=201, operation_id="createQueue", responses=documented(409, 422))
    async def create(new: NewQueue, _: Admin) -> QueueObject:
        """Defines a queue. Handlers that run code must be in the configuration file."""
        fields = {"queue": new.queue, "settings": new.settings}
        return QueueObject.model_validate(await doors.perform("queues.create", fields))

    @router.patch("/{queue}", operation_id="changeQueue", responses=documented(404, 409, 422))
    async def change(queue: QueueName, wanted: QueueChange, _: Admin) -> QueueObject:
        """Changes some keys of a queue that was defined here."""
        fields = {"queue": queue, "settings": wanted.settings}
        return QueueObject.model_validate(await doors.perform("queues.change", fields))

    @router.delete(
        "/{queue}", status_code=204, operation_id="deleteQueue", responses=documented(404, 409)
    )
    async def delete(
        queue: QueueName,
        _: Admin,
        items: Annotated[
            Literal["keep", "delete"],
            Query(description="`delete`: its items too; otherwise it must be empty"),
        ] = "keep",
    ) -> None:
        """Forgets a queue's definition and pauses. Its name may be used again."""
        if doors.catalogue.describe(queue)["origin"] == "file":
            raise Problem(409, f"{queue} is defined in the configuration: change it there")
        await doors.perform("queue.show", {"queue": queue})
        if items == "delete":
            await empty(doors, queue)
        books = (await doors.report())["queues"].get(queue, {})
        held, staged, dead = (books.get(name, 0) for name in ("held", "staged", "dead"))
        if held or staged or dead:
            text = f"{queue} is not empty: held {held}, staged {staged}, dead {dead}"
            raise Problem(409, text, "not-empty", extensions={"held": held, "dead": dead})
        await doors.perform("queues.delete", {"queue": queue})


def _running(router: APIRouter, doors: Doors) -> None:
    @router.post("/{queue}/pause", operation_id="pauseQueue", responses=documented(404))
    async def pause(queue: QueueName, _: Admin, flow: Flow = None) -> QueueObject:
        """Pauses a queue or a flow: pushes are accepted, nothing is delivered. Deliveries in flight
        are finished."""
        return QueueObject.model_validate(
            await doors.perform("queue.pause", {"queue": queue, "flow": flow})
        )

    @router.post("/{queue}/resume", operation_id="resumeQueue", responses=documented(404, 409))
    async def resume(queue: QueueName, _: Admin, flow: Flow = None) -> QueueObject:
        """Resumes a queue or a flow. Flows that were paused by name stay paused when their queue is
        resumed. 409 if the queue is switched off by its setting `is_active`."""
        return QueueObject.model_validate(
            await doors.perform("queue.resume", {"queue": queue, "flow": flow})
        )

    @router.post("/{queue}/try", operation_id="tryQueue", responses=documented(404, 409, 422))
    async def try_out(queue: QueueName, item: TrialItem, _: Admin) -> Trial:
        """Shows the request that the queue's handler makes of an item, and sends it if `send` is
        true. Nothing is stored or settled. 409 if the queue's handler cannot be tried."""
        fields = {"queue": queue, **item.model_dump(exclude_none=True)}
        return Trial.model_validate(await doors.perform("queue.try", fields))

    @router.post("/{queue}/purge", operation_id="purgeQueue", responses=documented(404))
    async def purge(queue: QueueName, _: Admin) -> Purged:
        """Deletes all waiting items. Items that workers or consumers have leased stay, and so do
        dead letters. This cannot be undone."""
        found = await doors.perform("queue.purge", {"queue": queue})
        return Purged(queue=queue, deleted=found["deleted"], more=found["more"])


async def empty(control: Performs, queue: str) -> None:
    """Deletes waiting items and dead letters; leased items stay. Raises Problem 409 if there was
    not enough time."""
    deadline = trio.current_time() + EMPTY_S
    while (await control.perform("queue.purge", {"queue": queue}))["more"]:
        _check_time(queue, deadline)
    cursor = None
    while True:
        fields = {"which": {"queue": queue}, "cursor": cursor}
        cursor = (await control.perform("dead.remove", fields))["cursor"]
        if cursor is None:
            return
        _check_time(queue, deadline)


def _check_time(queue: str, deadline: float) -> None:
    if trio.current_time() >= deadline:
        text = f"{queue} holds more than could be deleted in {EMPTY_S:g} s: send it again"
        raise Problem(409, text, "not-empty")
