"""Breakers: one per destination; they stop sending to a destination that is down."""

import math
from typing import Annotated, Any, ClassVar, Final, Literal

import trio
from pydantic import ConfigDict, Field

from actors.control.actors import Actors
from actors.control.operation import About, Http, Operation, View
from forebay.errors import Refused

EXAMPLE: Final[dict[str, Any]] = {
    "destination": "https://crm.example",
    "state": "open",
    "forced": False,
    "failures": 5,
    "open_until_ms": 1755000030000,
    "last_error": "503 from https://crm.example/hook",
    "queues": ["crm"],
}


class Breaker(View):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    destination: str
    state: Literal["closed", "open", "half_open"]
    forced: bool = Field(
        description="An operator has opened it: it stays open until an operator changes it."
    )
    failures: int = Field(description="Consecutive failures.")
    open_until_ms: int | None = Field(description="When it is tried again; null: not by itself.")
    last_error: str = Field(description="The last error; empty if there was none.")
    queues: list[str] = Field(description="The queues of this daemon that deliver there.")


class BreakerList(View):
    breakers: list[Breaker]


class ListBreakers(Operation):
    """List the breakers: state, consecutive failures, time of the next trial, and last error.

    A destination is listed once a queue has delivered to it. Queues of type pull have no
    destination.
    """

    about: ClassVar = About(
        "breakers.ls", role="read", example={}, http=Http("GET", "/api/v2/breakers")
    )

    async def perform(self, actors: Actors) -> BreakerList:
        names = actors.workers.breakers.figures()
        return BreakerList(breakers=[breaker(actors, name) for name in names])


class ForceBreaker(Operation):
    """Open or close a breaker, or let the outcome of sends decide again.

    While a breaker is open, all queues that deliver to its destination wait: pushes are accepted,
    and no item uses up an attempt. Sends in flight are finished. A restart of the daemon forgets a
    breaker that was opened here; pausing a queue outlives restarts.
    """

    about: ClassVar = About(
        "breakers.set",
        role="admin",
        example={"destination": "crm", "state": "open"},
        http=Http("PUT", "/api/v2/breakers", query=("destination",), errors=(404,)),
    )

    destination: Annotated[
        str,
        Field(
            description="A destination as breakers are listed, or the name of a queue that "
            "delivers there.",
            min_length=1,
            max_length=2048,
            examples=["https://crm.example"],
        ),
    ]
    state: Annotated[
        Literal["open", "closed", "auto"],
        Field(
            description="open: until it is changed; closed: now, and failures open it again; auto: "
            "takes an earlier open back, and changes nothing that the breaker has found out."
        ),
    ]

    async def perform(self, actors: Actors) -> Breaker:
        breakers = actors.workers.breakers
        destination = self._destination(actors)
        if destination not in breakers.figures():
            raise Refused("NOT_FOUND", f"no queue delivers to {destination}")
        if self.state != "auto" or breaker(actors, destination).forced:
            breakers.force(destination, "open" if self.state == "open" else "closed")
        return breaker(actors, destination)

    def _destination(self, actors: Actors) -> str:
        for destination, queues in senders(actors).items():
            if self.destination in queues:
                return destination
        return self.destination


def senders(actors: Actors) -> dict[str, list[str]]:
    """The queues whose workers deliver to each destination."""
    found: dict[str, list[str]] = {}
    for queue, destination in sorted(actors.workers.destinations().items()):
        found.setdefault(destination, []).append(queue)
    return found


def breaker(actors: Actors, destination: str) -> Breaker:
    state = actors.workers.breakers.state(destination)
    is_forced = state.phase == "open" and math.isinf(state.until)
    until_ms = None
    if state.phase == "open" and not is_forced:
        until_ms = actors.tiers.now_ms() + round((state.until - trio.current_time()) * 1000)
    return Breaker(
        destination=destination,
        state=state.phase,
        forced=is_forced,
        failures=state.failures,
        open_until_ms=until_ms,
        last_error=state.last_error,
        queues=senders(actors).get(destination, []),
    )


OPERATIONS: Final = (ListBreakers, ForceBreaker)
