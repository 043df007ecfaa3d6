"""Events: recent changes, as a list and as a stream for the page.

The stream (server-sent events) has `change`s (breakers, stores, queues, the daemon's life) as they
happen, each with its number as id, and a compact `sample` of the books every two seconds. It needs
no queue: a client gets the next event when it has read the one before. Events that it missed
meanwhile are still in the ring, or are reported as `missed`. The stream ends when the daemon begins
to drain.

The books are read once for all watchers, and not at all without watchers.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import trio
from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from actors.model.clock import wall_ms
from actors.observers.event_log import EVENTS_KEPT
from daemon.http.access import Reader
from daemon.http.doors import Doors
from daemon.http.event_stream import EventStream, Samples
from daemon.http.problems import draining

WATCHERS_MAX: Final = 64
Kind = Literal["breaker", "store", "daemon", "queue", "trigger", "notice", "lost"]
"""The kinds of rare events; finished slices are only in the event log."""


class Event(BaseModel):
    """A change; fields that events of its kind do not have are left out."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "number": 17,
                    "kind": "breaker",
                    "at_ms": 1755000000000,
                    "destination": "https://crm.example",
                    "state": "open",
                    "count": 5,
                    "error": "503 from https://crm.example/hook",
                }
            ]
        },
    )

    number: int = Field(description="Grows by one with each event; restarts with the daemon")
    kind: Kind
    at_ms: int


class EventList(BaseModel):
    events: list[Event] = Field(description="Oldest first")
    latest: int = Field(description="The number to continue after")


def routes(doors: Doors) -> APIRouter:
    router = APIRouter(prefix="/api/v2", tags=["events"])
    samples = Samples(doors.report, lambda report: sample_of(report, doors), wall_ms)
    places = trio.CapacityLimiter(WATCHERS_MAX)

    @router.get("/events/recent", operation_id="recentEvents")
    async def recent(
        _: Reader,
        after: Annotated[int, Query(ge=0, le=2**53, description="A number: only later ones")] = 0,
        limit: Annotated[int, Query(ge=1, le=EVENTS_KEPT)] = 100,
        kind: Annotated[Kind | None, Query(description="Only those of this kind")] = None,
    ) -> EventList:
        """Lists the latest changes of breakers, stores and queues, failed triggers, notices, and
        starts and stops of the daemon."""
        kept = doors.events.after(after)
        found = [each for each in kept if kind is None or each.row["kind"] == kind][-limit:]
        events = [Event(number=event.number, **event.row) for event in found]
        return EventList(events=events, latest=doors.events.latest)

    @router.get(
        "/events",
        operation_id="streamEvents",
        response_class=Response,
        responses={
            200: {
                "description": "Server-sent events: change, sample, missed",
                "content": {
                    "text/event-stream": {
                        "schema": {"type": "string"},
                        "example": 'id: 17\nevent: change\ndata: {"kind":"store"}\n\n',
                    }
                },
            }
        },
    )
    async def stream(
        _: Reader,
        last_event_id: Annotated[
            str | None, Header(description="Go on after this event", max_length=20)
        ] = None,
    ) -> Response:
        """Streams changes as they happen, and a sample every two seconds."""
        if doors.is_draining:
            raise draining()
        return EventStream(
            doors.events, samples, doors.stopping, places, first_after(last_event_id)
        )

    def first_after(last_event_id: str | None) -> int:
        if last_event_id and last_event_id.isascii() and last_event_id.isdecimal():
            return min(int(last_event_id), doors.events.latest)
        return doors.events.latest

    return router


def sample_of(report: Mapping[str, Any], doors: Doors) -> dict[str, Any]:
    """The figures at the top of the page, for any number of queues."""
    spool = report["spool"]
    return {
        "daemon": report["daemon"],
        "queues": len(report["queues"]),
        "spool": {
            "bytes": spool["bytes"],
            "max_bytes": doors.settings.spool.max_bytes,
            "free_bytes": spool["free_bytes"],
        },
        "stores": {
            "cold": "away" if doors.tiers.is_away()["cold"] else "up",
            "warm": "away" if doors.tiers.is_away()["warm"] else "up",
            "disk": "low" if doors.tiers.is_away()["disk"] else "up",
        },
        "breakers_open": sum(
            1 for breaker in report.get("breakers", {}).values() if breaker["state"] != "closed"
        ),
    }
