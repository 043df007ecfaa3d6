"""Daemons that start at once: one migrates, the others wait for it, however short their patience
with the store is otherwise."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import trio

from daemon.stores.bridge import Bridge
from daemon.stores.postgres.store import PostgresCold, PostgresSettings
from tests.eventually import eventually
from tests.servers.postgres import fresh_database

SHORT_S = 4.0
WAITS = f"""SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
    AND datname = current_database()
    AND clock_timestamp() - query_start > interval '{1.1 * SHORT_S} s'"""


class Slow:
    """A daemon that migrates, and takes its time: it has the lock that the others wait for."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def begin(self) -> None:
        self._con = await asyncpg.connect(self._url)
        await self._con.execute("SELECT pg_advisory_lock(hashtext('forebay.forebay'))")

    async def others_wait(self) -> bool:
        """For longer than any other step may take."""
        return int(await self._con.fetchval(WAITS)) == 2

    async def end(self) -> None:
        await self._con.close()


@asynccontextmanager
async def slow_one(url: str, bridge: Bridge) -> AsyncIterator[Slow]:
    slow = Slow(url)
    await bridge.run(slow.begin, 60)
    try:
        yield slow
    finally:
        await bridge.run(slow.end, 60, shield=True)


async def test_who_waits_for_another_that_migrates_does_not_give_up() -> None:
    with fresh_database() as url:
        async with Bridge() as bridge:
            settings = PostgresSettings(url, SHORT_S)
            daemons = [PostgresCold(settings, bytes([at]) * 16, bridge) for at in (1, 2)]
            async with trio.open_nursery() as nursery, slow_one(url, bridge) as slow:
                for daemon in daemons:
                    nursery.start_soon(daemon.open)
                await eventually(lambda: bridge.run(slow.others_wait, 60))
            # Whoever comes now finds nothing to do, and needs no lock.
            late = PostgresCold(settings, b"3" * 16, bridge)
            async with slow_one(url, bridge):
                await late.open()
            assert await late.totals() == {}
            for daemon in (*daemons, late):
                await daemon.close()
