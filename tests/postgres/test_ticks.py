"""Daemons that look after the same schedule on one database: each tick exists once."""

from collections import Counter
from collections.abc import AsyncIterator

import pytest
import trio

from actors.cron import Cron
from actors.schedule_book import Kept, ScheduleBook
from actors.schedules import ScheduleSettings
from actors.tiers import RowOutcome
from daemon.bridge import Bridge
from daemon.postgres.cold import PostgresCold
from forebay.run import Run
from tests.conformance.cold_stores import LEASE_S, PLENTY, START_MS, check_books
from tests.conformance.postgres_stores import PostgresStores

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


def new_cron(cold: PostgresCold, **keys: object) -> Cron:
    async def save(kept: Kept) -> None:
        pass

    settings = {"queue": "q", "every": "1s", "missed": "run_all", **keys}
    schedule = ScheduleSettings.model_validate(settings)
    book = ScheduleBook({"s": schedule}, Kept(), save, lambda _: 5)
    return Cron(book, cold.ticks, lambda _: 5, lambda _: None)


async def deliver_due(cold: PostgresCold) -> list[bytes]:
    """What is due; the keys."""
    lock = b"L" * 16
    rows = await cold.acquire("q", lock, PLENTY, PLENTY, LEASE_S)
    assert all(await cold.settle([RowOutcome(row.row, lock, row.bits) for row in rows]))
    return [key for row in rows for key in Run(row.head, row.data).keys()]


async def test_two_that_race_for_a_thousand_ticks_install_each_once(daemons: Daemons) -> None:
    """Each tick is delivered at once and its key is free: the mark alone must hold."""
    keys: list[bytes] = []
    for _ in range(ROUNDS):
        async with trio.open_nursery() as nursery:
            for cold in daemons.others:
                nursery.start_soon(new_cron(cold).look)
                nursery.start_soon(new_cron(cold).look)
        keys += await deliver_due(daemons.cold)
        daemons.advance(TICKS // ROUNDS * 1000)
    for cold in daemons.others:
        await new_cron(cold).look()
    keys += await deliver_due(daemons.cold)
    times = Counter(int(key.rpartition(b"/")[2]) for key in keys)
    assert times == Counter(range(START_MS + 1000, START_MS + TICKS * 1000 + 1, 1000))
    assert (await daemons.cold.totals())["q"].held == 4
    await check_books(daemons)


async def test_two_that_change_a_schedule_at_once_leave_one_of_both(daemons: Daemons) -> None:
    await new_cron(daemons.cold).look()
    async with trio.open_nursery() as nursery:
        for n, cold in enumerate(daemons.others):
            nursery.start_soon(new_cron(cold, payload=f"new {n}").look)
    daemons.advance(4000)
    keys = await deliver_due(daemons.cold)
    assert len({key.split(b"/")[1] for key in keys}) == 1
    assert len(keys) == 4
    await check_books(daemons)
