"""Requests and answers about items: add, find, lease, settle, change."""

import base64
from typing import Annotated, Any, Final, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.config import JsonDict

from actors.model.slices import ERROR_TEXT_MAX
from actors.workers.pull_reports import RESULT_TEXT_MAX
from daemon.http.strict import Body
from forebay.item import FailureReason
from forebay.limits import (
    ACTION_BYTES_MAX,
    CONSUMER_BYTES_MAX,
    FLOW_BYTES_MAX,
    KEY_BYTES_MAX,
    LEASE_MS_MAX,
    LEASE_WAIT_MS_MAX,
    PRIORITY_MAX,
    QUEUE_BYTES_MAX,
    TIME_MS_MAX,
)

QUEUE_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
RUN_ID_PATTERN: Final = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
ITEM_ID_PATTERN: Final = RUN_ID_PATTERN[:-1] + r"-(0|[1-9][0-9]{0,3})$"
TOKEN_PATTERN: Final = r"^[0-9]{1,20}\.[A-Za-z0-9][A-Za-z0-9._-]*$"
ID_EXAMPLE: Final = "0198c0de-1111-7222-8333-944444444444-17"
DAYS_MAX: Final = 3650

StateName = Literal[
    "SPOOLED", "SCHEDULED", "QUEUED", "COLD_QUEUED", "RUNNING", "DONE", "FAILED", "DELETED"
]
QueueName = Annotated[str, Field(max_length=QUEUE_BYTES_MAX, pattern=QUEUE_PATTERN)]
ItemId = Annotated[
    str,
    Path(description="An item's id", pattern=ITEM_ID_PATTERN, examples=[ID_EXAMPLE]),
]
Base64 = Annotated[str, Field(description="The payload as base64, if it is not text")]
NEW_EXAMPLE: Final[JsonDict] = {
    "payload": {"customer": 17, "email": "a@example.org"},
    "reference": "customer-17",
    "priority": "high",
    "headers": {"correlation_id": "import-42"},
}
ITEM_EXAMPLE: Final[JsonDict] = {
    "id": ID_EXAMPLE,
    "queue": "crm",
    "state": "COLD_QUEUED",
    "flow": "daily",
    "action": "update",
    "key": "customer-17",
    "priority": 5,
    "attempt": 1,
    "retries": 0,
    "enqueued_ms": 1755000000000,
    "updated_ms": 1755000000120,
    "due_ms": 1755000300000,
    "scheduled_at_ms": 1755000300000,
    "scheduled_at_initially_ms": 1755000000000,
    "ended_ms": None,
    "bytes": 41,
    "last_error": "503 Service Unavailable",
    "failure_reason": "application",
    "locked_by": "host-1/crm/3",
    "locked_ms": 1755000000100,
    "result": None,
    "correlation_id": "import-42",
    "traceparent": None,
    "receipt": None,
    "job": None,
}


class NewItem(Body):
    """An item to add."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [NEW_EXAMPLE]})

    payload: JsonValue = Field(
        default=None, description="A text as it is, any other value as JSON; without: empty"
    )
    payload_b64: str | None = Field(default=None, description="Or any bytes, as base64")
    reference: str | None = Field(
        default=None, max_length=KEY_BYTES_MAX, description="The item's key"
    )
    priority: int | str | None = Field(
        default=None, description=f"0 (most urgent) to {PRIORITY_MAX}, or a label"
    )
    due_ms: int | None = Field(default=None, ge=0, le=TIME_MS_MAX, description="Not before then")
    delay_s: float | None = Field(
        default=None, ge=0, le=DAYS_MAX * 86400, description="Due this many seconds from now"
    )
    flow: str = Field(default="", max_length=FLOW_BYTES_MAX)
    action: str = Field(default="", max_length=ACTION_BYTES_MAX)
    headers: dict[str, str] = Field(default_factory=dict, max_length=64)
    run_id: str | None = Field(
        default=None,
        pattern=RUN_ID_PATTERN,
        description="A UUID of yours, so that a request that is sent again is stored once",
    )


class NewItemById(NewItem):
    queue_id: QueueName = Field(description="A queue's id, which is its name", examples=["crm"])


class NewItemByName(NewItem):
    queue: QueueName = Field(examples=["crm"])


class Added(BaseModel):
    """The item is stored: it is on disk when this is answered."""

    id: str | None = Field(examples=[ID_EXAMPLE])
    queue: str
    outcome: Literal["STORED", "DUPLICATE", "CREATED", "UPDATED", "IGNORED"] = Field(
        description="DUPLICATE: this `run_id` was stored before. If references are unique: "
        "CREATED; UPDATED: replaces the item that had the reference; IGNORED: `id` is the item "
        "that has the reference, or null if that has just ended"
    )


class ItemSummary(BaseModel):
    """An item, in a list."""

    model_config = ConfigDict(json_schema_extra={"examples": [ITEM_EXAMPLE]})

    id: str
    queue: str
    state: StateName
    flow: str
    action: str
    key: str | None = Field(description="Its reference")
    priority: int
    attempt: int = Field(description="Attempts that were made and failed; of DONE, all of them")
    retries: int = Field(description="How many times it was retried")
    enqueued_ms: int = Field(description="When it was created")
    updated_ms: int = Field(
        description="When it last failed, ended, was leased, or was changed by an operator"
    )
    due_ms: int | None
    scheduled_at_ms: int | None = Field(
        default=None,
        description="When it was, or will be, due. Later than initially if it is retried, or if "
        "an operator has postponed or retried it",
    )
    scheduled_at_initially_ms: int | None = Field(
        default=None,
        description="When it was first due; this never changes",
    )
    ended_ms: int | None = Field(description="When it was delivered, deleted, or died")
    bytes: int | None = Field(description="Size of its payload, if known")
    last_error: str | None
    failure_reason: FailureReason | None = Field(description="Of the last error")
    locked_by: str | None = Field(
        description="The worker or consumer that leases it, or did last: host/queue/name"
    )
    locked_ms: int | None = Field(description="Since when")
    result: str | None = Field(description="The result that its acknowledgement gave")
    correlation_id: str | None
    traceparent: str | None
    receipt: str | None = Field(description="The id of the write that it came with")
    job: str | None = Field(description="The job that has claimed it")


class ItemError(BaseModel):
    attempt: int
    at_ms: int
    text: str
    failure_reason: FailureReason = Field(
        default="application",
        description="business: what the item asks for cannot be done; application: anything else",
    )
    locked_by: str = Field(default="", description="The worker or consumer; empty if unknown")
    locked_ms: int = Field(default=0, description="Since when")


class Event(BaseModel):
    """A point on an item's timeline."""

    at_ms: int | None = Field(description="None: now")
    what: str = Field(examples=["accepted", "failed", "delivered"])
    text: str


class Item(ItemSummary):
    """All that is known of an item."""

    headers: dict[str, str]
    errors: list[ItemError]
    timeline: list[Event]
    owner: Literal["journal", "cold"]
    payload: str | None = Field(default=None, description="As text; its beginning, if it is long")
    payload_b64: Base64 | None = None
    payload_is_cut: bool = False
    payload_problem: str | None = Field(default=None, description="Why it cannot be shown")


class ItemPage(BaseModel):
    """Items that match. A page may be empty and not the last: `cursor` says so."""

    items: list[ItemSummary]
    cursor: str | None = Field(description="Of the next page; none: this was the last")


class Leased(BaseModel):
    """An item leased until `until_ms`: acknowledge it, refuse it, or extend the lease."""

    id: str = Field(examples=[ID_EXAMPLE])
    queue: str
    key: str | None
    payload: str | None = None
    payload_b64: Base64 | None = None
    headers: dict[str, str]
    flow: str
    action: str
    priority: int
    attempt: int
    scheduled_at_ms: int = Field(description="When it was due this time")
    scheduled_at_initially_ms: int = Field(description="When it was first due")
    enqueued_ms: int
    token: str = Field(description="Of the lease", examples=["17.crm"])
    until_ms: int
    consumer: str


Token = Annotated[
    str, Field(pattern=TOKEN_PATTERN, max_length=QUEUE_BYTES_MAX + 21, examples=["17.crm"])
]


class Settling(Body):
    token: Token


class Ack(Settling):
    result: JsonValue = Field(
        default=None,
        description="For the item's history: a text as it is, any other value as JSON. "
        f"The first {RESULT_TEXT_MAX:,} characters are kept",
        examples=["invoice 4711", {"invoice": 4711}],
    )


class Nack(Settling):
    error: JsonValue = Field(
        default=None,
        description="Why: a text as it is, any other value as JSON. "
        f"The first {ERROR_TEXT_MAX:,} characters are kept",
        examples=["no such customer"],
    )
    delay_s: float | None = Field(
        default=None, ge=0, le=2**31 / 1000, description="Default: the queue's backoff"
    )
    failure_reason: FailureReason = Field(
        default="application",
        description="business: what the item asks for cannot be done",
    )
    permanent: bool | None = Field(
        default=None,
        description="Whether it becomes a dead letter at once. Default: only for a business reason",
    )


class Extend(Settling):
    lease_s: float = Field(gt=0, le=LEASE_MS_MAX / 1000, examples=[60])


class Settled(BaseModel):
    id: str
    outcome: Literal["delivered", "failed"]


class Extended(BaseModel):
    id: str
    until_ms: int


class ItemChange(Body):
    """The fields to change. Priority, time and payload can be changed while an item waits; of a
    dead letter only the payload."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"state": "QUEUED"}, {"priority": 0}]}
    )

    state: StateName | None = Field(
        default=None,
        description="QUEUED: due at once, or a dead letter retried. SCHEDULED: until `due_ms`. "
        "FAILED: given up, as a dead letter. DELETED: deleted",
    )
    payload: JsonValue = Field(default=None, description="A text as it is, any other as JSON")
    payload_b64: str | None = Field(default=None, description="Or any bytes, as base64")
    priority: int | None = Field(default=None, ge=0, le=PRIORITY_MAX)
    due_ms: int | None = Field(default=None, ge=0, le=TIME_MS_MAX)
    error: str | None = Field(
        default=None,
        description=f"Why it failed; the first {ERROR_TEXT_MAX:,} characters are kept",
    )


class Deleted(BaseModel):
    id: str
    queue: str
    state: Literal["DELETED"] = "DELETED"


class NextQuery(BaseModel):
    """What to lease, by whom and for how long."""

    model_config = ConfigDict(extra="forbid")

    queue: QueueName = Field(examples=["crm"])
    consumer: str = Field(default="", max_length=CONSUMER_BYTES_MAX // 4)
    lease_s: float | None = Field(default=None, gt=0, le=LEASE_MS_MAX / 1000)
    wait_s: float = Field(
        default=0,
        ge=0,
        le=min(30.0, LEASE_WAIT_MS_MAX / 1000),
        description="How long to wait for an item",
    )


Text = Annotated[str, Field(min_length=1, max_length=500)]
Age = Annotated[str, Field(max_length=20, pattern=r"^([0-9.]+(ms|s|m|h|d|w)?)+$")]


class ItemQuery(BaseModel):
    """Filters for items; all given ones must match."""

    model_config = ConfigDict(extra="forbid")

    queue: QueueName | None = None
    state: StateName | None = None
    key: Text | None = Field(default=None, description="The same as `reference`")
    reference: Text | None = None
    correlation_id: Text | None = None
    traceparent: Text | None = Field(default=None, description="Or a trace id alone")
    error: Text | None = Field(default=None, description="Part of the last error's text")
    failure_reason: FailureReason | None = Field(default=None, description="Of the last error")
    older_than: Age | None = Field(
        default=None, description="Enqueued longer ago than this", examples=["7d"]
    )
    newer_than: Age | None = Field(default=None, examples=["15m"])
    cursor: str | None = Field(
        default=None, max_length=1000, pattern=r"^[A-Za-z0-9_-]+$", description="Of the page before"
    )
    limit: int = Field(default=100, ge=1, le=1000)


def payload_fields(payload: bytes) -> dict[str, Any]:
    """As text if it is text."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_b64": base64.b64encode(payload).decode()}
