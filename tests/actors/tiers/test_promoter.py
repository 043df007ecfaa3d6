"""The promoter's line on real tiers: nothing of it is lost, starves others, or takes too much."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.ports.tiers import Ending, NewRow, StoreUnavailable
from actors.tiers import promoter
from actors.tiers.line import Promotion
from actors.tiers.warm import MemoryWarm
from daemon.stores.sqlite.store import SqliteCold
from forebay import encode_run
from forebay.ids import format_item_id, new_run_id
from forebay.run import read_head
from tests.eventually import eventually
from tests.rig.fragile_cold import FragileCold, as_port
from tests.rig.rig import Rig, running
from tests.rig.tiers_alone import make_tiers

WARM_MAX = 3
SIZE = 1000


class Bench:
    """A promoter between SQLite and this process's warm, and nobody else."""

    def __init__(
        self, directory: Path, bytes_max: int | None, acquire_s: float, warm_max: int
    ) -> None:
        self.now_ms = 1_000_000
        self.warm_max = warm_max
        self.sqlite = SqliteCold(directory / "cold.sqlite", 60, lambda: self.now_ms)
        self.cold = FragileCold(self.sqlite)
        self.warm = MemoryWarm(bytes_max, lambda: self.now_ms)
        self.tiers = make_tiers(
            self.warm,
            as_port(self.cold),
            lambda: self.now_ms,
            bytes_max=bytes_max,
            defaults={"warm_max_items": warm_max},
            acquire_s=acquire_s,
        )
        self.promoter = self.tiers.promoter

    def line(self, queue: str = "q") -> Promotion:
        line = self.tiers.states.line(queue)
        assert line is not None
        return line

    async def store(self, runs: int = 1, due_ms: int = 0, **fields: Any) -> None:
        """Runs of one item, as if the router had handed them over."""
        rows = []
        for _ in range(runs):
            data = encode_run([b"x" * SIZE], compressed=False, **{"queue": "q", **fields})
            rows.append(NewRow(new_run_id(), read_head(data), data, 1, due_ms=due_ms))
        await self.sqlite.store(rows)
        await self.sqlite.confirm([row.row for row in rows])
        self.promoter.wake(rows[0].head.queue, rows[0].head.priority)

    async def until_full(self, ahead: int = WARM_MAX) -> None:
        """Until warm is, and so many at least are in line."""

        async def check() -> None:
            fill = await self.warm.fill("q")
            assert fill.items >= self.warm_max, fill
            assert self.line().items >= ahead, self.line().items

        await eventually(check)

    async def until_line_is_empty(self) -> None:
        def check() -> None:
            assert self.line().items == 0, self.line().items

        await eventually(check)

    async def until_asked_to_settle(self) -> None:
        def check() -> None:
            assert "settle" in self.cold.calls, self.cold.calls

        await eventually(check)

    async def deliver(self, items: int, queue: str = "q") -> list[int]:
        """As workers do; the priorities, in the order in which the items came."""
        found: list[int] = []
        while len(found) < items:
            for leased in await self.warm.lease(queue, 1, 1 << 30, 60):
                found.append(leased.slice.run.head.priority)
                await self.warm.end(queue, [Ending(leased.token)])
                # The settler does that, when it has recorded the outcome.
                self.promoter.wake(queue)
            await trio.lowlevel.checkpoint()
        return found


@asynccontextmanager
async def promoting(
    directory: Path,
    *queues: str,
    bytes_max: int | None = None,
    acquire_s: float = 60,
    warm_max: int = WARM_MAX,
    ticks: bool = False,
) -> AsyncIterator[Bench]:
    bench = Bench(directory, bytes_max, acquire_s, warm_max)
    await bench.sqlite.open()
    try:
        async with trio.open_nursery() as nursery:
            for queue in queues or ("q",):
                nursery.start_soon(bench.promoter.promote, queue)
            if ticks:
                nursery.start_soon(bench.promoter.run)
            yield bench
            nursery.cancel_scope.cancel()
    finally:
        await bench.sqlite.close()


async def test_what_cold_does_not_take_back_is_kept_and_delivered(tmp_path: Path) -> None:
    async with promoting(tmp_path) as bench:
        await bench.store(runs=6, flow="f")
        await bench.until_full()
        bench.cold.break_down("settle")
        await bench.tiers.states.catalogue.pause("q", "f")
        bench.promoter.wake("q")
        await bench.until_asked_to_settle()
        await bench.until_full()
        assert (await bench.warm.fill("q")).items == WARM_MAX
        bench.cold.mend()
        await bench.tiers.states.catalogue.resume("q", "f")
        bench.promoter.wake("q")
        assert await bench.deliver(6) == [5] * 6


async def test_what_cold_takes_back_later_is_due_there(tmp_path: Path) -> None:
    async with promoting(tmp_path) as bench:
        await bench.store(runs=6, flow="f")
        await bench.until_full()
        bench.cold.break_down("settle")
        await bench.tiers.states.catalogue.pause("q", "f")
        bench.promoter.wake("q")
        await bench.until_asked_to_settle()
        bench.cold.mend()
        bench.promoter.wake("q")
        await bench.until_line_is_empty()

        async def has_due() -> bool:
            return (await bench.sqlite.outlook("q")).has_due

        await eventually(has_due)
        rows = await bench.sqlite.acquire("q", new_run_id(), 100, 1 << 30, 60)
        assert len(rows) == 3


async def test_a_queue_does_not_starve_beside_one_that_fills_the_memory(tmp_path: Path) -> None:
    async with promoting(tmp_path, "full", "q", bytes_max=4 * SIZE) as bench:
        await bench.store(runs=12, queue="full")

        async def is_full() -> bool:
            fill = await bench.warm.fill("full")
            return fill.items >= WARM_MAX and bench.line("full").items > 0

        await eventually(is_full)
        await bench.store(runs=5)
        assert await bench.deliver(5) == [5] * 5
        assert (await bench.warm.fill("full")).items == WARM_MAX


async def test_what_is_urgent_overtakes_as_far_as_there_is_memory(tmp_path: Path) -> None:
    async with promoting(tmp_path, bytes_max=8 * SIZE) as bench:
        await bench.store(runs=20)
        await bench.until_full()
        for _ in range(5):
            await bench.store(runs=2, priority=0)
            # Whatever was to be acquired has been when the next question is answered.
            for _ in range(3):
                await bench.sqlite.totals()
        await eventually(lambda: bench.line().slices[0].run.head.priority == 0)
        fill = await bench.warm.fill("q")
        assert bench.line().bytes + fill.bytes <= 10 * SIZE


async def test_what_comes_due_overtakes_a_line_that_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promoter, "TICK_S", 0.01)
    async with promoting(tmp_path, warm_max=20) as bench:
        await bench.store(priority=0, due_ms=bench.now_ms + 1000)
        await bench.store(runs=60)
        await bench.until_full(ahead=20)
        bench.now_ms += 1000
        delivered = await bench.deliver(1)

        def check() -> None:
            line = bench.line().slices
            bench.promoter.wake("q")
            assert not line or line[0].run.head.priority == 0, line

        await eventually(check)
        delivered += await bench.deliver(60)
        assert sorted(delivered) == [0] + [5] * 60
        assert delivered.index(0) < 10


async def test_rows_that_others_have_acquired_leave_the_line(tmp_path: Path) -> None:
    async with promoting(tmp_path, acquire_s=0.03, ticks=True) as bench:
        await bench.store(runs=6)
        await bench.until_full()
        bench.cold.break_down("renew", "totals", "acquire")
        # What had begun before is over when this is answered.
        await bench.sqlite.totals()
        bench.now_ms += 60_000
        other = new_run_id()
        assert len(await bench.sqlite.acquire("q", other, 100, 1 << 30, 3600)) == 6
        bench.cold.mend()
        await bench.until_line_is_empty()
        assert await bench.sqlite.renew([other], 3600) == [6]


# On the whole core.

STANDING: dict[str, Any] = {"q": {"handler": {"type": "pull"}, "warm_max_items": WARM_MAX}}


async def stand_still(rig: Rig, runs: int, items: int = 1) -> list[str]:
    """Pushes into a queue that nobody drains; the ids of what is in line then."""
    for _ in range(runs):
        await rig.push(items)
    await rig.until_books(spooled=0)
    line = rig.life.line()
    # With more than half of what it takes it is content.
    await eventually(lambda: line.items >= 2)
    return [
        format_item_id(part.run.head.run_id, part.bits.bit_length() - 1) for part in line.slices
    ]


async def test_what_is_in_line_can_be_deleted(tmp_path: Path) -> None:
    async with running(tmp_path, STANDING) as rig:
        ids = await stand_still(rig, runs=10)
        for item_id in reversed(ids):
            await rig.control("items.delete", id=item_id)
        gone = len(ids)
        left = {"deleted": gone, "held": 10 - gone, "warm": 3, "cold": 7 - gone}
        assert await rig.books() == {"accepted": 10, **left}


async def test_an_item_in_line_is_changed_and_the_rest_of_its_run_stays(tmp_path: Path) -> None:
    async with running(tmp_path, STANDING) as rig:
        (*_, item_id) = await stand_still(rig, runs=3, items=4)
        before = rig.life.line().items
        await rig.control("items.change", id=item_id, due_ms=rig.now_ms() + 3_600_000)
        assert (await rig.control("items.show", id=item_id))["due_ms"] > rig.now_ms()
        assert rig.life.line().items >= before - 1
        assert (await rig.books())["held"] == 12


async def test_a_change_that_cold_does_not_take_leaves_the_item_in_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, STANDING) as rig:
        (item_id, *_) = await stand_still(rig, runs=10)

        async def fail(*_: object) -> bool:
            raise StoreUnavailable("away")

        with monkeypatch.context() as patch:
            patch.setattr(rig.life.sqlite.items, "delete", fail)
            with pytest.raises(StoreUnavailable):
                await rig.control("items.delete", id=item_id)
        assert await rig.books() == {"accepted": 10, "held": 10, "warm": 3, "cold": 7}
        await rig.control("items.delete", id=item_id)
        assert (await rig.books())["deleted"] == 1
