"""The daemons that share a PostgreSQL, as operators see them (docs/fleet.md).

Owns nothing: the list is in the cold store that the daemons share (actors/fleet/members.py).

It cannot know whether a lost daemon will return. A daemon that was removed from the list and
returns is listed again, with all that its journal holds.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from actors.control.actors import Actors
from actors.control.operation import About, Operation, View
from actors.fleet import members
from actors.fleet.members import Heartbeat, Listed
from actors.model.refusals import bad_request
from forebay.errors import Refused

ID_DIGITS_MIN: Final = 4

EXAMPLE: Final[dict[str, Any]] = {
    "daemon": "0198c0de0a0070008000000000000001",
    "is_this": True,
    "state": "running",
    "host": "node-1",
    "version": "0.1.0",
    "started_ms": 1768203000000,
    "seen_ms": 1768210259000,
    "accepted_per_s": 1204.0,
    "delivered_per_s": 1180.4,
    "backlog": 312,
    "unreachable": [],
    "last_hand_over_ms": 1768210258000,
}


class Member(View):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    daemon: str = Field(description="Its id, in hexadecimal.")
    is_this: bool = Field(description="Whether it is the daemon that answers.")
    state: Literal["running", "draining", "stopped", "lost"] = Field(
        description="lost: it has not been seen for more than 60 s."
    )
    host: str
    version: str
    started_ms: int
    seen_ms: int = Field(description="When it last wrote its row, which it does every 5 s.")
    accepted_per_s: float = Field(description="Over the last interval; 0 if it is not running.")
    delivered_per_s: float
    backlog: int = Field(
        description="Items that its journal holds and has not handed over, as last reported."
    )
    unreachable: list[str] = Field(description="The stores that it cannot reach.")
    last_hand_over_ms: int | None = Field(
        description="When it last handed items over to PostgreSQL; null: never."
    )


class MemberList(View):
    now_ms: int = Field(description="PostgreSQL's clock: all times here are on it.")
    daemons: list[Member]


class ListFleet(Operation):
    """List the daemons of the fleet, their states and rates.

    The backlog is what a daemon's journal holds and has not handed over to PostgreSQL: no other
    daemon can deliver it. To drain a lost daemon's journal, start a daemon on its state directory.
    """

    about: ClassVar = About("fleet.ls", role="read", example={})

    async def perform(self, actors: Actors) -> MemberList:
        return await listed(_fleet(actors))


class Forgotten(View):
    daemon: str
    host: str
    backlog: int = Field(description="What its journal held when it was last seen.")


class RemoveMember(Operation):
    """Remove a daemon that is gone from the list.

    This changes the list alone. Items that the daemon has not handed over stay in its journal; if
    it starts again, it is listed again, and delivers them. Refused for a daemon that was seen
    within the last minute.
    """

    about: ClassVar = About("fleet.rm", role="admin", example={"daemon": "0198c0de0a00"})

    daemon: Annotated[
        str,
        Field(
            description="Its id, or the first digits of it.",
            min_length=ID_DIGITS_MIN,
            max_length=32,
            examples=["0198c0de0a00"],
        ),
    ]

    async def perform(self, actors: Actors) -> Forgotten:
        return await removed(_fleet(actors), self.daemon)


def _fleet(actors: Actors) -> Heartbeat:
    if actors.fleet.heartbeat is None:
        raise bad_request("this daemon is not part of a fleet: it shares no PostgreSQL (cold.type)")
    return actors.fleet.heartbeat


async def listed(fleet: Heartbeat) -> MemberList:
    now_ms, daemons = await fleet.list()
    return MemberList(now_ms=now_ms, daemons=[_member(one) for one in daemons])


async def removed(fleet: Heartbeat, given: str) -> Forgotten:
    found = chosen(given, (await fleet.list()).daemons)
    member = found.member
    name = f"the daemon {member.daemon.hex()} on {member.host}"
    if found.is_this:
        raise Refused("CONFLICT", f"{name} is the one that answers: it is running")
    if not await fleet.forget(member.daemon):
        raise Refused(
            "CONFLICT",
            f"{name} was seen less than {members.LOST_MS // 1000} s ago: "
            "only daemons that are gone can be removed",
        )
    return Forgotten(daemon=member.daemon.hex(), host=member.host, backlog=member.report.backlog)


def chosen(given: str, daemons: Sequence[Listed]) -> Listed:
    """The daemon whose id begins with `given`."""
    wanted = given.lower()
    found = [each for each in daemons if each.member.daemon.hex().startswith(wanted)]
    if not found:
        raise Refused("NOT_FOUND", f"the fleet has no daemon {given}")
    if len(found) > 1:
        raise bad_request(f"{given} matches {len(found)} daemons: give more digits of the id")
    return found[0]


def _member(listed: Listed) -> Member:
    member, report = listed.member, listed.member.report
    is_alive = listed.state in ("running", "draining")
    return Member(
        daemon=member.daemon.hex(),
        is_this=listed.is_this,
        state=listed.state,
        host=member.host,
        version=member.version,
        started_ms=member.started_ms,
        seen_ms=member.seen_ms,
        accepted_per_s=report.accepted_per_s if is_alive else 0.0,
        delivered_per_s=report.delivered_per_s if is_alive else 0.0,
        backlog=report.backlog,
        unreachable=list(report.unreachable) if is_alive else [],
        last_hand_over_ms=member.last_hand_over_ms or None,
    )


OPERATIONS: Final = (ListFleet, RemoveMember)
