"""A purge deletes what waits, wherever it is, and nothing else; the books balance."""

from pathlib import Path
from typing import Any

import pytest
import trio

from actors.control import purge as purging
from actors.model.outcomes import Failure
from actors.ports.tiers import StoreUnavailable
from forebay.errors import Refused
from tests.eventually import eventually
from tests.rig.rig import Rig, running
from tests.rig.scripted import all_fail

PULL: dict[str, Any] = {"handler": {"type": "pull"}}
GONE = Failure("gone for good", is_permanent=True)


@pytest.fixture(autouse=True)
def has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge that has no time left says so: not here, however slow the machine is."""
    monkeypatch.setattr(purging, "TIME_S", 300.0)
    monkeypatch.setattr(purging, "STEP_S", 300.0)


async def purge(rig: Rig, queue: str = "q") -> dict[str, Any]:
    return await rig.control("queues.purge", queue=queue)


async def test_what_waits_in_warm_is_purged(tmp_path: Path) -> None:
    async with running(tmp_path, {"q": PULL, "other": PULL}) as rig:
        await rig.push(3)
        await rig.push(2, queue="other")
        await rig.until_books(warm=3)
        assert await purge(rig) == {"queue": "q", "deleted": 3, "more": False}
        assert await rig.books() == {"accepted": 3, "deleted": 3}
        assert await purge(rig) == {"queue": "q", "deleted": 0, "more": False}
        assert (await rig.books("other"))["held"] == 2
        await rig.crash()
        assert await rig.books() == {"accepted": 3, "deleted": 3}


async def test_warm_cold_and_journal_are_purged(tmp_path: Path) -> None:
    """Warm takes ten; what is over goes to cold, and some is always on its way."""
    async with running(tmp_path, {"q": PULL | {"warm_max_items": 10}}) as rig:
        for _ in range(60):
            await rig.push(7)
        await rig.push(5, due_ms=rig.now_ms() + 3_600_000)
        found = await purge(rig)
        assert found == {"queue": "q", "deleted": 425, "more": False}
        assert await rig.books() == {"accepted": 425, "deleted": 425}
        await rig.restart()
        assert await rig.books() == {"accepted": 425, "deleted": 425}
        # The queue works on.
        await rig.push(4)
        await rig.until_books(warm=4)


async def test_what_stays_in_the_journal_is_purged(tmp_path: Path) -> None:
    async with running(tmp_path, {"q": PULL | {"warm_max_items": 1}}) as rig:
        rig.life.cold.break_down("store")
        for _ in range(200):
            await rig.push(2)
        found = await purge(rig)
        assert (await rig.books())["deleted"] == found["deleted"]
        while found["more"]:
            found = await purge(rig)
        assert await rig.books() == {"accepted": 400, "deleted": 400}
        await rig.crash()
        assert await rig.books() == {"accepted": 400, "deleted": 400}


async def test_what_workers_have_in_hand_is_finished(tmp_path: Path) -> None:
    async with running(tmp_path, {"q": {"workers": {"count": 1}}}, batch_items=2) as rig:
        rig.to().is_patient = True
        await rig.push(10)
        await rig.to().until_begun(1)
        await rig.until_books(running=2)
        assert (await purge(rig))["deleted"] == 8
        rig.to().open_up()
        assert await rig.until_books(delivered=2) == {"accepted": 10, "delivered": 2, "deleted": 8}


async def test_what_waits_for_room_in_warm_is_purged(tmp_path: Path) -> None:
    """Consumers have all that fits into warm, and keep it: the promoter has more in hand."""
    async with running(tmp_path, {"q": PULL | {"warm_max_items": 3}}) as rig:
        await rig.push(3)
        await rig.until_books(warm=3)
        assert await rig.life.warm.lease("q", 3, 1 << 20, 3600.0)
        for _ in range(4):
            await rig.push(2)
        await eventually(lambda: rig.life.line().items > 0)
        found = await purge(rig)
        assert found == {"queue": "q", "deleted": 8, "more": False}
        assert await rig.books() == {"accepted": 11, "deleted": 8, "held": 3, "running": 3}


async def test_what_a_stream_has_claimed_stays(tmp_path: Path) -> None:
    async with running(tmp_path, {"q": PULL}) as rig:
        await rig.push(2)
        claim = {"queue": "q", "consumer": "c", "after": 0}
        assert (await rig.control("streams.claim", **claim))["items"] == 2
        await rig.push(3)
        await rig.until_books(cold=5)
        assert await purge(rig) == {"queue": "q", "deleted": 3, "more": False}
        assert await purge(rig) == {"queue": "q", "deleted": 0, "more": False}
        assert (await rig.control("streams.claim", **claim))["items"] == 2


async def test_dead_letters_stay(tmp_path: Path) -> None:
    async with running(tmp_path, {"q": {}}) as rig:
        rig.to().open_up(all_fail(GONE))
        await rig.push(3)
        await rig.until_books(dead=3)
        assert (await purge(rig))["deleted"] == 0
        assert (await rig.books())["dead"] == 3


async def test_purge_that_has_no_time_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, {"q": PULL}) as rig:
        await rig.push(3)
        await rig.until_books(warm=3)
        monkeypatch.setattr(purging, "TIME_S", 0.0)
        assert await purge(rig) == {"queue": "q", "deleted": 0, "more": True}
        assert (await rig.books())["held"] == 3


async def test_unknown_queue_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, {"q": PULL}, auto_create_queues=False) as rig:
        with pytest.raises(Refused) as refused:
            await purge(rig, "nobody")
        assert refused.value.code == "NOT_FOUND"


async def test_cold_that_fails_gives_back_to_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, {"q": PULL}) as rig:
        for _ in range(30):
            await rig.push(7, due_s=3600)
        await rig.until_books(cold=210)
        rig.advance(3600)
        await rig.until_books(warm=210)

        async def fail(*_: object) -> list[bool]:
            raise StoreUnavailable("away")

        with monkeypatch.context() as patch:
            patch.setattr(rig.life.sqlite.items, "delete_all", fail)
            patch.setattr(rig.life.sqlite.items, "purge", fail)
            with pytest.raises(StoreUnavailable):
                await purge(rig)
        assert await rig.books() == {"accepted": 210, "held": 210, "warm": 210}
        while (await purge(rig))["more"]:
            await trio.lowlevel.checkpoint()
        assert await rig.books() == {"accepted": 210, "deleted": 210}


async def test_cold_that_does_not_answer_gives_back_to_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither rows nor runs of the journal are left in nobody's hands."""
    async with running(tmp_path, {"q": PULL}) as rig:
        await rig.push(7, due_s=3600)
        await rig.until_books(cold=7)
        rig.advance(3600)
        await rig.push(5)
        await rig.until_books(warm=12)
        with monkeypatch.context() as patch:
            patch.setattr(rig.life.sqlite.items, "delete_all", never_answers)
            patch.setattr(purging, "STEP_S", 0.01)
            with pytest.raises(StoreUnavailable):
                await purge(rig)
        assert await rig.books() == {"accepted": 12, "held": 12, "warm": 12}
        assert (await purge(rig))["deleted"] == 12
        assert await rig.books() == {"accepted": 12, "deleted": 12}


async def never_answers(*_: object) -> list[bool]:
    await trio.sleep_forever()
    return []
