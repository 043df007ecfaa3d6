"""/healthz: the daemon is alive. /readyz: it can accept and store; if not, why not.

Both need no token: a monitor should not need one to watch the process.
"""

from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from daemon.http.doors import Doors


class Alive(BaseModel):
    status: Literal["alive"] = "alive"


class Ready(BaseModel):
    is_ready: bool = Field(examples=[True])
    reasons: list[str] = Field(
        description="Why it is not ready, or what is wrong although it is", examples=[[]]
    )


def routes(doors: Doors) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/healthz", operation_id="healthz")
    async def alive() -> Alive:
        """Answers as long as the daemon's tasks run."""
        return Alive()

    @router.get(
        "/readyz", operation_id="readyz", responses={503: {"model": Ready, "description": "Not"}}
    )
    async def ready(response: Response) -> Ready:
        """200 if pushes are accepted and stored, else 503; `reasons` says what is wrong."""
        answer = readiness(
            is_draining=doors.is_draining,
            disk_is_low=doors.tiers.is_away()["disk"],
            cold_is_away=doors.tiers.is_away()["cold"],
            warm_is_away=doors.tiers.is_away()["warm"],
        )
        if not answer.is_ready:
            response.status_code = 503
        return answer

    return router


def readiness(
    *, is_draining: bool, disk_is_low: bool, cold_is_away: bool, warm_is_away: bool
) -> Ready:
    """The journal accepts work even while a tier is unavailable."""
    reasons = []
    if is_draining:
        reasons.append("draining: the daemon is shutting down")
    if disk_is_low:
        reasons.append("disk: there is less than spool.min_free_bytes, pushes are refused")
    is_ready = not reasons
    if cold_is_away:
        reasons.append("cold: the store is away, overflow stays in the journal")
    if warm_is_away:
        reasons.append("warm: the shared queue is away, this host works on alone")
    return Ready(is_ready=is_ready, reasons=reasons)
