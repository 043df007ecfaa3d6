"""The fleet as operators see it (docs/protocol.md, "Fleet"): `fleet.list` and `fleet.forget`.

Owns nothing: the list is in the cold store that the daemons share (actors/fleet/members.py).

It cannot know whether a lost daemon will return. A daemon that was forgotten and returns is listed
again, with all that its journal holds.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from actors.control.fields import Fields, Operation
from actors.fleet import members
from actors.fleet.members import Heartbeat, Listed
from actors.model.refusals import bad_request
from forebay.errors import Refused

ID_DIGITS_MIN: Final = 4


class FleetControl:
    def __init__(self, heartbeat: Heartbeat | None) -> None:
        """None: this daemon shares no cold store."""
        self._heartbeat = heartbeat

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {"fleet.list": self._list, "fleet.forget": self._forget}

    async def _list(self, fields: Fields) -> dict[str, Any]:
        fields.end()
        now_ms, daemons = await self._fleet().list()
        return {"now_ms": now_ms, "daemons": [as_object(listed) for listed in daemons]}

    async def _forget(self, fields: Fields) -> dict[str, Any]:
        given = fields.text("daemon")
        fields.end()
        fleet = self._fleet()
        listed = chosen(given, (await fleet.list()).daemons)
        member = listed.member
        name = f"the daemon {member.daemon.hex()} on {member.host}"
        if listed.is_this:
            raise Refused("CONFLICT", f"{name} is the one that answers: it is running")
        if not await fleet.forget(member.daemon):
            raise Refused(
                "CONFLICT",
                f"{name} was seen less than {members.LOST_MS // 1000} s ago: "
                "only daemons that are gone can be forgotten",
            )
        return {
            "daemon": member.daemon.hex(),
            "host": member.host,
            "backlog": member.report.backlog,
        }

    def _fleet(self) -> Heartbeat:
        if self._heartbeat is None:
            raise bad_request(
                "this daemon is not part of a fleet: it shares no PostgreSQL (cold.type)"
            )
        return self._heartbeat


def chosen(given: str, daemons: Sequence[Listed]) -> Listed:
    """The daemon whose id begins with `given`."""
    wanted = given.lower()
    found = [each for each in daemons if each.member.daemon.hex().startswith(wanted)]
    if len(wanted) < ID_DIGITS_MIN or not found:
        raise Refused("NOT_FOUND", f"the fleet has no daemon {given}")
    if len(found) > 1:
        raise bad_request(f"{given} matches {len(found)} daemons: give more digits of the id")
    return found[0]


def as_object(listed: Listed) -> dict[str, Any]:
    member, report = listed.member, listed.member.report
    is_alive = listed.state in ("running", "draining")
    return {
        "daemon": member.daemon.hex(),
        "is_this": listed.is_this,
        "state": listed.state,
        "host": member.host,
        "version": member.version,
        "started_ms": member.started_ms,
        "seen_ms": member.seen_ms,
        "accepted_per_s": report.accepted_per_s if is_alive else 0.0,
        "delivered_per_s": report.delivered_per_s if is_alive else 0.0,
        "backlog": report.backlog,
        "unreachable": list(report.unreachable) if is_alive else [],
        "last_hand_over_ms": member.last_hand_over_ms or None,
    }
