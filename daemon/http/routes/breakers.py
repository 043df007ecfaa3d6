"""Breakers: lists them, one per destination; opens and closes them."""

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from daemon.http.access import Admin, Reader
from daemon.http.doors import Doors
from daemon.http.problems import documented
from daemon.http.strict import Body, StrictRoute

BREAKER_EXAMPLE: Final[JsonDict] = {
    "destination": "https://crm.example",
    "state": "open",
    "forced": False,
    "failures": 5,
    "open_until_ms": 1755000030000,
    "last_error": "503 from https://crm.example/hook",
}


class Breaker(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [BREAKER_EXAMPLE]})

    destination: str
    state: Literal["closed", "open", "half_open"]
    forced: bool = Field(
        description="An operator has opened it: it stays open until an operator changes it"
    )
    failures: int = Field(description="Consecutive failures")
    open_until_ms: int | None = Field(description="When it is tried again")
    last_error: str = Field(description="The last error; empty if there was none")


class BreakerList(BaseModel):
    breakers: list[Breaker]


class Wanted(Body):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"state": "open"}]},
    )

    state: Literal["open", "closed", "auto"] = Field(
        description="`open` until changed; `closed` now; `auto`: decided by the outcome of sends"
    )


Destination = Annotated[
    str,
    Query(
        description="As breakers are listed", min_length=1, max_length=2048,
        examples=["https://crm.example"],
    ),
]  # fmt: skip


def routes(doors: Doors) -> APIRouter:
    router = APIRouter(prefix="/api/v2/breakers", tags=["breakers"], route_class=StrictRoute)

    @router.get("", operation_id="listBreakers")
    async def list_breakers(_: Reader) -> BreakerList:
        """Lists the breakers of all destinations of this daemon's queues."""
        return BreakerList.model_validate(await doors.perform("breakers.list", {}))

    @router.put("", operation_id="forceBreaker", responses=documented(404))
    async def force(destination: Destination, wanted: Wanted, _: Admin) -> Breaker:
        """Opens or closes a breaker, or lets the outcome of sends decide again."""
        fields = {"destination": destination, "state": wanted.state}
        return Breaker.model_validate(await doors.perform("breakers.force", fields))

    return router
