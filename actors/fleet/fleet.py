"""Fleet: what this daemon shares with others besides the rows of the cold store.

This is the door of the package. With a shared cold store daemons decide about writes together; with
a shared warm queue as well, all follow the breakers of all. Every daemon with a PostgreSQL is
listed there. A daemon without servers has nothing of this, and everything here does nothing.
"""

from dataclasses import dataclass

import trio

from actors.fleet.breakers import FleetBreaker, FleetBreakers
from actors.fleet.members import Heartbeat
from actors.fleet.write_follower import Follower
from actors.fleet.writes import Deciding
from actors.ports.fleet import Members, SharedRows
from actors.ports.writes import DECIDED, Decisions
from actors.tiers.shared_warm import SharedWarm
from actors.tiers.tiers import Tiers
from actors.workers.rate import FleetRate
from actors.workers.workers import Workers

DECISION_STEPS = ("verdicts", "applied", "note_parts", "expire", "unfinished")


@dataclass(frozen=True, slots=True)
class FleetStores:
    """The parts of the stores that only daemons with shared stores use; None: not shared."""

    daemon: bytes = b""
    """This daemon's id; empty if it uses no server."""
    decisions: Decisions | None = None
    rows: SharedRows | None = None
    breaker: FleetBreaker | None = None
    rate: FleetRate | None = None
    members: Members | None = None


class Fleet:
    def __init__(self, stores: FleetStores, tiers: Tiers, workers: Workers) -> None:
        self.stores = stores
        self._follower: Follower | None = None
        self.deciding: Deciding | None = None
        """Decides about writes; None: the spooler decides."""
        if stores.decisions is not None:
            spooler, decisions = tiers.spooler, tiers.watch(stores.decisions, DECISION_STEPS)
            self._follower = Follower(
                spooler.client, decisions, spooler.settings.stage_ttl, tiers.now_ms
            )
            self.deciding = Deciding(spooler.client, decisions, self._follower)
        self._warm = tiers.states.stored_warm
        self._breakers: FleetBreakers | None = None
        if stores.breaker is not None:
            self._breakers = FleetBreakers(workers.breakers, stores.breaker)
        self.heartbeat: Heartbeat | None = None
        """Lists this daemon and the others; None: it shares no cold store."""
        if stores.members is not None:
            self.heartbeat = Heartbeat(stores.members, stores.daemon, tiers)

    def hear(self, said: str) -> None:
        """Another daemon's wake, which may be that something is decided about writes."""
        if said == DECIDED and self._follower is not None:
            self._follower.wake()

    async def catch_up(self) -> None:
        """Carries out what was decided while this daemon was down; before anything is delivered."""
        if self._follower is not None:
            await self._follower.catch_up()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follows the fleet's decisions and breakers, counts its daemons, and lists this one; never
        returns."""
        async with trio.open_nursery() as nursery:
            if self._breakers is not None:
                nursery.start_soon(self._breakers.run)
            if self.stores.rate is not None:
                nursery.start_soon(self.stores.rate.run)
            if self._follower is not None:
                nursery.start_soon(self._follower.run)
            if isinstance(self._warm, SharedWarm):
                nursery.start_soon(self._warm.run)
            if self.heartbeat is not None:
                nursery.start_soon(self.heartbeat.run)
            task_status.started()
            await trio.sleep_forever()

    def drain(self) -> None:
        """Tells the fleet that this daemon drains."""
        if self.heartbeat is not None:
            self.heartbeat.drain()

    async def close(self) -> None:
        """Tells the fleet the last outcomes of this daemon's writes, and that it has stopped."""
        if self._follower is not None:
            await self._follower.close()
        if self.heartbeat is not None:
            await self.heartbeat.close()
