"""Daemons that look after the same schedule on one database: each tick exists once."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
import trio

from actors.config.schedules import KeptSchedules, ScheduleSettings
from actors.cron.schedules import Schedules
from actors.model.keys import Phase
from actors.ports.ticks import Marks, Tick, TickChange, TickOutcome, TickStore
from actors.ports.tiers import RowOutcome
from daemon.stores.bridge import Bridge
from daemon.stores.postgres.store import PostgresCold
from forebay.run import Run
from tests.conformance.cold_stores import LEASE_S, PLENTY, START_MS, check_books
from tests.conformance.postgres_stores import PostgresStores
from tests.rig.kept import kept_in_memory

TICKS = 1000
ROUNDS = 20


class Daemons(PostgresStores):
    def __init__(self, bridge: Bridge) -> None:
        super().__init__(bridge)
        self.others = [self.make(bytes([n]) * 16) for n in range(2)]


@pytest.fixture
async def daemons(bridge: Bridge) -> AsyncIterator[Daemons]:
    daemons = Daemons(bridge)
    for cold in (daemons.cold, *daemons.others):
        await cold.open()
    yield daemons
    for cold in daemons.others:
        await cold.close()
    await daemons.drop()


class Slow:
    """Between a decision and its step, others come first."""

    def __init__(self, ticks: TickStore, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._ticks = ticks
        self._meanwhile = meanwhile

    async def marks(self) -> Marks:
        return await self._ticks.marks()

    async def change(self, changes: Sequence[TickChange]) -> list[TickOutcome]:
        await self._meanwhile()
        return await self._ticks.change(changes)

    async def phases(self, ticks: Sequence[Tick]) -> list[Phase | None]:
        return await self._ticks.phases(ticks)


def new_cron(ticks: TickStore, **keys: object) -> Schedules:
    settings = {"queue": "q", "every": "1s", "missed": "run_all", **keys}
    schedule = ScheduleSettings.model_validate(settings)
    kept = kept_in_memory(KeptSchedules())
    return Schedules({"s": schedule}, kept, ticks, lambda _: 5, lambda _: None, lambda *_: None)


async def deliver_due(cold: PostgresCold) -> list[bytes]:
    """What is due; the keys."""
    lock = b"L" * 16
    rows = await cold.acquire("q", lock, PLENTY, PLENTY, LEASE_S)
    assert all(await cold.settle([RowOutcome(row.row, lock, row.bits) for row in rows]))
    columns = [Run(row.head, row.data).keys() for row in rows]
    return [key for column in columns for key in column]


async def test_two_that_race_for_a_thousand_ticks_install_each_once(daemons: Daemons) -> None:
    """A third one is slow: what it decides to install was delivered meanwhile, and its key is free,
    so that the mark alone must hold."""
    keys: list[bytes] = []

    async def race() -> None:
        async with trio.open_nursery() as nursery:
            for cold in daemons.others:
                nursery.start_soon(new_cron(cold.ticks).look)
                nursery.start_soon(new_cron(cold.ticks).look)
        keys.extend(await deliver_due(daemons.cold))

    for _ in range(ROUNDS):
        await new_cron(Slow(daemons.cold.ticks, race)).look()
        daemons.advance(TICKS // ROUNDS * 1000)
    await race()
    times = Counter(int(key.rpartition(b"/")[2]) for key in keys)
    assert times == Counter(range(START_MS + 1000, START_MS + TICKS * 1000 + 1, 1000))
    assert (await daemons.cold.totals())["q"].held == 4
    await check_books(daemons)


async def test_two_that_change_a_schedule_at_once_leave_one_of_both(daemons: Daemons) -> None:
    await new_cron(daemons.cold.ticks).look()
    async with trio.open_nursery() as nursery:
        for n, cold in enumerate(daemons.others):
            nursery.start_soon(new_cron(cold.ticks, payload=f"new {n}").look)
    daemons.advance(4000)
    keys = await deliver_due(daemons.cold)
    assert len({key.split(b"/")[1] for key in keys}) == 1
    assert len(keys) == 4
    await check_books(daemons)
