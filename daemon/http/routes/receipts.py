"""Writes of Spark jobs and other clients, and their receipts."""

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from actors.control.fields import LIMIT_MAX
from daemon.http.access import Reader
from daemon.http.doors import Doors
from daemon.http.problems import documented

WRITE_EXAMPLE: Final = "0198c0de0a0070008000000000000001"
WriteId = Annotated[
    str,
    Path(
        description="The id that a write returned", pattern=r"^[0-9a-fA-F]{32}$",
        examples=[WRITE_EXAMPLE],
    ),
]  # fmt: skip
RECEIPT_EXAMPLE: Final[JsonDict] = {
    "write": WRITE_EXAMPLE,
    "published_ms": 1755000000000,
    "app": "crm-feed",
    "version": 17,
    "queues": ["crm"],
    "accepted": 2000,
    "delivered": 1200,
    "dead": 3,
    "dropped": 0,
    "deleted": 0,
    "lost": 0,
    "pending": 797,
}
LISTED_EXAMPLE: Final[JsonDict] = {
    "write": WRITE_EXAMPLE,
    "phase": "published",
    "stages": None,
    "sealed": None,
    "items": 2000,
    "queues": ["crm"],
    "heard_ms": 1755000000000,
    "app": "crm-feed",
    "version": 17,
}


class Receipt(BaseModel):
    """accepted = delivered + dead + dropped + deleted + lost + pending, in items, always."""

    model_config = ConfigDict(json_schema_extra={"examples": [RECEIPT_EXAMPLE]})

    write: str
    published_ms: int
    app: str | None
    version: int | None
    queues: list[str]
    accepted: int
    delivered: int
    dead: int
    dropped: int
    deleted: int
    lost: int
    pending: int


class Write(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [LISTED_EXAMPLE]})

    write: str
    phase: Literal["open", "published", "aborted"]
    stages: int | None = Field(default=None, description="While it is open")
    sealed: int | None = Field(default=None, description="While it is open")
    items: int
    queues: list[str]
    heard_ms: int
    app: str | None = None
    version: int | None = None


class WriteList(BaseModel):
    writes: list[Write]
    more: int = Field(description="How many writes are not listed")


def routes(doors: Doors) -> APIRouter:
    router = APIRouter(prefix="/api/v2", tags=["receipts"])

    @router.get("/receipts/{write}", operation_id="showReceipt", responses=documented(404))
    async def receipt(write: WriteId, _: Reader) -> Receipt:
        """Counts a write's items by outcome, until `spool.receipt_ttl` after it was published."""
        return Receipt.model_validate(await doors.perform("receipt.show", {"write": write}))

    @router.get("/writes", operation_id="listWrites")
    async def writes(
        _: Reader,
        over: Annotated[bool, Query(description="Also published and aborted writes")] = False,
        limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = 100,
    ) -> WriteList:
        """Lists writes, the one with the latest activity first."""
        found = await doors.perform("write.list", {"all": over, "limit": limit})
        return WriteList.model_validate(found)

    return router
