"""Queues that are read as streams: where their items are, and who gets them."""

from pathlib import Path
from typing import Any

import pytest

from actors.spooler.spooler import Spooler
from actors.tiers import handover
from forebay.errors import Refused
from forebay.fetch_frames import FetchWish
from forebay.run import Run, read_head
from tests.eventually import eventually
from tests.rig.rig import Rig, running

SMALL = {"warm_max_items": 10}


async def claim(rig: Rig, after: int, consumer: str = "c", **fields: Any) -> dict[str, Any]:
    return await rig.control("streams.claim", queue="q", consumer=consumer, after=after, **fields)


async def claim_some(rig: Rig, after: int, **fields: Any) -> dict[str, Any]:
    """Asks again until there is something: on a slow machine it may take more than one wait."""

    async def check() -> dict[str, Any]:
        found = await claim(rig, after, **fields)
        assert found["claim"] is not None, found
        return found

    return await eventually(check)


async def ids_of(rig: Rig, wish: FetchWish) -> list[str]:
    _, rows = await rig.life.streams.fetch(wish)
    ids: list[str] = []
    for row in rows:
        run = Run(read_head(row.run), row.run)
        every = run.item_ids(0, run.head.count)
        ids += [id_ for n, id_ in enumerate(every) if row.bits is None or row.bits >> n & 1]
    return ids


async def claimed_ids(rig: Rig, number: int) -> list[str]:
    return await ids_of(rig, FetchWish("q", "c", number))


async def drain(rig: Rig, after: int, items: int, **fields: Any) -> list[str]:
    """Claims until there have been so many items; none of them is acknowledged twice."""
    got: list[str] = []
    while len(got) < items:
        found = await claim_some(rig, after, **fields)
        after = found["claim"]
        got += await claimed_ids(rig, after)
    return got


class TestMode:
    async def test_items_of_a_stream_wait_in_cold_and_its_handler_gets_none(
        self, tmp_path: Path
    ) -> None:
        async with running(tmp_path) as rig:
            empty = await claim(rig, 0)
            assert empty == {"claim": None, "rows": 0, "items": 0, "bytes": 0, "backlog": 0}
            ids = [*await rig.push(4), *await rig.push(3, due_s=3600), *await rig.push(2)]
            await rig.push(1, queue="other")
            await rig.until_in_cold(9)
            books = await rig.books()
            assert books == {"accepted": 9, "held": 9, "cold": 9}
            found = await claim(rig, 0)
            assert (found["claim"], found["items"], found["backlog"]) == (1, 6, 3)
            assert await claimed_ids(rig, 1) == [*ids[:4], *ids[7:]]
            assert await rig.books() == books
            await rig.until_books("other", delivered=1)
            assert rig.to().ids == []
            last = await claim(rig, 1)
            assert (last["claim"], last["backlog"]) == (None, 3)
            assert await rig.books() == {"accepted": 9, "delivered": 6, "held": 3, "cold": 3}

    async def test_what_waits_in_warm_is_the_streams_and_comes_first(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"q": SMALL}, batch_items=3) as rig:
            rig.to().is_patient = True
            ids = []
            for _ in range(6):
                ids += await rig.push(4)
                await rig.stats()
            await rig.until_books(running=3, spooled=0)
            assert await drain(rig, 0, 21) == ids[3:]
            # What the handler has in hand is its own.
            rig.to().open_up()
            await rig.until(lambda report: report["queues"]["q"]["running"] == 0)
            assert rig.to().ids == ids[:3]

    async def test_a_dropped_stream_is_delivered_by_its_handler_in_order(
        self, tmp_path: Path
    ) -> None:
        async with running(tmp_path) as rig:
            await claim(rig, 0)
            await claim(rig, 0, "d")
            ids = [id_ for _ in range(5) for id_ in await rig.push(2)]
            await rig.until_in_cold(10)
            await claim(rig, 0, items=4)
            assert await rig.control("streams.rm", queue="q", consumer="c") == {"released": 4}
            # There is another consumer.
            ids += await rig.push(2)
            await rig.until_in_cold(12)
            assert rig.to().ids == []
            assert await rig.control("streams.rm", queue="q", consumer="d") == {"released": 0}
            ids += await rig.push(2)
            await rig.until_books(delivered=14)
            assert rig.to().ids == ids

    async def test_the_mode_and_the_claim_outlive_a_crash(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            await claim(rig, 0)
            ids = await rig.push(3)
            found = await claim_some(rig, 0)
            await rig.crash()
            ids += await rig.push(2)
            await rig.until_in_cold(5)
            again = await claim(rig, 0)
            assert again == found | {"backlog": 2}
            assert await drain(rig, 0, 5) == ids
            await rig.crash()
            assert rig.to().ids == []
            status = await rig.control("streams.show", queue="q", consumer="c")
            assert (status["acknowledged"], status["claim"], status["items"]) == (1, 2, 2)
            assert await rig.books() == {"accepted": 5, "delivered": 3, "held": 2, "cold": 2}


class TestHardTimes:
    async def test_nothing_of_a_stream_enters_warm_while_cold_is_away(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(handover, "REST_S", 0.01)
        async with running(tmp_path) as rig:
            await claim(rig, 0)
            rig.life.cold.break_down()
            ids = await rig.push(3)
            await eventually(lambda: "store" in rig.life.cold.calls)
            assert (await rig.fill()).items == 0
            rig.life.cold.mend()
            assert await drain(rig, 0, 3) == ids
            assert rig.to().ids == []

    async def test_a_stream_drains_while_the_disk_is_low(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with running(tmp_path) as rig:
            await claim(rig, 0)
            await rig.push(2)
            await rig.until_in_cold(2)
            monkeypatch.setattr(Spooler, "disk_is_low", property(lambda _: True))
            ids = [id_ for _ in range(3) for id_ in await rig.push(2)]
            found = await claim(rig, 0)
            assert (found["items"], found["backlog"]) == (2, 6)
            assert await drain(rig, 1, 6) == ids

    async def test_nothing_new_is_claimed_of_what_is_paused(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            await claim(rig, 0)
            await rig.push(1, flow="f")
            open_claim = await claim_some(rig, 0)
            await rig.push(2, flow="f")
            await rig.push(4, flow="g")
            await rig.until_in_cold(7)
            await rig.pause("q")
            assert (await claim(rig, 0))["claim"] == open_claim["claim"]
            paused = await claim(rig, 1)
            assert (paused["claim"], paused["backlog"]) == (None, 6)
            await rig.pause("q", "f")
            await rig.control("queues.resume", queue="q")
            assert (await claim(rig, 1))["items"] == 4
            await rig.control("queues.resume", queue="q", flow="f")
            assert (await claim(rig, 2))["items"] == 2

    @pytest.mark.parametrize(
        "fields,text",
        [
            ({"after": 1}, "never made"),
            ({"after": -1}, "after"),
            ({"after": "x"}, "after"),
            ({}, "after must be given"),
            ({"after": 0, "items": -1}, "items"),
            ({"after": 0, "more": 1}, "more"),
            ({"after": 0, "consumer": "é" * 51}, "consumer"),
            ({"after": 0, "consumer": ""}, "consumer"),
            ({"after": 0, "queue": "no good name"}, "queue"),
        ],
    )
    async def test_a_claim_that_makes_no_sense_changes_nothing(
        self, tmp_path: Path, fields: dict[str, Any], text: str
    ) -> None:
        async with running(tmp_path) as rig:
            with pytest.raises(Refused, match=text) as refused:
                await rig.control("streams.claim", **{"queue": "q", "consumer": "c"} | fields)
            assert refused.value.code == "BAD_REQUEST"
            assert await rig.life.sqlite.streams() == []
            await rig.push(1)
            await rig.until_books(delivered=1)

    async def test_a_queue_that_may_not_be_created_is_not_claimed_from(
        self, tmp_path: Path
    ) -> None:
        async with running(tmp_path, auto_create_queues=False) as rig:
            with pytest.raises(Refused, match="there is no queue q"):
                await claim(rig, 0)


class TestLooks:
    async def test_the_journal_shows_what_waits_and_what_is_lent(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"q": SMALL}, batch_items=3) as rig:
            rig.to().is_patient = True
            ids = await rig.push(8)
            await rig.to().until_begun(1)
            rig.life.cold.break_down()
            for _ in range(4):
                ids += await rig.push(4)
            await rig.stats()
            assert await look(rig) == ids
            rig.to().answer()
            await rig.until_books(delivered=3)
            assert await look(rig) == ids[3:]
            await rig.crash()
            assert await look(rig) == ids[3:]
            assert await ids_of(rig, FetchWish("none", state="queued")) == []

    async def test_a_claim_of_nothing_acknowledges_alone(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            await claim(rig, 0, items=0)
            await rig.push(5)
            await rig.push(5)
            await rig.until_in_cold(10)
            assert (await claim(rig, 0, items=5))["claim"] == 1

            acknowledged = await claim(rig, 1, items=0)

            assert (acknowledged["claim"], acknowledged["backlog"]) == (None, 5)
            assert (await claim(rig, 1, items=5))["claim"] == 2

    async def test_a_claim_that_is_not_open_is_not_found(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            with pytest.raises(Refused) as refused:
                await claimed_ids(rig, 1)
            assert refused.value.code == "NOT_FOUND"


async def look(rig: Rig) -> list[str]:
    """All that the journal shows, two runs at a time."""
    ids: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        wish = FetchWish("q", state="queued", rows=2, cursor=cursor)
        about, _ = await rig.life.streams.fetch(wish)
        ids += await ids_of(rig, wish)
        cursor = about["cursor"]
    return ids
