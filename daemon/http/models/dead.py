"""Requests and answers about dead letters and jobs."""

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from daemon.http.models.items import ID_EXAMPLE, Base64, ItemError, QueueName, Text
from daemon.http.strict import Body
from forebay.item import FailureReason
from forebay.limits import ACTION_BYTES_MAX, FLOW_BYTES_MAX

MS_MAX = 2**53

JobId = Annotated[
    str, Path(description="A job's id", pattern=r"^[0-9a-f]{16}$", examples=["0123456789abcdef"])
]


class DeadFilter(BaseModel):
    """Filters for dead letters; all given ones must match."""

    model_config = ConfigDict(extra="forbid")

    queue: QueueName | None = Field(default=None, examples=["crm"])
    flow: str | None = Field(default=None, max_length=FLOW_BYTES_MAX)
    action: str | None = Field(default=None, max_length=ACTION_BYTES_MAX)
    error: Text | None = Field(default=None, description="Part of the last error's text")
    failure_reason: FailureReason | None = Field(default=None, description="Of the last error")
    died_before_ms: int | None = Field(default=None, ge=0, le=MS_MAX)
    died_after_ms: int | None = Field(default=None, ge=0, le=MS_MAX)

    def fields(self) -> dict[str, Any]:
        """The filter as the daemon's operations expect it."""
        names = DeadFilter.model_fields
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class DeadQuery(DeadFilter):
    payloads: bool = Field(default=False, description="Whether payloads are shown")
    cursor: str | None = Field(default=None, max_length=1000, description="Of the page before")
    limit: int = Field(default=100, ge=1, le=1000)


class GroupQuery(DeadFilter):
    cursor: str | None = Field(default=None, max_length=1000, description="Of the answer before")


class DeadLetter(BaseModel):
    """An item that has failed for good."""

    id: str = Field(examples=[ID_EXAMPLE])
    queue: str
    flow: str
    action: str
    key: str | None
    priority: int
    attempt: int
    enqueued_ms: int
    died_ms: int
    headers: dict[str, str]
    errors: list[ItemError]
    payload: str | None = None
    payload_b64: Base64 | None = None


class DeadPage(BaseModel):
    letters: list[DeadLetter]
    cursor: str | None = Field(description="Of the next page; none: this was the last")


class DeadGroup(BaseModel):
    """Dead letters of one queue that failed for the same reason."""

    queue: str
    error: str = Field(
        description="The last error without ids, quoted words and numbers other than codes"
    )
    example: str
    example_id: str
    count: int
    first_ms: int
    last_ms: int


class DeadGroups(BaseModel):
    groups: list[DeadGroup] = Field(description="The largest first")
    letters: int = Field(description="How many letters were read")
    is_complete: bool
    cursor: str | None = Field(description="Where to continue, if it is not complete")


class ChosenFilter(DeadFilter):
    """The same filters in a body, where a number is not accepted as text."""

    model_config = ConfigDict(strict=True)


class Chosen(Body):
    """Which dead letters a job is about: these, those that match, or all."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"ids": [ID_EXAMPLE]}, {"which": {"queue": "crm"}}]},
    )

    ids: list[Annotated[str, Field(max_length=60)]] | None = Field(
        default=None, min_length=1, max_length=1000
    )
    which: ChosenFilter | None = None
    all: bool = Field(default=False, description="Must be true if nothing is chosen")


class Done(BaseModel):
    id: str
    outcome: Literal["retried", "deleted", "edited"]


class NewPayload(Body):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"payload": {"email": "b@example.org"}}]}
    )

    payload: JsonValue = Field(default=None, description="A text as it is, any other as JSON")
    payload_b64: str | None = Field(default=None, description="Or any bytes, as base64")


class Job(BaseModel):
    """Work on many dead letters. The last jobs are remembered until the daemon ends."""

    id: str = Field(examples=["0123456789abcdef"])
    op: Literal["dead.retry", "dead.remove"]
    which: dict[str, Any]
    state: Literal["waiting", "running", "done", "cancelled", "failed"]
    done: int
    total: int | None = Field(description="How many matched at the start, up to 100,000")
    created_ms: int
    ended_ms: int | None
    error: str | None


class JobList(BaseModel):
    jobs: list[Job] = Field(description="The newest first")
