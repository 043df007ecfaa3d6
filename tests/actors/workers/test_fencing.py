"""A worker that comes back after its lease: what it says changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from actors.model.outcomes import Failure
from tests.actors.workers.test_retries import OWNERS
from tests.rig.rig import Rig, running
from tests.rig.scripted import Verdict, all_fail, all_good, items_fail

TWO = {"lease_time": "30s", "workers": {"count": 2}, "max_retries": 2}
LATE = [
    pytest.param(all_good, id="delivered"),
    pytest.param(all_fail(Failure("late")), id="failed"),
    pytest.param(all_fail(Failure("late", is_permanent=True)), id="dead"),
    pytest.param(all_fail(Failure("late", retry_after_s=100)), id="much-later"),
    pytest.param(items_fail(lambda item: item.payload[0] == 1), id="in-part"),
]


async def lost_lease(rig: Rig, enter: Any, items: int = 3) -> list[str]:
    """One worker hangs in its send, and another has the same items in hand."""
    rig.to().is_patient = True
    ids: list[str] = await enter(rig, items)
    await rig.to().until_begun(1)
    rig.advance(31)
    await rig.to().until_begun(2)
    assert rig.to().batches[1].ids == rig.to().batches[0].ids == ids
    return ids


@OWNERS
@pytest.mark.parametrize("verdict", LATE)
class TestLateOutcome:
    async def test_it_is_nothing_to_whoever_has_the_items_now(
        self, tmp_path: Path, enter: Any, verdict: Verdict
    ) -> None:
        async with running(tmp_path, {"q": TWO}, timeout_s=0) as rig:
            await lost_lease(rig, enter)
            before = await rig.books()
            rig.to().answer(verdict)
            await rig.until(lambda report: report["stale_outcomes_total"] == 1)
            assert await rig.books() == before
            assert rig.to().inside == 1
            rig.to().answer()
            assert await rig.until_books(held=0) == {"accepted": 3, "delivered": 3}
            assert await rig.dead() == []
            # No attempt was spent by the late one.
            assert {item.attempt for batch in rig.to().batches for item in batch.items} == {0}

    async def test_it_is_nothing_when_all_is_settled(
        self, tmp_path: Path, enter: Any, verdict: Verdict
    ) -> None:
        async with running(tmp_path, {"q": TWO}, timeout_s=0) as rig:
            await lost_lease(rig, enter)
            rig.to().answer(at=1)
            done = await rig.until_books(held=0)
            rig.to().answer(verdict)
            await rig.until(lambda report: report["stale_outcomes_total"] == 1)
            assert await rig.books() == done == {"accepted": 3, "delivered": 3}
            assert await rig.dead() == []
            await rig.restart()
            assert await rig.books() == done

    async def test_it_is_nothing_after_another_failure(
        self, tmp_path: Path, enter: Any, verdict: Verdict
    ) -> None:
        """The second worker fails, the late one says something, the third try counts."""
        async with running(tmp_path, {"q": TWO}, timeout_s=0) as rig:
            ids = await lost_lease(rig, enter)
            rig.to().answer(all_fail(Failure("second")), at=1)
            await rig.to().until_begun(3)
            rig.to().answer(verdict)
            await rig.until(lambda report: report["stale_outcomes_total"] == 1)
            assert [(item.id, item.attempt) for item in rig.to().batches[2].items] == [
                (item_id, 1) for item_id in ids
            ]
            rig.to().open_up(all_fail(Failure("third", is_permanent=True)))
            assert await rig.until_books(held=0) == {"accepted": 3, "dead": 3}
            for letter in await rig.dead():
                assert [error.text for error in letter.errors] == ["second", "third"]


@OWNERS
async def test_the_only_worker_comes_too_late(tmp_path: Path, enter: Any) -> None:
    """The only worker is late: its items are back in warm, and its outcome is stale. They are
    delivered again; nothing else can be known."""
    one = {"q": TWO | {"workers": {"count": 1}}}
    async with running(tmp_path, one, timeout_s=0) as rig:
        rig.to().is_patient = True
        ids = await enter(rig, 3)
        await rig.to().until_begun(1)
        rig.advance(31)
        await rig.until_books(warm=3, running=0)
        rig.to().open_up()
        await rig.until_books(held=0, delivered=3)
        assert rig.to().taken == dict.fromkeys(ids, 2)
        assert (await rig.stats())["stale_outcomes_total"] == 1


async def test_lease_time_that_is_shorter_than_a_send_ends_no_send(tmp_path: Path) -> None:
    """It is meant for consumers; a worker's lease outlives the handler's timeout."""
    async with running(tmp_path, {"q": {"lease_time": "1s"}}, timeout_s=30) as rig:
        rig.to().is_patient = True
        await rig.push(2)
        await rig.to().until_begun(1)
        rig.advance(29)
        for _ in range(5):
            await rig.stats()
        rig.to().answer()
        await rig.until_books(held=0, delivered=2)
        assert len(rig.to().batches) == 1
