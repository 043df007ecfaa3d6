"""Neither disk nor cold store takes an outcome: it is held, within bounds, and nothing is lost."""

import errno
from pathlib import Path
from typing import Any

import pytest

from actors.model.outcomes import Failure
from actors.tiers import handover
from tests.actors.workers.test_retries import OWNERS
from tests.eventually import at_once, eventually
from tests.rig.rig import Rig, running
from tests.rig.scripted import all_fail, all_good, items_fail

GONE = Failure("gone", is_permanent=True)
LATER = Failure("busy", retry_after_s=100)


def break_disk(rig: Rig) -> None:
    """No mark is written, and no run."""
    for call in ("append", "write", "datasync"):
        rig.life.files.break_down(call, errno.EIO)


async def until_held(rig: Rig, entries: int) -> None:
    await rig.until(lambda report: report["failover"]["entries"] == entries)


async def until_recorded(rig: Rig, refusals: int) -> None:
    """Until each of so many refusals is an entry of its own, or was let go again."""
    failover = rig.life.failover

    def check() -> None:
        recorded = len([h for h in failover._held if h.let_go]) + failover.let_go_total
        assert recorded >= refusals, recorded

    await eventually(check)


async def until_let_go(rig: Rig, entries: int) -> None:
    await rig.until(lambda report: report["failover"]["let_go_total"] >= entries)


@OWNERS
@pytest.mark.parametrize("failure", [GONE, LATER], ids=["dead", "later"])
class TestOutcomes:
    async def test_they_are_held_while_cold_is_away(
        self, tmp_path: Path, enter: Any, failure: Failure
    ) -> None:
        async with running(tmp_path) as rig:
            rig.to().is_patient = True
            ids = await enter(rig, 3)
            await rig.to().until_begun(1)
            rig.life.cold.break_down()
            rig.to().open_up(items_fail(ids[1:], failure))
            await until_held(rig, 1)
            assert (await rig.books())["held"] in (2, 3)
            await rig.life.failover.try_again()
            await until_held(rig, 1)
            rig.life.cold.mend()
            await rig.life.failover.try_again()
            await until_held(rig, 0)
            rig.to().verdict = all_good
            if failure is LATER:
                await rig.until_books(delivered=1, cold=2)
                rig.advance(101)
                await rig.until_books(held=0, delivered=3)
                assert rig.to().taken == dict.fromkeys(ids, 1)
            else:
                await rig.until_books(held=0, delivered=1, dead=2)
                assert sorted(letter.id for letter in await rig.dead()) == ids[1:]
            assert (await rig.fill()).items == 0

    async def test_they_are_held_while_disk_and_cold_are_away(
        self, tmp_path: Path, enter: Any, failure: Failure
    ) -> None:
        async with running(tmp_path) as rig:
            rig.to().is_patient = True
            ids = await enter(rig, 3)
            await rig.to().until_begun(1)
            break_disk(rig)
            rig.life.cold.break_down()
            rig.to().open_up(items_fail(ids[1:], failure))
            await until_held(rig, 1)
            assert (await rig.books())["held"] == 3
            rig.life.cold.mend()
            rig.life.files.mend()
            await rig.life.failover.try_again()
            rig.to().verdict = all_good
            rig.advance(101)
            expected = {"delivered": 3} if failure is LATER else {"delivered": 1, "dead": 2}
            await rig.until_books(held=0, **expected)
            assert all(count == 1 for count in rig.to().taken.values())

    async def test_nobody_else_gets_them_meanwhile(
        self, tmp_path: Path, enter: Any, failure: Failure
    ) -> None:
        async with running(tmp_path) as rig:
            rig.to().is_patient = True
            await enter(rig, 2)
            await rig.to().until_begun(1)
            rig.life.cold.break_down()
            rig.to().open_up(all_fail(failure))
            await until_held(rig, 1)
            for _ in range(5):
                rig.advance(40)
                await rig.life.failover.try_again()
                assert (await rig.books())["held"] == 2
            assert len(rig.to().batches) == 1

    async def test_past_the_bound_the_oldest_is_delivered_again(
        self, tmp_path: Path, enter: Any, failure: Failure
    ) -> None:
        async with running(
            tmp_path, {"q": {"workers": {"count": 1}}}, batch_items=1, failover=(2, 1 << 20)
        ) as rig:
            rig.to().is_patient = True
            ids = await enter(rig, 5)
            await rig.to().until_begun(1)
            rig.life.cold.break_down()
            # Each is refused in turn; the third has no room beside the first two, and so on.
            for number in range(5):
                await rig.to().until_begun(number + 1)
                rig.to().answer(all_fail(failure))
                await until_recorded(rig, number + 1)
            assert (await rig.stats())["queues"]["q"]["held"] == 5
            rig.to().open_up()
            rig.life.cold.mend()

            async def check_drained() -> dict[str, int]:
                # What the cold store owns could not be recorded the second time either.
                await rig.life.failover.try_again()
                rig.advance(101)
                with at_once():
                    books = await rig.books()
                assert "held" not in books, books
                return books

            books = await eventually(check_drained)
            assert books.get("delivered", 0) + books.get("dead", 0) == 5
            tries = rig.to().refused + rig.to().taken
            assert sum(tries.values()) >= 5 + 3
            letters = {letter.id for letter in await rig.dead()}
            assert set(rig.to().taken) | letters == set(ids)

    async def test_a_crash_meanwhile_loses_nothing(
        self, tmp_path: Path, enter: Any, failure: Failure
    ) -> None:
        async with running(tmp_path) as rig:
            rig.to().is_patient = True
            ids = await enter(rig, 3)
            await rig.to().until_begun(1)
            rig.life.cold.break_down()
            rig.to().open_up(items_fail(ids[1:], failure))
            await until_held(rig, 1)
            await rig.crash()
            rig.to().verdict = all_good
            await rig.until_books(held=0, delivered=3)
            assert set(rig.to().taken) == set(ids)

    async def test_an_answer_that_is_lost_counts_once(
        self, tmp_path: Path, enter: Any, failure: Failure
    ) -> None:
        """The cold store has done it, and nobody heard of it."""
        async with running(tmp_path) as rig:
            rig.to().is_patient = True
            ids = await enter(rig, 3)
            await rig.to().until_begun(1)
            rig.life.cold.loses_answers |= {"store", "confirm", "settle"}
            rig.to().open_up(items_fail(ids[1:], failure))
            await until_held(rig, 1)
            rig.life.cold.mend()
            await rig.life.failover.try_again()
            await rig.life.failover.try_again()
            await until_held(rig, 0)
            rig.to().verdict = all_good
            rig.advance(101)
            expected = {"delivered": 3} if failure is LATER else {"delivered": 1, "dead": 2}
            await rig.until_books(held=0, **expected)
            assert all(count == 1 for count in rig.to().taken.values())


async def test_delivered_items_wait_for_the_disk(tmp_path: Path) -> None:
    """Marks that cannot be written come again; the books do not run ahead of the disk."""
    async with running(tmp_path) as rig:
        rig.to().is_patient = True
        await rig.push(3)
        await rig.to().until_begun(1)
        break_disk(rig)
        rig.to().open_up()
        await rig.until(lambda report: bool(rig.life.files.failed))
        assert (await rig.books())["held"] == 3
        rig.life.files.mend()
        assert await rig.until_books(held=0) == {"accepted": 3, "delivered": 3}
        assert len(rig.to().batches) == 1


class TestOverflow:
    """Runs of the journal on their way to cold, which nobody has leased."""

    async def test_it_stays_in_the_journal_while_cold_is_away(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"q": {"warm_max_items": 5}}) as rig:
            rig.to().is_patient = True
            rig.life.cold.break_down()
            ids = []
            for _ in range(10):
                ids += await rig.push(4)
            await rig.until_books(running=5, held=40)
            await until_asked(rig, "store")
            rig.to().open_up()
            await rig.until_books(held=0, delivered=40)
            assert rig.to().ids == ids

    @pytest.mark.parametrize("is_crash", [False, True])
    async def test_little_room_in_the_failover_loses_nothing(
        self, tmp_path: Path, is_crash: bool
    ) -> None:
        """What the router has in hand has no lease that could run out."""
        queues = {name: {"warm_max_items": 2} for name in "abcdef"}
        async with running(tmp_path, queues, failover=(1, 1 << 20)) as rig:
            rig.life.cold.break_down()
            ids = []
            for name in queues:
                rig.to(name).is_patient = True
                ids += await rig.push(5, name)
            for name in queues:
                await rig.until_books(name, running=2)
            await until_asked(rig, "store")
            rig.life.cold.mend()
            if is_crash:
                await rig.crash()
            for name in queues:
                rig.to(name).open_up()
            await rig.life.failover.try_again()
            await rig.until_books(None, held=0, delivered=30)
            assert {one for name in queues for one in rig.to(name).taken} == set(ids)

    @pytest.mark.parametrize("step", ["store", "confirm"])
    @pytest.mark.parametrize("end", ["mend", "crash", "restart"])
    async def test_a_lost_answer_counts_once(self, tmp_path: Path, step: str, end: str) -> None:
        async with running(tmp_path, {"q": {"warm_max_items": 2}}, batch_items=2) as rig:
            rig.to().is_patient = True
            await rig.push(2)
            await rig.to().until_begun(1)
            rig.life.cold.loses_answers.add(step)
            ids = await rig.push(6)
            await until_held(rig, 1)
            if end == "crash":
                await rig.crash()
            elif end == "restart":
                await rig.restart(drain_s=0)
            else:
                rig.life.cold.mend()
                await rig.life.failover.try_again()
            rig.to().open_up()
            await rig.until_books(held=0, delivered=8)
            assert set(ids) <= set(rig.to().taken)
            assert await rig.life.sqlite.unconfirmed() == []

    async def test_what_is_stored_at_the_second_try_is_not_forgotten(self, tmp_path: Path) -> None:
        """The first try's rows may be cleared away, the second one's never."""
        async with running(tmp_path, {"q": {"warm_max_items": 2}}, batch_items=2) as rig:
            rig.to().is_patient = True
            await rig.push(2)
            await rig.to().until_begun(1)
            rig.life.cold.break_down()
            ids = await rig.push(6)
            await until_asked(rig, "store")
            rig.life.cold.mend()
            rig.life.cold.after["store"] = rig.life.failover.try_again
            # The router looks again after a moment of its own.
            rig.life.hand_over._rests_until = 0.0
            await rig.until_books(cold=6)
            rig.to().open_up()
            await rig.until_books(held=0, delivered=8)
            assert set(ids) <= set(rig.to().taken)

    @pytest.mark.parametrize("is_crash", [False, True])
    async def test_a_confirmation_that_fails_comes_later(
        self, tmp_path: Path, is_crash: bool
    ) -> None:
        async with running(tmp_path, {"q": {"warm_max_items": 2}}, batch_items=2) as rig:
            rig.to().is_patient = True
            await rig.push(2)
            await rig.to().until_begun(1)
            rig.life.cold.break_down("confirm")
            ids = await rig.push(6)
            await until_held(rig, 1)
            assert (await rig.books())["cold"] == 6
            if is_crash:
                await rig.crash()
            else:
                rig.life.cold.mend()
                await rig.life.failover.try_again()
            rig.to().open_up()
            await rig.until_books(held=0, delivered=8)
            assert set(ids) <= set(rig.to().taken)


async def test_confirmations_are_never_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "REST_S", 0.01)
    queues = {name: {"warm_max_items": 1} for name in "abc"}
    async with running(tmp_path, queues, batch_items=1, failover=(1, 1 << 20)) as rig:
        rig.life.cold.break_down("confirm")
        for number, name in enumerate(queues):
            rig.to(name).is_patient = True
            await rig.push(4, name)
            await until_held(rig, number + 1)
        rig.life.cold.mend()
        await rig.life.failover.try_again()
        for name in queues:
            rig.to(name).open_up()
        await rig.until_books(None, held=0, delivered=12)


async def let_go_of_a_row_that_was_stored(rig: Rig) -> str:
    """A dead letter that cold has stored without anybody hearing of it; then its outcome is let
    go, and the item is delivered after all."""
    rig.to().is_patient = True
    (item_id,) = await rig.push(1)
    await rig.to().until_begun(1)
    rig.life.cold.loses_answers.add("store")
    rig.to().answer(all_fail(GONE))
    await until_held(rig, 1)
    rig.life.cold.break_down()
    # Another outcome takes its place.
    await rig.push(1, "other")
    rig.to("other").verdict = all_fail(GONE)
    await until_let_go(rig, 1)
    rig.to().open_up()
    await rig.until_books(held=0, delivered=1)
    return item_id


@pytest.mark.parametrize("end", ["mend", "restart", "mend and restart"])
async def test_an_item_that_was_let_go_and_delivered_is_no_dead_letter(
    tmp_path: Path, end: str
) -> None:
    async with running(tmp_path, failover=(1, 1 << 20)) as rig:
        rig.to("other").verdict = all_fail(GONE)
        item_id = await let_go_of_a_row_that_was_stored(rig)
        if "mend" in end:
            rig.life.cold.mend()
            await rig.life.failover.try_again()
            await rig.until_books("other", dead=1, held=0)
        if "restart" in end:
            await rig.restart(drain_s=0)
        await rig.until_books("q", held=0, delivered=1)
        assert item_id not in {letter.id for letter in await rig.dead()}


async def until_asked(rig: Rig, step: str) -> None:
    """Until the broken cold store was asked for this."""

    def check() -> None:
        assert step in rig.life.cold.calls, rig.life.cold.calls

    await eventually(check)


async def test_a_flow_is_paused_while_cold_is_away(tmp_path: Path) -> None:
    """It cannot be set aside; it stays where it is, is not delivered, and not lost."""
    async with running(tmp_path, {"q": {"warm_max_items": 20}}, batch_items=1) as rig:
        rig.to().is_patient = True
        await rig.push(1)
        await rig.to().until_begun(1)
        # One from cold and one from the journal, both in warm.
        await rig.pause("q", "f")
        ids = await rig.push(2, flow="f")
        await rig.until_books(cold=2)
        await rig.control("queues.resume", queue="q", flow="f")
        await rig.until_books(warm=2)
        ids += await rig.push(2, flow="f")
        await rig.until_books(warm=4)
        rig.life.cold.break_down("settle", "store")
        await rig.pause("q", "f")
        await rig.until(lambda _: bool(rig.life.cold.calls))
        rig.life.cold.mend()
        others = await rig.push(2)
        rig.to().open_up()
        await rig.until_books(delivered=3, held=4)
        assert set(rig.to().taken) >= set(others)
        assert not set(ids) & set(rig.to().taken)
        rig.life.hand_over._rests_until = 0.0
        await rig.life.failover.try_again()
        await rig.control("queues.resume", queue="q", flow="f")
        await rig.until_books(held=0, delivered=7)


async def test_a_hand_over_is_noted_once_cold_has_confirmed_it(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        last = rig.life.daemon.tiers.last_hand_over
        rig.to().verdict = all_fail(LATER)
        rig.life.cold.break_down("confirm")
        await rig.push(1)
        await until_held(rig, 1)
        assert last.at_ms == 0
        rig.life.cold.mend()
        await rig.life.failover.try_again()
        await until_held(rig, 0)
        assert 0 < last.at_ms <= rig.now_ms()
