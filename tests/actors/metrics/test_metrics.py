"""The metrics' actor: one snapshot a second for all who ask, and a sample every 5 s."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.config.schedules import KeptSchedules
from actors.config.settings import Settings
from actors.config.triggers import KeptTriggers
from actors.control.items import Items
from actors.cron.cron import Cron, KeptCron
from actors.keys.keys import Keys
from actors.metrics.metrics import ANSWER_S, OLDEST_S, PATIENCE_S, Metrics
from actors.metrics.samples import WHOLE
from actors.model.attempts import Attempts
from actors.model.slices import InJournal, LentRun, Slice, item_bits
from actors.observers.observers import Observers
from actors.ports.tiers import Limits, NewRow, StoreUnavailable
from actors.tiers.warm import MemoryWarm
from actors.workers.workers import Workers
from daemon.notify.ways import make_ways
from daemon.stores.sqlite.store import SqliteCold
from forebay.ids import new_run_id
from forebay.run import encode_run, read_head
from tests.rig.fragile_cold import FragileCold, as_port
from tests.rig.kept import kept_in_memory
from tests.rig.tiers_alone import make_tiers

NOW_MS = 1_700_000_000_000
MB = 10**6
PLENTY = Limits(10**9, 10**12)


class Connections:
    def figures(self) -> dict[str, Any]:
        return {"connections": 2}


class World:
    """Real tiers, and books that the test writes."""

    def __init__(self, cold: SqliteCold) -> None:
        self.cold = FragileCold(cold)
        self.warm = MemoryWarm(now_ms=self.now_ms)
        self.accepted = 10
        self.reports = 0
        self.answers = trio.Event()
        self.answers.set()
        queues = {"q": {"warm_max_items": 7}}
        self.tiers = make_tiers(self.warm, as_port(self.cold), self.now_ms, queues=queues)
        self.tiers.spooler.counts.runs = 3
        self.tiers.states.of("s").is_stream = True
        self.tiers.is_away = lambda: {"cold": False, "disk": True}  # type: ignore[method-assign]
        catalogue = self.tiers.states.catalogue
        settings = Settings()
        ways = make_ways(catalogue, self.tiers.spooler.client)
        observers = Observers(
            settings, catalogue, cold, self.tiers.spooler, None, ways, self.now_ms
        )
        self.tallies = observers.tallies
        workers = Workers(settings, self.tiers, catalogue, observers, lambda *_: None, None)
        keys = Keys(self.tiers, catalogue)
        items = Items(self.tiers, workers, observers.history, 1000)
        kept = KeptCron(kept_in_memory(KeptSchedules()), kept_in_memory(KeptTriggers()))
        cron = Cron(settings, kept, self.tiers, catalogue, observers, items)
        self.metrics = Metrics(
            catalogue, self.tiers, workers, keys, cron, observers, is_shared=False
        )
        self.metrics.books.report = self.report  # type: ignore[method-assign, assignment]
        self.metrics.ingest = Connections()

    def now_ms(self) -> int:
        return NOW_MS + round(trio.current_time() * 1000)

    async def report(self) -> dict[str, Any]:
        self.reports += 1
        await self.answers.wait()
        names = "delivered dead spooled scheduled warm cold running"
        entry = dict.fromkeys(names.split(), 0) | {"accepted": self.accepted}
        spool = {"bytes": MB * self.reports, "disk_bytes": 0, "free_bytes": 9}
        return {"daemon": entry, "queues": {"q": entry}, "spool": spool}


def a_run(items: int, queue: str = "q", enqueued_ms: int = NOW_MS - 5000) -> bytes:
    return encode_run([b"x"] * items, queue=queue, flow="f", action="a", enqueued_ms=enqueued_ms)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    cold = SqliteCold(tmp_path / "cold.sqlite", timeout_s=30)
    await cold.open()
    yield World(cold)
    await cold.close()


@asynccontextmanager
async def sampling(world: World) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(world.metrics.run)
        yield
        nursery.cancel_scope.cancel()


async def sampled(world: World, samples: int) -> None:
    """SQLite answers in a thread, which no clock of a test waits for."""
    while len(world.metrics.samples.of(WHOLE)) < samples:
        await trio.lowlevel.checkpoint()
    await wait_all_tasks_blocked()


async def test_all_who_ask_within_a_second_get_the_same(
    world: World, mock_clock: MockClock
) -> None:
    first = await world.metrics.snapshot()
    mock_clock.jump(0.9)
    assert await world.metrics.snapshot() is first
    mock_clock.jump(0.2)
    second = await world.metrics.snapshot()
    assert second is not first
    assert (world.reports, second.at_ms) == (2, NOW_MS + 1100)


async def test_one_is_made_at_a_time_however_many_ask(world: World) -> None:
    world.answers = trio.Event()
    found: list[object] = []

    async def ask() -> None:
        found.append(await world.metrics.snapshot())

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        world.answers.set()
    assert len(found) == 20
    assert all(snapshot is found[0] for snapshot in found)
    assert world.reports == 1


async def test_it_shows_what_the_tiers_hold_by_flow(world: World) -> None:
    data = a_run(4)
    run = LentRun(read_head(data), data, InJournal(1, 2))
    await world.warm.enter("q", [Slice(run, item_bits(0, 4))], PLENTY)
    stored = a_run(9, enqueued_ms=NOW_MS - 9000)
    row = NewRow(new_run_id(), read_head(stored), stored, item_bits(0, 9))
    await world.cold.store([row])
    await world.cold.confirm([row.row])
    shown = await world.metrics.snapshot()
    (flow,) = shown.flows
    assert (flow.warm, flow.cold, flow.dead) == (4, 9, 0)
    assert (flow.warm_oldest_ms, flow.oldest_ms) == (NOW_MS - 5000, NOW_MS - 9000)
    assert shown.fills["q"].items == 4
    assert shown.limits["q"].items == 7
    assert shown.defined == {"q"}
    assert shown.stores == {"cold": True, "disk": False}


async def test_a_cold_store_that_is_away_leaves_what_it_said(
    world: World, mock_clock: MockClock
) -> None:
    stored = a_run(9)
    row = NewRow(new_run_id(), read_head(stored), stored, item_bits(0, 9))
    await world.cold.store([row])
    await world.cold.confirm([row.row])
    before = await world.metrics.snapshot()
    world.cold.break_down("flows", "oldest")
    mock_clock.jump(2)
    world.accepted = 11
    after = await world.metrics.snapshot()
    assert after.report["daemon"]["accepted"] == 11
    assert after.flows == before.flows


async def test_a_journal_that_does_not_answer_leaves_what_was_shown_before(
    world: World, mock_clock: MockClock
) -> None:
    before = await world.metrics.snapshot()
    world.answers = trio.Event()
    mock_clock.jump(2)
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            assert await world.metrics.snapshot() is before

        nursery.start_soon(ask)
        while world.reports < 2:
            await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        mock_clock.jump(ANSWER_S)


async def test_while_the_disk_is_slow_the_last_one_is_shown_at_once(
    world: World, mock_clock: MockClock
) -> None:
    async with sampling(world):
        await sampled(world, 1)
        before = await world.metrics.snapshot()
        world.answers = trio.Event()
        mock_clock.jump(2)
        found: list[object] = []

        async def ask() -> None:
            found.append(await world.metrics.snapshot())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
            while world.reports < 2:
                await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked()
            assert found == []
            mock_clock.jump(PATIENCE_S)
        assert found == [before, before]
        assert world.reports == 2
        world.answers.set()
        while (after := await world.metrics.snapshot()) is before:
            mock_clock.jump(PATIENCE_S)
            await trio.lowlevel.checkpoint()
        assert after.at_ms > before.at_ms
        assert world.reports == 2


async def test_without_anything_to_show_it_says_so(world: World, mock_clock: MockClock) -> None:
    world.answers = trio.Event()
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(StoreUnavailable):
                await world.metrics.snapshot()

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        mock_clock.jump(ANSWER_S)


async def test_a_sample_is_taken_every_5_seconds(world: World, mock_clock: MockClock) -> None:
    async with sampling(world):
        await sampled(world, 1)
        mock_clock.jump(4.9)
        await wait_all_tasks_blocked()
        assert len(world.metrics.samples.of("q")) == 1
        for number, seconds in ((2, 0.1), (3, 5), (4, 5)):
            world.accepted += 100
            mock_clock.jump(seconds)
            await sampled(world, number)
    found = world.metrics.samples.of("q")
    assert [sample.accepted for sample in found] == [10, 110, 210, 310]
    assert world.metrics.samples.rates("q").accepted == pytest.approx(20, rel=0.02)
    assert world.metrics.spool_forecast().direction == "full"
    assert [point.bytes for point in world.metrics.spool_points(8)] == [3 * MB, 4 * MB]


async def test_the_sampler_outlives_stores_that_do_not_answer(
    world: World, mock_clock: MockClock
) -> None:
    world.answers = trio.Event()
    async with sampling(world):
        await wait_all_tasks_blocked()
        mock_clock.jump(ANSWER_S)
        await wait_all_tasks_blocked()
        assert world.metrics.samples.of(WHOLE) == []
        world.answers.set()
        mock_clock.jump(5)
        await sampled(world, 1)


async def test_percentiles_and_failures_of_a_queue(world: World) -> None:
    assert await world.metrics.attempts("q") == Attempts()
    world.tallies.sent("q", 5, 2.0, is_failed=False)
    world.tallies.of("q").failed.update({"application": 3, "business": 2})
    found = await world.metrics.attempts("q")
    took = found.processing.percentiles()
    assert (took.items, took.average_s) == (5, 2.0)
    assert (found.application, found.business) == (3, 2)


async def test_queues_with_consumers_are_streams(world: World) -> None:
    assert world.metrics.is_stream("s")
    assert not world.metrics.is_stream("q")


async def test_the_oldest_in_cold_are_looked_up_every_5_seconds_or_for_a_new_flow(
    world: World, mock_clock: MockClock
) -> None:
    async def store(queue: str, age_ms: int) -> None:
        stored = a_run(2, queue, NOW_MS - age_ms)
        row = NewRow(new_run_id(), read_head(stored), stored, item_bits(0, 2))
        await world.cold.store([row])
        await world.cold.confirm([row.row])

    async def oldest() -> dict[str, int | None]:
        mock_clock.jump(1.1)
        flows = (await world.metrics.snapshot()).flows
        return {flow.queue: flow.oldest_ms for flow in flows}

    await store("q", 100)
    assert await oldest() == {"q": NOW_MS - 100}
    await store("q", 900)
    assert await oldest() == {"q": NOW_MS - 100}
    await store("r", 300)
    assert await oldest() == {"q": NOW_MS - 900, "r": NOW_MS - 300}
    await store("q", 950)
    mock_clock.jump(OLDEST_S - 1.1)
    assert await oldest() == {"q": NOW_MS - 950, "r": NOW_MS - 300}
