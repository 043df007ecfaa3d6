"""Breakers: one for each destination; its state, and an operator's word about it."""

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from daemon.http.access import Admin, Reader
from daemon.http.desk import Desk
from daemon.http.problems import Problem, documented
from daemon.http.strict import Body, StrictRoute
from daemon.masking import masked, masked_address

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
    forced: bool = Field(description="An operator has opened it: it stays open until told")
    failures: int = Field(description="In a row")
    open_until_ms: int | None = Field(description="When it is tried again")
    last_error: str = Field(description="What failed last; empty: nothing has")


class BreakerList(BaseModel):
    breakers: list[Breaker]


class Wanted(Body):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"state": "open"}]},
    )

    state: Literal["open", "closed", "auto"] = Field(
        description="`open` until told otherwise; `closed` now; `auto`: as it finds out by itself"
    )


Destination = Annotated[
    str,
    Query(
        description="As breakers are listed", min_length=1, max_length=2048,
        examples=["https://crm.example"],
    ),
]  # fmt: skip


def routes(desk: Desk) -> APIRouter:
    router = APIRouter(prefix="/api/v2/breakers", tags=["breakers"], route_class=StrictRoute)

    @router.get("", operation_id="listBreakers")
    async def list_breakers(_: Reader) -> BreakerList:
        """The breakers of all destinations that queues of this daemon have."""
        found = (await desk.perform("breakers.list", {}))["breakers"]
        return BreakerList(breakers=[shown(breaker) for breaker in found])

    @router.put("", operation_id="forceBreaker", responses=documented(404))
    async def force(destination: Destination, wanted: Wanted, _: Admin) -> Breaker:
        """Opens or closes a breaker, or lets it find out by itself again."""
        # A destination is listed without its secrets, and found by what is listed.
        names = [name for name in desk.breakers.figures() if masked_address(name) == destination]
        if not names:
            raise Problem(404, f"no queue delivers to {destination}")
        found = {}
        for name in names:
            fields = {"destination": name, "state": wanted.state}
            found = await desk.perform("breakers.force", fields)
        return shown(found)

    return router


def shown(breaker: dict[str, object]) -> Breaker:
    return Breaker.model_validate(masked(breaker))
