"""Two daemons' sides of one Valkey, in one process, and a cold store that can be taken away."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from actors.fleet.owner import Owner
from actors.fleet.shared_warm import SharedWarm
from actors.model.keys import KeyRules, no_keys
from actors.model.outcomes import Conclusion
from actors.model.slices import Slice
from actors.observers.tallies import Tallies
from actors.tiers.fetch import slice_of
from actors.tiers.warm import MemoryWarm
from actors.workers.settlement import NO_LIMITS, Settlement
from daemon.stores.sqlite.store import SqliteCold
from daemon.stores.valkey.warm import ValkeyWarm
from tests.conformance.cold_stores import PLENTY, new_row
from tests.daemon.stores.valkey.fleet import LONG_S, fleet
from tests.eventually import eventually
from tests.rig.fragile_cold import FragileCold, as_port
from tests.rig.tiers_alone import make_tiers

LOCK = b"L" * 16
BALLAST_BYTES = 64 * 1024


class Side:
    """What a daemon needs to lend rows of the cold store, and to say what became of them."""

    def __init__(self, remote: ValkeyWarm, cold: FragileCold, now_ms: Callable[[], int]) -> None:
        self.shared = SharedWarm(remote, MemoryWarm(None, now_ms), LONG_S, now_ms)
        self.tiers = make_tiers(self.shared, as_port(cold), now_ms)
        self.failover = self.tiers.failover
        self.cold = self.tiers.cold
        self.settlement = Settlement(self.tiers, Tallies())
        self.owner = Owner(self.shared, self.tiers, self.settlement)

    async def lend(self) -> None:
        """A row of three items is acquired, and in Valkey."""
        row = new_row()
        await self.cold.store([row])
        await self.cold.confirm([row.row])
        await self.shared.enter("q", await self.acquire(), NO_LIMITS)

    async def acquire(self) -> list[Slice]:
        rows = await self.cold.acquire("q", LOCK, PLENTY, PLENTY, 3600)
        return [slice_of(one, LOCK) for one in rows]

    async def deliver_all(self) -> None:
        """Until the failover has what became of it."""
        leased = await self.shared.lease("q", PLENTY, PLENTY, 60)
        assert sum(one.slice.items for one in leased) == 3
        done = [Conclusion(one.slice.bits) for one in leased]
        assert all(await self.settlement.settle("q", leased, done))
        await eventually(lambda: len(self.failover) > 0)


@asynccontextmanager
async def two_sides(
    directory: Path, rules: KeyRules = no_keys
) -> AsyncIterator[tuple[Side, Side, FragileCold]]:
    async with fleet(2) as (found, remotes):
        sqlite = SqliteCold(directory / "cold.sqlite", 10, lambda: found.time_ms, BALLAST_BYTES)
        await sqlite.open()
        sqlite.keep_keys(rules)
        cold = FragileCold(sqlite)
        one, other = (Side(remote, cold, lambda: found.time_ms) for remote in remotes)
        try:
            async with trio.open_nursery() as nursery:
                for side in (one, other):
                    await nursery.start(side.settlement.run)
                yield one, other, cold
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await sqlite.close()
