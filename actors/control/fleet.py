"""The fleet as operators see it (docs/protocol.md, "Fleet"): `fleet.list` and `fleet.adopt`.

Adopting is for a daemon that never returns (actors/fleet/adoption.py). It is refused for a daemon
that is valid, or that another daemon is adopting right now.

It owns nothing. One request works for at most `STEP_S` and says whether there is more. On cancel,
items that are not taken out stay in the queue.

It cannot know whether the daemon will return after all. Its journal still has those items and would
deliver them again, with the same ids, unless its spool was released (`forebay spool export
--release`). The texts of earlier errors are not carried over; attempts and due times are.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
import trio

from actors.control.fields import Fields, Operation
from actors.fleet.adoption import (
    CLAIM_S,
    STORE_S,
    Adopting,
    LostOwnersPort,
    OwnerInQueue,
)
from actors.fleet.fleet import FleetStores
from actors.model.refusals import bad_request
from actors.ports.tiers import StoreUnavailable
from actors.spooler.client import SpoolerClient
from forebay.errors import Refused

log = structlog.get_logger()

STEP_S: Final = 10.0
ID_DIGITS_MIN: Final = 4

assert CLAIM_S > STEP_S + STORE_S


@dataclass(slots=True)
class Standing:
    """A daemon's entries in all queues."""

    daemon: bytes
    valid_until_ms: int = 0
    queues: dict[str, OwnerInQueue] = field(default_factory=dict)

    def as_object(self, now_ms: int, this: bytes) -> dict[str, Any]:
        queues = [
            {"queue": entry.queue, "items": entry.items, "leased": entry.leased}
            for entry in sorted(self.queues.values())
        ]
        return {
            "daemon": self.daemon.hex(),
            "is_this": self.daemon == this,
            "is_valid": self.valid_until_ms > now_ms,
            "valid_until_ms": self.valid_until_ms or None,
            "items": sum(entry.items for entry in self.queues.values()),
            "leased": sum(entry.leased for entry in self.queues.values()),
            "queues": queues,
        }


class FleetControl:
    def __init__(
        self,
        stores: FleetStores,
        spooler: SpoolerClient,
        now: Callable[[], float] = trio.current_time,
    ) -> None:
        self._owners = stores.lost_owners
        self._spooler = spooler
        self._this = stores.daemon
        self._book = stores.decisions
        """Where receipts learn what a lost daemon's mail says."""
        self._now = now

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {"fleet.list": self._list, "fleet.adopt": self._adopt}

    async def _list(self, fields: Fields) -> dict[str, Any]:
        fields.end()
        now_ms, standings = await self._look()
        daemons = [standing.as_object(now_ms, self._this) for standing in standings.values()]
        return {"now_ms": now_ms, "daemons": sorted(daemons, key=lambda each: str(each["daemon"]))}

    async def _adopt(self, fields: Fields) -> dict[str, Any]:
        given = fields.text("daemon")
        fields.end()
        owners = self._port()
        now_ms, standings = await self._look()
        standing = chosen(given, standings)
        check_adoptable(standing, self._this, now_ms)
        if not await owners.claim(standing.daemon, CLAIM_S):
            raise Refused("BUSY", "another daemon adopts it now", retry_after_ms=1000)
        try:
            work = Adopting(owners, self._spooler, self._book, self._now)
            until = self._now() + STEP_S
            runs, items, is_over = await work.adopt(standing.daemon, sorted(standing.queues), until)
        finally:
            # If this fails, the claim expires.
            with trio.CancelScope(shield=True), suppress(StoreUnavailable):
                await owners.disclaim(standing.daemon)
        if items:
            log.warning("fleet.adopted", daemon=standing.daemon.hex(), items=items)
        return adopted(standing, runs, items, more=not is_over)

    async def _look(self) -> tuple[int, dict[bytes, Standing]]:
        now_ms, found = await self._port().owners()
        return now_ms, standings_of(found)

    def _port(self) -> LostOwnersPort:
        if self._owners is None:
            raise bad_request(
                "this daemon is not part of a fleet: it shares no warm queue (warm.type)"
            )
        return self._owners


def standings_of(found: Sequence[OwnerInQueue]) -> dict[bytes, Standing]:
    standings: dict[bytes, Standing] = {}
    for entry in found:
        standing = standings.setdefault(entry.daemon, Standing(entry.daemon))
        standing.valid_until_ms = max(standing.valid_until_ms, entry.valid_until_ms)
        standing.queues[entry.queue] = entry
    return standings


def chosen(given: str, standings: Mapping[bytes, Standing]) -> Standing:
    """The daemon whose id begins with `given`."""
    wanted = given.lower()
    found = [each for each in standings.values() if each.daemon.hex().startswith(wanted)]
    if len(wanted) < ID_DIGITS_MIN or not found:
        raise Refused("NOT_FOUND", f"the warm queue has no daemon {given}")
    if len(found) > 1:
        raise bad_request(f"{given} matches {len(found)} daemons: give more of its id")
    return found[0]


def check_adoptable(standing: Standing, this: bytes, now_ms: int) -> None:
    if standing.daemon == this:
        raise bad_request("this is the daemon itself: there is nothing to adopt")
    if standing.valid_until_ms > now_ms:
        seconds = (standing.valid_until_ms - now_ms) / 1000
        raise Refused(
            "CONFLICT",
            f"the daemon {standing.daemon.hex()} is alive, and valid for {seconds:.1f} s from now "
            "on: only items of a lapsed daemon can be adopted",
        )


def adopted(standing: Standing, runs: int, items: int, *, more: bool) -> dict[str, Any]:
    leased = sum(entry.leased for entry in standing.queues.values())
    return {
        "daemon": standing.daemon.hex(),
        "runs": runs,
        "items": items,
        "leased": leased,
        "more": more,
    }
