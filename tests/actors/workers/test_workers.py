"""Groups of workers: pauses, breakers, limits, the split, and how they end."""

import threading
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors.model.outcomes import Failure
from actors.workers import group as workers_module
from forebay.item import Item
from tests.eventually import eventually
from tests.rig.rig import Rig, running
from tests.rig.scripted import all_fail, items_fail

DOWN = Failure("down")
SPLIT = {"pipeline_split": {"enabled": True, "preparer_count": 2, "sender_count": 1}}
WAYS = pytest.mark.parametrize("way", [{}, SPLIT], ids=["workers", "split"])


def count_leases(rig: Rig) -> list[str]:
    """The queues that somebody asked warm for from now on."""
    asked: list[str] = []
    lease = rig.life.warm.lease

    async def counted(queue: str, *args: Any) -> Any:
        asked.append(queue)
        return await lease(queue, *args)

    rig.life.warm.lease = counted  # type: ignore[assignment, method-assign]
    return asked


async def settle_down(rig: Rig) -> None:
    """Whatever was going to happen by itself has had its turns."""
    for _ in range(20):
        await rig.stats()


class TestPause:
    @WAYS
    async def test_a_paused_queue_is_left_alone(self, tmp_path: Path, way: Any) -> None:
        async with running(tmp_path, {"q": way}) as rig:
            await rig.pause("q")
            ids = await rig.push(3)
            await rig.until_books(warm=3)
            await settle_down(rig)
            asked = count_leases(rig)
            other = await rig.push(3, "other")
            await rig.until_books("other", held=0)
            assert "q" not in asked
            assert rig.to().batches == []
            await rig.control("queues.resume", queue="q")
            await rig.until_books(held=0, delivered=3)
            assert rig.to().ids == ids
            assert rig.to("other").ids == other

    async def test_what_is_in_hand_when_it_is_paused_is_finished(self, tmp_path: Path) -> None:
        async with running(tmp_path, batch_items=1) as rig:
            rig.to().is_patient = True
            await rig.push(3)
            await rig.to().until_begun(1)
            await rig.pause("q")
            rig.to().open_up()
            await rig.until_books(delivered=1, warm=2)
            await rig.control("queues.resume", queue="q")
            await rig.until_books(held=0, delivered=3)

    async def test_a_pause_survives_a_crash(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            await rig.pause("q")
            await rig.pause("r", "f")
            await rig.push(2)
            await rig.push(2, "r", flow="f")
            await rig.push(2, "r")
            await rig.until_books("r", delivered=2, cold=2)
            await rig.crash()
            await rig.until_books("q", warm=2)
            await rig.until_books("r", delivered=2, cold=2)
            assert rig.to("q").batches == []
            await rig.control("queues.resume", queue="q")
            await rig.control("queues.resume", queue="r", flow="f")
            await rig.until_books(None, held=0, delivered=6)

    async def test_a_paused_flow_does_not_keep_others_out(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"q": {"warm_max_items": 4}}, batch_items=1) as rig:
            rig.to().is_patient = True
            await rig.push(1, flow="b")
            await rig.to().until_begun(1)
            a = []
            for _ in range(4):
                a += await rig.push(3, flow="a")
            await rig.until_books(spooled=0)
            await rig.pause("q", "a")
            b = await rig.push(10, flow="b")
            rig.to().open_up()
            await rig.until_books(delivered=11, held=12, cold=12)
            assert set(rig.to().ids[1:]) == set(b)
            await rig.control("queues.resume", queue="q", flow="a")
            await rig.until_books(held=0, delivered=23)
            assert set(rig.to().ids[11:]) == set(a)

    async def test_items_that_fail_after_their_flow_was_paused_keep_nobody_out(
        self, tmp_path: Path
    ) -> None:
        backoff = {"initial": "10s", "max": "10s"}
        keys = {"warm_max_items": 3, "backoff": backoff}
        async with running(tmp_path, {"q": keys}) as rig:
            rig.to().is_patient = True
            await rig.push(3, flow="a")
            await rig.to().until_begun(1)
            await rig.pause("q", "a")
            rig.to().open_up(items_fail(lambda item: item.flow == "a", DOWN))
            await rig.until_books(running=0)
            await rig.push(5, flow="b")
            await rig.until_books(delivered=5)
            rig.to().open_up()
            await rig.control("queues.resume", queue="q", flow="a")
            rig.advance(11)
            await rig.until_books(held=0, delivered=8)

    async def test_a_flow_that_is_resumed_at_once_goes_on(self, tmp_path: Path) -> None:
        """While the first change is carried out, the second one must not be missed."""
        async with running(tmp_path, batch_items=1) as rig:
            rig.to().is_patient = True
            await rig.push(1)
            await rig.to().until_begun(1)
            ids = await rig.push(3, flow="a")
            await rig.until_books(warm=3)

            async def resume() -> None:
                await rig.control("queues.resume", queue="q", flow="a")

            rig.life.cold.after["store"] = resume
            await rig.pause("q", "a")
            rig.to().open_up()
            await rig.until_books(held=0, delivered=4)
            assert rig.to().ids[1:] == ids

    async def test_queues_may_come_while_a_flow_is_set_aside(self, tmp_path: Path) -> None:
        async with running(tmp_path, batch_items=1) as rig:
            rig.to().is_patient = True
            await rig.push(1)
            await rig.to().until_begun(1)
            await rig.push(3, flow="a")
            await rig.until_books(warm=3)

            async def push() -> None:
                await rig.push(1, "new")
                await rig.until_books("new", delivered=1)

            rig.life.cold.after["store"] = push
            await rig.pause("q", "a")
            await rig.until_books("q", cold=3)
            await rig.control("queues.resume", queue="q", flow="a")
            rig.to().open_up()
            await rig.until_books(None, held=0, delivered=5)

    async def test_a_queue_that_is_not_active_takes_and_keeps(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            await rig.control("queues.add", queue="q", settings={"is_active": False})
            await rig.push(3)
            await rig.until_books(warm=3)
            assert rig.to().batches == []
            await rig.control("queues.set", queue="q", settings={"is_active": True})
            await rig.until_books(held=0, delivered=3)


class TestBreaker:
    @WAYS
    async def test_open_means_that_nothing_is_attempted(self, tmp_path: Path, way: Any) -> None:
        breaker = {"enabled": True, "threshold": 2, "reset_timeout": "1h"}
        async with running(tmp_path, {"q": way | {"breaker": breaker}}, batch_items=1) as rig:
            rig.to().verdict = all_fail(DOWN)
            ids = await rig.push(6)
            await rig.until(lambda report: report["breakers"]["q"]["state"] == "open")
            await rig.until_books(held=6)
            await settle_down(rig)
            assert rig.to().refused.total() == 2
            assert (await rig.control("breakers.ls"))["breakers"][0]["state"] == "open"
            rig.to().open_up()
            await rig.control("breakers.set", destination="q", state="closed")
            await rig.until_books(held=0, delivered=6)
            attempts = {item.id: item.attempt for b in rig.to().batches for item in b.items}
            assert set(attempts) == set(ids)
            # No attempt was spent while it was open.
            assert sum(attempts.values()) == 2

    @WAYS
    async def test_queue_that_was_paused_meanwhile_stays_paused(
        self, tmp_path: Path, way: Any
    ) -> None:
        breaker = {"enabled": True, "threshold": 1, "reset_timeout": "1h"}
        keys = way | {"breaker": breaker, "workers": {"count": 4}}
        async with running(tmp_path, {"q": keys}, batch_items=1) as rig:
            rig.to().verdict = all_fail(DOWN)
            await rig.push(8)
            await rig.until(lambda report: report["breakers"]["q"]["state"] == "open")
            await settle_down(rig)
            refused = rig.to().refused.total()
            await rig.pause("q")
            await settle_down(rig)
            rig.to().open_up()
            await rig.control("breakers.set", destination="q", state="closed")
            await settle_down(rig)
            assert rig.to().taken.total() == 0
            assert rig.to().refused.total() == refused
            await rig.control("queues.resume", queue="q")
            await rig.until_books(held=0, delivered=8)

    @WAYS
    async def test_half_open_one_trial_at_a_time(self, tmp_path: Path, way: Any) -> None:
        breaker = {"enabled": True, "threshold": 1, "reset_timeout": "10ms"}
        keys = way | {"breaker": breaker, "workers": {"count": 4}, "max_retries": 100}
        async with running(tmp_path, {"q": keys}, batch_items=1) as rig:
            rig.to().verdict = all_fail(DOWN)
            await rig.push(8)
            await rig.until(lambda report: report["breakers"]["q"]["opened_total"] >= 1)
            rig.to().is_patient = True
            # One that is under way already is not.
            await rig.to().until_begun(len(rig.to().batches) + 1)
            await rig.stats()
            assert rig.to().inside == 1
            # A trial that fails opens it again.
            opened = (await rig.stats())["breakers"]["q"]["opened_total"]
            begun = len(rig.to().batches)
            rig.to().answer(all_fail(DOWN))
            await rig.to().until_begun(begun + 1)
            assert (await rig.stats())["breakers"]["q"]["opened_total"] == opened + 1
            assert rig.to().inside == 1
            # One that is good closes it, and all go on.
            rig.to().answer()
            await rig.until(lambda report: report["breakers"]["q"]["state"] == "closed")
            rig.to().open_up()
            await rig.until_books(held=0, delivered=8)

    async def test_refused_items_do_not_open_it(self, tmp_path: Path) -> None:
        breaker = {"enabled": True, "threshold": 1, "reset_timeout": "1h"}
        async with running(tmp_path, {"q": {"breaker": breaker, "max_retries": 2}}) as rig:
            rig.to().verdict = items_fail(lambda item: item.payload[0] == 1)
            await rig.push(3)
            await rig.until_books(held=0, delivered=2, dead=1)

    async def test_queues_of_one_destination_share_it(self, tmp_path: Path) -> None:
        breaker = {"enabled": True, "threshold": 1, "reset_timeout": "1h"}
        keys = {"breaker": breaker}
        async with running(tmp_path, {"a": keys, "b": keys}) as rig:
            rig.names |= {"a": "there", "b": "there"}
            rig.to("a").verdict = all_fail(DOWN)
            await rig.push(1, "a")
            await rig.until(lambda report: report["breakers"]["there"]["state"] == "open")
            await rig.push(1, "b")
            await rig.until_books("b", warm=1)
            assert len(rig.to("b").batches) == 1

    async def test_other_settings_are_in_force_when_a_queue_is_changed(
        self, tmp_path: Path
    ) -> None:
        async with running(tmp_path) as rig:
            breaker = {"enabled": True, "threshold": 1000, "reset_timeout": "1h"}
            await rig.control("queues.add", queue="q", settings={"breaker": breaker})
            await rig.push(1)
            await rig.until_books(held=0)
            await rig.control("queues.set", queue="q", settings={"breaker": {"threshold": 1}})
            rig.to().verdict = all_fail(DOWN)
            await rig.push(1)
            await rig.until(lambda report: report["breakers"]["q"]["state"] == "open")


class TestLimits:
    @WAYS
    async def test_rate(self, tmp_path: Path, way: Any) -> None:
        """An item in 100 s: one goes at once, whatever the batches may be, and no more."""
        async with running(tmp_path) as rig:
            keys = way | {"rate_limit": 0.01}
            await rig.control("queues.add", queue="q", settings=keys)
            await rig.push(15)
            await rig.until_books(delivered=1)
            await settle_down(rig)
            assert len(rig.to().taken) == rig.to().taken.total() == 1
            assert {len(batch.items) for batch in rig.to().batches} == {1}
            await rig.control("queues.set", queue="q", settings={"rate_limit": 0})
            await rig.until_books(held=0, delivered=15)
            assert max(rig.to().taken.values()) == 1

    @WAYS
    async def test_requests(self, tmp_path: Path, way: Any) -> None:
        """One request in an hour: a whole batch goes at once, and no other."""
        async with running(tmp_path, batch_items=10) as rig:
            keys = way | {"rate_limit": "1 request/h"}
            await rig.control("queues.add", queue="q", settings=keys)
            await rig.push(15)
            await rig.until_books(delivered=10)
            await settle_down(rig)
            assert [len(batch.items) for batch in rig.to().batches] == [10]
            await rig.control("queues.set", queue="q", settings={"rate_limit": 0})
            await rig.until_books(held=0, delivered=15)
            assert max(rig.to().taken.values()) == 1

    @WAYS
    async def test_sends_of_all_queues(self, tmp_path: Path, way: Any) -> None:
        keys = way | {"workers": {"count": 3}}
        async with running(
            tmp_path, {"a": keys, "b": keys}, batch_items=1, global_send_limit=2
        ) as rig:
            rig.names |= {"a": "there", "b": "there"}
            to = rig.to("a")
            to.is_patient = True
            await rig.push(6, "a")
            await rig.push(6, "b")
            for number in range(11):
                await to.until_begun(min(number + 2, 12))
                await rig.stats()
                assert to.inside <= 2
                to.answer()
            to.open_up()
            await rig.until_books(None, held=0, delivered=12)
            assert to.inside_max == 2

    async def test_sends_of_one_worker(self, tmp_path: Path) -> None:
        keys = {"workers": {"count": 2, "max_concurrent_sends": 3}}
        async with running(tmp_path, {"q": keys}, batch_items=1) as rig:
            rig.to().is_patient = True
            await rig.push(9)
            await rig.to().until_begun(6)
            await rig.stats()
            assert rig.to().inside == 6
            rig.to().open_up()
            await rig.until_books(held=0, delivered=9)
            assert rig.to().inside_max == 6


class TestAdaptive:
    async def test_the_count_follows_the_work(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(workers_module, "ADAPT_S", 0.005)
        keys = {"workers": {"count": 2, "adaptive": True, "min": 1, "max": 6}}
        async with running(tmp_path, {"q": keys}, batch_items=1) as rig:
            taken = rig.to().receive

            async def slow(batch: Any) -> Any:
                # A destination takes its time, the same for every send.
                await trio.sleep(0.002)
                return await taken(batch)

            rig.to().receive = slow  # type: ignore[method-assign]
            pushed = 0
            while (await rig.stats()).get("workers", {}).get("q", {}).get("count", 0) < 4:
                pushed += len(await rig.push(50))
            await rig.until_books(held=0, delivered=pushed)
            await rig.until(lambda report: report["workers"]["q"]["count"] == 1)
            await rig.push(3)
            await rig.until_books(held=0, delivered=pushed + 3)


@WAYS
async def test_results_are_the_same_whoever_prepares(tmp_path: Path, way: Any) -> None:
    async with running(tmp_path, {"q": way | {"warm_max_items": 20}}, batch_items=7) as rig:

        def is_bad(item: Item) -> bool:
            return item.attempt < item.payload[0] % 4

        rig.to().verdict = items_fail(is_bad)
        ids = []
        for _ in range(6):
            ids += await rig.push(15)
        await rig.until_books(held=0, delivered=90)
        assert rig.to().taken == dict.fromkeys(ids, 1)
        refused = {one: int(one.rpartition("-")[2]) % 4 for one in ids}
        assert rig.to().refused == {one: count for one, count in refused.items() if count}


@WAYS
class TestDrain:
    async def test_what_is_in_hand_is_finished_and_the_rest_is_kept(
        self, tmp_path: Path, way: Any
    ) -> None:
        async with running(tmp_path, {"q": way | {"warm_max_items": 9}}, batch_items=2) as rig:
            rig.to().is_patient = True
            ids = await rig.push(20)
            await rig.to().until_begun(1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rig.restart)
                await trio.testing.wait_all_tasks_blocked()
                assert not rig.life.is_over.is_set()
                rig.to().open_up()
            await rig.until_books(held=0, delivered=20)
            assert rig.to().taken == dict.fromkeys(ids, 1)

    async def test_an_open_breaker_does_not_hold_it_up(self, tmp_path: Path, way: Any) -> None:
        breaker = {"enabled": True, "threshold": 1, "reset_timeout": "1h"}
        async with running(tmp_path, {"q": way | {"breaker": breaker}}, batch_items=1) as rig:
            rig.to().verdict = all_fail(DOWN)
            await rig.push(5)
            await rig.until(lambda report: report["breakers"]["q"]["state"] == "open")
            rig.to().open_up()
            await rig.restart()
            await rig.until_books(held=0, delivered=5)
            assert max(rig.to().taken.values()) == 1

    async def test_what_takes_too_long_is_delivered_again(self, tmp_path: Path, way: Any) -> None:
        async with running(tmp_path, {"q": way}) as rig:
            rig.to().is_patient = True
            ids = await rig.push(3)
            await rig.to().until_begun(1)
            await rig.restart(drain_s=0)
            rig.to().open_up()
            await rig.until_books(held=0, delivered=3)
            assert rig.to().taken == dict.fromkeys(ids, 1)
            assert {item.attempt for item in rig.to().batches[-1].items} == {0}


async def test_a_disk_that_hangs_does_not_lose_an_outcome(tmp_path: Path) -> None:
    """The spooler's inbox is full when a worker has something to say."""
    async with running(tmp_path, inbox=1) as rig:
        rig.to().is_patient = True
        await rig.push(3)
        await rig.to().until_begun(1)
        hangs, goes_on = trio.Event(), threading.Event()
        token = trio.lowlevel.current_trio_token()
        write = rig.life.files.write

        def hang(*args: Any) -> None:
            token.run_sync_soon(hangs.set)
            goes_on.wait()
            write(*args)

        rig.life.files.write = hang  # type: ignore[assignment, method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.push, 1)
            await hangs.wait()
            # Whoever comes now waits for the disk.
            await eventually(lambda: rig.life.spooler._sender.statistics().current_buffer_used >= 1)
            rig.to().open_up()
            await rig.to().until(lambda: not rig.to().inside)
            await trio.testing.wait_all_tasks_blocked()
            goes_on.set()
        await rig.until_books(held=0, delivered=4)
        assert max(rig.to().taken.values()) == 1
