"""Workers that stand in line for a slow destination, on trio's clock."""

from collections.abc import Sequence
from typing import cast

import trio
from trio.testing import MockClock

from actors.breaker.breaker import Breakers
from actors.config.observers import EventSettings
from actors.config.queue import QueueSettings
from actors.model.outcomes import Report
from actors.model.slices import InJournal, LentRun, Slice, item_bits
from actors.observers.event_log import EventLog
from actors.observers.tallies import Tallies
from actors.ports.handler import Prepared
from actors.ports.tiers import ColdQueue, Limits
from actors.spooler.messages import Settle
from actors.tiers.warm import MemoryWarm
from actors.workers.group import Gate, WorkerGroup
from actors.workers.rate import SendLimit, TokenBucket
from actors.workers.sending import WorkerShared
from actors.workers.settlement import Settlement
from tests.actors.spooler.spooling import make_run
from tests.rig.tiers_alone import make_tiers, sent_to_spooler

RATE = 10
WORKERS = 64
MINUTES = 10
LIMITS = Limits(10**6, 1 << 30)


class Destination:
    destination = "there"
    batch_items = 10
    batch_bytes = 1 << 20
    timeout_s = 10.0

    def __init__(self) -> None:
        self.items = 0

    def prepare(self, batch: Sequence[Slice]) -> Prepared:
        return Prepared(batch, None)

    def open_sender(self) -> "Destination":
        return self

    async def send(self, prepared: Prepared) -> Report:
        await trio.lowlevel.checkpoint()
        self.items += sum(slice_.items for slice_ in prepared.batch)
        return Report()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def now_ms() -> int:
    return round(trio.current_time() * 1000)


async def test_many_workers_and_a_low_rate_go_on_for_ever(autojump_clock: MockClock) -> None:
    """Each would wait longer for its turn than a lease lasts: so nobody leases before it."""
    warm = MemoryWarm(now_ms=now_ms)
    runs = RATE * 60 * MINUTES // 100 + 10
    for position in range(runs):
        head, data = make_run(items=100, size=10)
        run = LentRun(head, data, InJournal(position, position))
        await warm.enter("q", [Slice(run, item_bits(0, 100))], LIMITS)
    tiers = make_tiers(warm, cast(ColdQueue, None), now_ms)
    spooler = sent_to_spooler(tiers)
    events, tallies = EventLog(EventSettings(), None, now_ms), Tallies()
    settlement = Settlement(tiers, tallies)
    settings = QueueSettings.model_validate({"workers": {"count": WORKERS}, "rate_limit": RATE})
    destination, gate = Destination(), Gate()
    gate.set(is_open=True, except_flows=frozenset())
    group = WorkerGroup(
        "q",
        settings,
        destination,
        TokenBucket(RATE, 10),
        gate,
        WorkerShared(warm, settlement, Breakers(), SendLimit(0), now_ms, events, tallies, cores=2),
    )
    settled = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(group.run)
        with trio.move_on_after(60 * MINUTES):
            while True:
                message = await spooler.receive()
                assert isinstance(message, Settle)
                settled += len(message.outcomes)
                assert await warm.expire() == {}
        nursery.cancel_scope.cancel()
    assert destination.items >= RATE * 60 * MINUTES * 0.99
    assert settlement.stale_total == 0
