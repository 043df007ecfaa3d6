"""Where runs go: warm, cold, and back; limits and order hold on the way.

`Rig.stats` looks at the limits of every queue each time it is asked.
"""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors.tiers.line import Promotion
from forebay.item import Item
from tests.rig.rig import Rig, running
from tests.rig.scripted import items_fail

SMALL = {"warm_max_items": 10}


async def overflow(rig: Rig, runs: int, items: int = 4, **fields: Any) -> list[str]:
    """Pushes while nothing is answered, until all of it has found its place."""
    rig.to(fields.get("queue", "q")).is_patient = True
    ids = []
    for _ in range(runs):
        ids += await rig.push(items, **fields)
        await rig.stats()
    return ids


def urgent_items(line: Promotion) -> int:
    slices = [*line.entering, *line.slices]
    return sum(slice_.items for slice_ in slices if slice_.run.head.priority == 0)


class TestOverflow:
    async def test_what_is_over_the_limit_is_cold_and_comes_back_in_order(
        self, tmp_path: Path
    ) -> None:
        async with running(tmp_path, {"q": SMALL}, batch_items=3) as rig:
            ids = await overflow(rig, runs=12)
            books = await rig.until_books(spooled=0, cold=38)
            assert (books["running"], books["warm"]) == (3, 7)
            assert (await rig.stats())["tiers"] == {"q": "cold"}
            while rig.to().inside:
                begun = len(rig.to().batches)
                rig.to().answer()
                await rig.stats()
                if len(rig.to().first_attempts()) < len(ids):
                    await rig.to().until_begun(begun + 1)
            assert await rig.until_books(held=0) == {"accepted": 48, "delivered": 48}
            assert rig.to().ids == ids

    async def test_a_run_bigger_than_the_limit_is_delivered_slice_by_slice(
        self, tmp_path: Path
    ) -> None:
        async with running(tmp_path, {"q": {"warm_max_items": 3}}, batch_items=100) as rig:
            ids = await overflow(rig, runs=2, items=20)
            await rig.until_books(spooled=0)
            rig.to().open_up()
            await rig.until_books(held=0, delivered=40)
            assert rig.to().ids == ids
            assert max(len(batch.items) for batch in rig.to().batches) <= 3

    async def test_a_limit_of_one_works(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"q": {"warm_max_items": 1}}) as rig:
            ids = await overflow(rig, runs=3, items=2)
            rig.to().open_up()
            await rig.until_books(held=0, delivered=6)
            assert rig.to().ids == ids

    async def test_a_queue_that_stands_still_costs_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with running(tmp_path, {"q": SMALL}, batch_items=3) as rig:
            await overflow(rig, runs=12)
            await rig.until_books(spooled=0)
            steps = 0
            enter = rig.life.warm.enter

            async def counted(*args: Any) -> Any:
                nonlocal steps
                steps += 1
                return await enter(*args)

            monkeypatch.setattr(rig.life.warm, "enter", counted)
            for _ in range(50):
                await rig.stats()
            # A few that were under way; a loop would make hundreds.
            assert steps < 10

    async def test_a_queue_that_has_drained_is_warm_again(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"q": SMALL}) as rig:
            await overflow(rig, runs=6)
            await rig.until_books(spooled=0)
            rig.to().open_up()
            await rig.until_books(held=0)
            rig.to().is_patient = True
            await rig.push(4)
            report = await rig.until(lambda report: report["tiers"]["q"] == "warm")
            assert report["queues"]["q"]["cold"] == 0
            assert report["queues"]["q"]["held"] == 4

    @pytest.mark.parametrize("size", [3000, 20_000])
    async def test_bytes_are_a_limit_too(self, tmp_path: Path, size: int) -> None:
        """64 KiB do not hold a whole number of these items: what is left is no room."""
        async with running(tmp_path, {"q": {"warm_max_bytes": "64Ki"}}, batch_items=1) as rig:
            ids = await overflow(rig, runs=40, items=1, size=size)
            await rig.until_books(spooled=0)
            assert (await rig.fill()).bytes <= 64 * 1024
            rig.to().open_up()
            await rig.until_books(held=0, delivered=40)
            assert rig.to().ids == ids

    async def test_memory_of_all_queues_together_is_a_limit_too(self, tmp_path: Path) -> None:
        async with running(tmp_path, warm_bytes_max=30_000, batch_items=1) as rig:
            rig.to("a").is_patient = rig.to("b").is_patient = True
            for _ in range(10):
                await rig.push(1, "a", size=5000)
                await rig.push(1, "b", size=5000)
                fills = await rig.life.warm.fills()
                # A queue that holds nothing takes one item all the same, or it would starve.
                assert sum(fill.bytes for fill in fills.values()) <= 30_000 + 5_100
                assert sum(fill.items for fill in fills.values()) <= 6
            rig.to("a").open_up()
            rig.to("b").open_up()
            await rig.until_books(None, held=0, delivered=20)

    async def test_items_that_fail_keep_their_place_in_a_full_queue(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"q": {"warm_max_items": 5}}, batch_items=5) as rig:
            ids = await overflow(rig, runs=5)
            await rig.until_books(spooled=0)
            first_time: set[str] = set()

            def once(item: Item) -> bool:
                is_new = item.id not in first_time
                first_time.add(item.id)
                return is_new

            rig.to().open_up(items_fail(once))
            await rig.until_books(held=0, delivered=20)
            assert rig.to().taken == dict.fromkeys(ids, 1)
            assert rig.to().refused == dict.fromkeys(ids, 1)


class TestOrder:
    async def test_urgent_runs_overtake(self, tmp_path: Path) -> None:
        async with running(tmp_path, batch_items=1) as rig:
            rig.to().is_patient = True
            (first,) = await rig.push(1)
            await rig.to().until_begun(1)
            low = await rig.push(2, priority=10)
            high = await rig.push(2, priority=0)
            await rig.until_books(warm=4)
            rig.to().open_up()
            await rig.until_books(held=0)
            assert rig.to().ids == [first, *high, *low]

    async def test_urgent_runs_overtake_those_that_are_cold_too(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"q": {"warm_max_items": 8}}, batch_items=1) as rig:
            low = await overflow(rig, runs=12, items=2, priority=10)
            await rig.until_books(spooled=0)
            high = await overflow(rig, runs=2, items=2, priority=0)
            # The promoter has some of the others in hand: these come before them.
            line = rig.life.line()
            await rig.until(lambda _: urgent_items(line) == 4)
            rig.to().open_up()
            await rig.until_books(held=0)
            order = rig.to().ids
            assert [one for one in order if one in high] == high
            assert [one for one in order if one in low] == low
            # Eight were warm before; what came later is overtaken.
            assert order.index(high[-1]) < 8 + 4

    @pytest.mark.parametrize("limit", [1, 2, 5, 9, 10, 11])
    async def test_order_holds_while_a_queue_goes_cold_and_warm_again(
        self, tmp_path: Path, limit: int
    ) -> None:
        async with running(tmp_path, {"q": {"warm_max_items": limit}}, batch_items=2) as rig:
            ids = []
            for items in [1, 3, 10, 2, 7, 1, 1, 12, 1, 4] * 6:
                ids += await rig.push(items)
            await rig.until_books(held=0)
            assert rig.to().ids == ids

    async def test_a_queue_that_stands_still_does_not_delay_another(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"stuck": SMALL, "q": SMALL}) as rig:
            await overflow(rig, runs=30, queue="stuck")
            ids = []
            for _ in range(10):
                ids += await rig.push(4)
            await rig.until_books(held=0, delivered=40)
            assert rig.to().ids == ids
            assert (await rig.books("stuck"))["held"] == 120


class TestDelayed:
    async def test_due_soon_waits_in_warm_and_due_later_in_cold(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            soon = await rig.push(2, due_s=50)
            late = await rig.push(3, due_s=100)
            books = await rig.until_books(scheduled=2, cold=3)
            assert books == {"accepted": 5, "held": 5, "scheduled": 2, "cold": 3}
            assert (await rig.fill()).scheduled == 2
            rig.advance(51)
            await rig.until_books(delivered=2)
            assert rig.to().ids == soon
            rig.advance(50)
            await rig.until_books(held=0)
            assert rig.to().ids == soon + late

    async def test_what_came_due_stands_in_the_order_by_its_time(self, tmp_path: Path) -> None:
        async with running(tmp_path, batch_items=1) as rig:
            later = await rig.push(1, due_s=30)
            sooner = await rig.push(1, due_s=20)
            await rig.until_books(scheduled=2)
            rig.to().is_patient = True
            (busy,) = await rig.push(1)
            await rig.to().until_begun(1)
            rig.advance(40)
            rig.to().open_up()
            await rig.until_books(held=0)
            assert rig.to().ids == [busy, *sooner, *later]

    async def test_delayed_runs_leave_half_of_warm_to_others(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"q": SMALL}) as rig:
            ids = []
            for _ in range(5):
                ids += await rig.push(4, due_s=30)
            await rig.until_books(spooled=0, held=20)
            assert (await rig.fill()).scheduled <= 8
            ids += await rig.push(3)
            await rig.until_books(delivered=3, held=20)
            rig.advance(31)
            await rig.until_books(held=0)
            assert sorted(rig.to().ids) == sorted(ids)


class TestRestart:
    @pytest.mark.parametrize("is_crash", [False, True])
    async def test_books_and_items_survive_in_every_place(
        self, tmp_path: Path, is_crash: bool
    ) -> None:
        async with running(tmp_path, {"q": SMALL}, batch_items=3) as rig:
            await rig.push(2)
            await rig.until_books(delivered=2)
            ids = await overflow(rig, runs=8)
            ids += await rig.push(1, due_s=30)
            ids += await rig.push(1, due_s=100)
            ids += await rig.push(2, "other", due_s=30)
            before = await rig.until_books(spooled=0, running=3)
            if is_crash:
                await rig.crash()
            else:
                await rig.restart(drain_s=0)
            after = await rig.until_books(spooled=0, running=3)
            assert after["held"] == before["held"] == 34
            rig.advance(101)
            rig.to().open_up()
            await rig.until_books(held=0, delivered=36)
            await rig.until_books("other", held=0, delivered=2)

    async def test_order_holds_across_a_restart(self, tmp_path: Path) -> None:
        """Rows that an earlier life had taken out of cold come first, and at once."""
        async with running(tmp_path, {"q": SMALL}, batch_items=3) as rig:
            ids = await overflow(rig, runs=20)
            await rig.until_books(spooled=0)
            # Until what is in warm came out of cold.
            while (fill := await rig.fill()).cold_items < fill.items:
                begun = len(rig.to().batches)
                rig.to().answer()
                await rig.to().until_begun(begun + 1)
                await rig.stats()
            await rig.restart(drain_s=0)
            rig.to().open_up()
            await rig.until_books(held=0, delivered=80)
            assert rig.to().first_attempts() == ids

    async def test_what_was_drained_is_not_delivered_again(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"q": SMALL}, batch_items=3) as rig:
            ids = await overflow(rig, runs=8)
            await rig.until_books(spooled=0, running=3)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rig.restart)
                await trio.testing.wait_all_tasks_blocked()
                rig.to().open_up()
            await rig.until_books(held=0)
            assert rig.to().taken == dict.fromkeys(ids, 1)
