"""Delivery with a real spooler: pumps, failing destinations, and what a drain leaves."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from trio.testing import MockClock

from actors.delivery import Delivery
from actors.messages import (
    Finish,
    Lease,
    QueueSeen,
    Settle,
    SpoolerMessage,
    StoredRun,
    Take,
)
from actors.ports import DeliveryFailed, Handler, Undeliverable
from actors.settings import QueueSettings
from actors.spooler import Spooler
from daemon.journal.files import Files
from daemon.journal.journal import Journal
from tests.unit.spooling import HANG_S, Desk, make_run, spool_settings


class Destination:
    """Takes what it is given, or fails as it is told."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.tried = 0
        self.failures_left = 0
        self.is_poisoned = False
        self.gate = trio.Event()
        self.gate.set()
        self.is_closed = False

    async def deliver(self, run: StoredRun, done: int) -> None:
        self.tried += 1
        await self.gate.wait()
        if self.is_poisoned:
            raise Undeliverable("poison")
        if self.failures_left:
            self.failures_left -= 1
            raise DeliveryFailed("not now")
        self.taken.append(run.head.count)

    async def aclose(self) -> None:
        self.is_closed = True


class Pipeline:
    def __init__(self, desk: Desk, delivery: Delivery) -> None:
        self.desk = desk
        self.delivery = delivery


@asynccontextmanager
async def running_delivery(
    directory: Path, open_handler: Callable[[str], Handler | None]
) -> AsyncIterator[Pipeline]:
    to_spooler, inbox = trio.open_memory_channel[SpoolerMessage](100)
    seen, delivery_inbox = trio.open_memory_channel[QueueSeen](math.inf)
    settings = spool_settings()
    spooler = Spooler(
        settings,
        lambda _: QueueSettings(),
        Journal(Files(directory), settings),
        inbox=inbox,
        own_inbox=to_spooler.clone(),
        seen=seen,
    )
    delivery = Delivery(delivery_inbox, to_spooler.clone(), open_handler)
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as storing:
            await storing.start(spooler.run)
            async with trio.open_nursery() as delivering:
                await delivering.start(delivery.run)
                yield Pipeline(Desk(to_spooler), delivery)
                delivery.drain()
            await to_spooler.send(Finish())
            await spooler.finished.wait()


async def until(desk: Desk, queue: str = "q", **wanted: int) -> None:
    while True:
        totals = await desk.totals(queue)
        if all(totals.get(name, 0) == count for name, count in wanted.items()):
            return


async def test_runs_are_delivered_in_order_and_settled(tmp_path: Path) -> None:
    destination = Destination()
    async with running_delivery(tmp_path, lambda _: destination) as pipeline:
        await pipeline.desk.push(*(make_run(items=count) for count in (1, 2, 3)))
        await until(pipeline.desk, delivered=6, held=0)
    assert destination.taken == [1, 2, 3]
    assert destination.is_closed


async def test_queue_without_a_handler_holds_its_items(tmp_path: Path) -> None:
    async with running_delivery(tmp_path, lambda _: None) as pipeline:
        await pipeline.desk.push(make_run(items=4))
        await until(pipeline.desk, accepted=4, held=4, spooled=4)


async def test_what_waits_on_disk_is_delivered_after_a_start(tmp_path: Path) -> None:
    async with running_delivery(tmp_path, lambda _: None) as pipeline:
        await pipeline.desk.push(make_run(items=4))
    destination = Destination()
    async with running_delivery(tmp_path, lambda _: destination) as pipeline:
        await until(pipeline.desk, delivered=4)
    assert destination.taken == [4]


async def test_failing_destination_is_tried_again_and_nothing_is_skipped(tmp_path: Path) -> None:
    destination = Destination()
    destination.failures_left = 2
    async with running_delivery(tmp_path, lambda _: destination) as pipeline:
        await pipeline.desk.push(make_run(items=1), make_run(items=2))
        await until(pipeline.desk, delivered=3)
    assert destination.taken == [1, 2]
    assert destination.tried == 4


async def test_hanging_queue_holds_up_no_other(tmp_path: Path) -> None:
    hanging, working = Destination(), Destination()
    hanging.gate = trio.Event()
    handlers = {"slow": hanging, "fast": working}
    async with running_delivery(tmp_path, handlers.__getitem__) as pipeline:
        await pipeline.desk.push(make_run("slow"), make_run("fast", items=5))
        await until(pipeline.desk, "fast", delivered=5)
        assert hanging.taken == []
        hanging.gate.set()


async def test_what_cannot_be_unpacked_is_dropped_and_counted(tmp_path: Path) -> None:
    destination = Destination()
    destination.is_poisoned = True
    async with running_delivery(tmp_path, lambda _: destination) as pipeline:
        await pipeline.desk.push(make_run(items=2))
        await until(pipeline.desk, dropped=2, held=0)


async def test_drain_finishes_the_run_in_hand_and_gives_back_the_rest(tmp_path: Path) -> None:
    destination = Destination()
    destination.gate = trio.Event()
    async with running_delivery(tmp_path, lambda _: destination) as pipeline:
        await pipeline.desk.push(make_run(items=1), make_run(items=2))
        while not destination.tried:
            await trio.testing.wait_all_tasks_blocked()
        pipeline.delivery.drain()
        destination.gate.set()
        await until(pipeline.desk, delivered=1, spooled=2, running=0)
    assert destination.taken == [1]


async def test_drain_does_not_wait_for_a_dead_destination(tmp_path: Path) -> None:
    destination = Destination()
    destination.failures_left = 10**9
    async with running_delivery(tmp_path, lambda _: destination) as pipeline:
        await pipeline.desk.push(make_run(items=1), make_run(items=2))
        while destination.tried < 3:
            await pipeline.desk.stats()
        before = destination.tried
        pipeline.delivery.drain()
        await until(pipeline.desk, spooled=3, running=0)
        assert destination.tried <= before + 1


async def test_settle_waits_for_a_full_inbox(autojump_clock: MockClock) -> None:
    """However long the spooler is busy with a slow disk, what was delivered is settled."""
    to_spooler, inbox = trio.open_memory_channel[SpoolerMessage](0)
    seen, delivery_inbox = trio.open_memory_channel[QueueSeen](1)
    delivery = Delivery(delivery_inbox, to_spooler, lambda _: Destination())
    head, data = make_run(items=2)
    lease = Lease(1, StoredRun(0, len(data), head, data), done=0)
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(delivery.run)
            await seen.send(QueueSeen("q"))
            take = await inbox.receive()
            assert isinstance(take, Take)
            take.answer([lease])
            await trio.sleep(HANG_S / 2)
            settle = await inbox.receive()
            assert isinstance(settle, Settle)
            assert [outcome.run_id for outcome in settle.outcomes] == [head.run_id]
            nursery.cancel_scope.cancel()
