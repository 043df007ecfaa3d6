"""Fleet: what this daemon shares with others besides the rows of the cold store.

This is the door of the package. With a shared warm queue, all daemons follow the breakers of all.
Every daemon with a PostgreSQL is listed there. A daemon without servers has nothing of this, and
everything here does nothing.
"""

from dataclasses import dataclass

import trio

from actors.fleet.breakers import FleetBreaker, FleetBreakers
from actors.fleet.members import Heartbeat
from actors.ports.fleet import Members, SharedRows
from actors.tiers.shared_warm import SharedWarm
from actors.tiers.tiers import Tiers
from actors.workers.rate import FleetRate
from actors.workers.workers import Workers


@dataclass(frozen=True, slots=True)
class FleetStores:
    """The parts of the stores that only daemons with shared stores use; None: not shared."""

    daemon: bytes = b""
    """This daemon's id; empty if it uses no server."""
    rows: SharedRows | None = None
    breaker: FleetBreaker | None = None
    rate: FleetRate | None = None
    members: Members | None = None


class Fleet:
    def __init__(self, stores: FleetStores, tiers: Tiers, workers: Workers) -> None:
        self.stores = stores
        self._warm = tiers.states.stored_warm
        self._breakers: FleetBreakers | None = None
        if stores.breaker is not None:
            self._breakers = FleetBreakers(workers.breakers, stores.breaker)
        self.heartbeat: Heartbeat | None = None
        """Lists this daemon and the others; None: it shares no cold store."""
        if stores.members is not None:
            self.heartbeat = Heartbeat(stores.members, stores.daemon, tiers)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follows the fleet's breakers, counts its daemons, and lists this one; never returns."""
        async with trio.open_nursery() as nursery:
            if self._breakers is not None:
                nursery.start_soon(self._breakers.run)
            if self.stores.rate is not None:
                nursery.start_soon(self.stores.rate.run)
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
        """Tells the fleet that this daemon has stopped."""
        if self.heartbeat is not None:
            await self.heartbeat.close()
