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
from actors.ports.handler import Pace, Prepared, Sender
from actors.ports.tiers import ColdQueue, Limits
from actors.spooler.messages import Settle, Settled
from actors.tiers.warm import MemoryWarm
from actors.workers.group import Gate, WorkerGroup
from actors.workers.rate import Destinations, SendLimit
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

    def open_sender(self, pace: Pace) -> Sender:
        return self

    async def send(self, prepared: Prepared) -> Report:
        await trio.lowlevel.checkpoint()
        self.items += sum(slice_.items for slice_ in prepared.batch)
        return Report()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def now_ms() -> int:
    return round(trio.current_time() * 1000)


class Line:
    """A group of workers on a warm queue that is full for long."""

    def __init__(self, destination: "Destination", rate: str | int) -> None:
        self.warm = MemoryWarm(now_ms=now_ms)
        self.destination = destination
        tiers = make_tiers(self.warm, cast(ColdQueue, None), now_ms)
        self.spooler = sent_to_spooler(tiers)
        events, tallies = EventLog(EventSettings(), None, now_ms), Tallies()
        self.settlement = Settlement(tiers, tallies)
        settings = QueueSettings.model_validate({"workers": {"count": WORKERS}, "rate_limit": rate})
        gate = Gate()
        gate.set(is_open=True, except_flows=frozenset())
        self.group = WorkerGroup(
            "q",
            settings,
            destination,
            Destinations().join("q", destination.destination, settings.rate_limit),
            gate,
            WorkerShared(
                *(tiers.warm, self.settlement, Breakers(), SendLimit(0), now_ms, events, tallies),
                cores=2,
            ),
        )

    async def fill(self, runs: int) -> None:
        for position in range(runs):
            head, data = make_run(items=100, size=10)
            run = LentRun(head, data, InJournal(position, position))
            await self.warm.enter("q", [Slice(run, item_bits(0, 100))], LIMITS)

    async def run(self, minutes: float) -> int:
        """How many items were settled in this time. No lease may run out."""
        settled = 0

        async def expire() -> None:
            while True:
                await trio.sleep(1)
                assert await self.warm.expire() == {}

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.group.run)
            nursery.start_soon(expire)
            with trio.move_on_after(60 * minutes):
                while True:
                    message = await self.spooler.receive()
                    assert isinstance(message, Settle)
                    settled += sum(
                        outcome.last - outcome.first
                        for outcome in message.outcomes
                        if isinstance(outcome, Settled)
                    )
            nursery.cancel_scope.cancel()
        assert self.settlement.stale_total == 0
        return settled


async def test_many_workers_and_a_low_rate_go_on_for_ever(autojump_clock: MockClock) -> None:
    """Each would wait longer for its turn than a lease lasts: so nobody leases before it."""
    line = Line(Destination(), RATE)
    await line.fill(RATE * 60 * MINUTES // 100 + 10)
    await line.run(MINUTES)
    assert line.destination.items >= RATE * 60 * MINUTES * 0.99


class SplittingDestination(Destination):
    """Makes several requests for each batch."""

    REQUESTS = 10

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[float] = []

    def open_sender(self, pace: Pace) -> "SplittingSender":
        return SplittingSender(self, pace)


class SplittingSender:
    def __init__(self, to: SplittingDestination, pace: Pace) -> None:
        self._to = to
        self._pace = pace

    async def send(self, prepared: Prepared) -> Report:
        for number in range(SplittingDestination.REQUESTS):
            if number:
                await self._pace.request()
            self._to.requests.append(trio.current_time())
        return await self._to.send(prepared)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_further_requests_of_a_batch_wait_and_stay_leased(autojump_clock: MockClock) -> None:
    """A batch takes ten minutes here, and a lease lasts for 50 s. Workers that wait for their first
    request let those go first that are in the middle of a batch."""
    destination = SplittingDestination()
    line = Line(destination, "1 request/min")
    await line.fill(10)
    settled = await line.run(60.5)
    # No token is lost, and none is used twice.
    assert [round(at / 60, 3) for at in destination.requests] == list(range(61))
    assert destination.items == 60, "six batches of ten"
    assert settled == 60
