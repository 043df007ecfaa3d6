"""Single items on the running core: found wherever they are, deleted, changed."""

from pathlib import Path
from typing import Any

import pytest

from actors.control.dead_groups import shape_of
from actors.model.outcomes import Failure
from forebay.errors import Refused
from forebay.ids import format_item_id, new_run_id
from tests.actors.spooler.spooling import spool_settings
from tests.eventually import eventually
from tests.rig.rig import Rig, running
from tests.rig.scripted import all_fail, all_good, items_fail

PULL: dict[str, Any] = {"q": {"handler": {"type": "pull"}, "history": "all"}}
GONE = Failure("gone for good: 17", is_permanent=True)


async def refusal(rig: Rig, op: str, **fields: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        await rig.control(op, **fields)
    return refused.value


async def state_of(rig: Rig, item_id: str) -> str:
    state: str = (await rig.control("items.show", id=item_id))["state"]
    return state


async def until_state(rig: Rig, item_id: str, state: str) -> dict[str, Any]:
    async def check() -> dict[str, Any]:
        shown = await rig.control("items.show", id=item_id, payload=True)
        assert shown["state"] == state, shown
        return shown

    return await eventually(check)


async def until_over(rig: Rig, job: dict[str, Any]) -> dict[str, Any]:
    async def check() -> dict[str, Any]:
        shown = await rig.control("job.show", id=job["id"])
        assert shown["state"] not in ("waiting", "running"), shown
        return shown

    return await eventually(check)


async def find_all(rig: Rig, limit: int = 3, **which: Any) -> list[dict[str, Any]]:
    """All pages."""
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = await rig.control("items.find", which=which, limit=limit, cursor=cursor)
        assert len(page["items"]) <= limit
        found += page["items"]
        cursor = page["cursor"]
        if cursor is None:
            return found


async def test_an_item_is_shown_with_its_payload_and_its_life(tmp_path: Path) -> None:
    async with running(tmp_path, PULL) as rig:
        headers = {"correlation_id": "c-7"}
        ids = await rig.push(3, keys=[b"a", b"b", b""], headers=headers, flow="f", priority=2)
        shown = await until_state(rig, ids[1], "QUEUED")
        assert shown["queue"] == "q"
        assert shown["key"] == "b"
        assert shown["flow"] == "f"
        assert shown["priority"] == 2
        assert shown["correlation_id"] == "c-7"
        assert shown["payload"] == "\x01" * 20
        assert [event["what"] for event in shown["timeline"]] == ["accepted", "queued"]
        assert (await rig.control("items.show", id=ids[2]))["key"] is None
        assert "payload" not in await rig.control("items.show", id=ids[2])


async def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    async with running(tmp_path, PULL) as rig:
        ids = await rig.push(3)
        for item_id in (format_item_id(new_run_id(), 0), ids[0][:-1] + "3"):
            assert (await refusal(rig, "items.show", id=item_id)).code == "NOT_FOUND"
            assert (await refusal(rig, "items.delete", id=item_id)).code == "NOT_FOUND"
        assert (await refusal(rig, "items.show", id="nonsense")).code == "BAD_REQUEST"


async def test_an_item_is_deleted_in_warm_and_its_neighbours_stay(tmp_path: Path) -> None:
    async with running(tmp_path, PULL) as rig:
        ids = await rig.push(3)
        await rig.until_books(warm=3)
        await rig.control("items.delete", id=ids[1])
        assert await rig.books() == {"accepted": 3, "deleted": 1, "held": 2, "warm": 2}
        assert (await rig.fill()).items == 2
        assert await state_of(rig, ids[1]) == "DELETED"
        assert await state_of(rig, ids[0]) == "QUEUED"
        refused = await refusal(rig, "items.delete", id=ids[1])
        assert refused.code == "CONFLICT"
        await rig.restart()
        assert (await rig.until_books(warm=2))["deleted"] == 1
        assert await state_of(rig, ids[1]) == "DELETED"


async def test_an_item_is_deleted_that_waits_in_the_journal(tmp_path: Path) -> None:
    """Warm has room for one, cold is away: the rest stays in the journal."""
    queues = {"q": {"handler": {"type": "pull"}, "warm_max_items": 1}}
    async with running(tmp_path, queues) as rig:
        rig.life.cold.break_down("store")
        runs = [await rig.push(2) for _ in range(200)]
        last = runs[-1]
        assert await state_of(rig, last[0]) == "SPOOLED"
        await rig.control("items.delete", id=last[0])
        books = await rig.books()
        assert (books["accepted"], books["deleted"], books["held"]) == (400, 1, 399)
        await rig.control("items.delete", id=last[1])
        assert (await refusal(rig, "items.delete", id=last[1])).code == "CONFLICT"
        found = await find_all(rig, 1000, queue="q")
        waiting = {item["id"] for item in found if item["state"] != "DELETED"}
        assert waiting == {item for run in runs[:-1] for item in run}
        await rig.crash()
        books = await rig.books()
        assert (books["accepted"], books["deleted"], books["held"]) == (400, 2, 398)


async def test_all_of_a_run_that_waits_on_disk_can_be_deleted(tmp_path: Path) -> None:
    """What is left in no run must not be lent, read or counted any more."""
    small = spool_settings(inmemory_runs=4).model_dump(mode="json")
    async with running(tmp_path, spool=small) as rig:
        settings = {"handler": {"type": "pull"}, "warm_max_items": 1}
        await rig.control("queues.add", queue="q", settings=settings)
        rig.life.cold.break_down("store")
        runs = [await rig.push(1) for _ in range(50)]
        for (item,) in runs[10:]:
            await rig.control("items.delete", id=item)
        assert (await rig.books())["held"] == 10
        rig.life.cold.mend()
        rig.to().verdict = all_fail(GONE)
        settings["handler"] = {"type": "null"}
        await rig.control("queues.set", queue="q", settings=settings)
        books = await rig.until_books(held=0)
        assert books["deleted"] == 40
        assert books["dead"] == 10


async def test_an_item_is_deleted_in_cold(tmp_path: Path) -> None:
    async with running(tmp_path, PULL) as rig:
        ids = await rig.push(3, due_s=3600)
        await rig.until_books(cold=3)
        assert await state_of(rig, ids[0]) == "COLD_QUEUED"
        await rig.control("items.delete", id=ids[0])
        assert await rig.books() == {"accepted": 3, "deleted": 1, "held": 2, "cold": 2}
        assert await state_of(rig, ids[0]) == "DELETED"
        await rig.control("items.delete", id=ids[1])
        await rig.control("items.delete", id=ids[2])
        assert await rig.books() == {"accepted": 3, "deleted": 3}


async def test_an_item_of_the_cold_store_is_deleted_in_warm(tmp_path: Path) -> None:
    async with running(tmp_path, PULL) as rig:
        ids = await rig.push(3, due_s=3600)
        await rig.until_books(cold=3)
        rig.advance(3600)
        await rig.until_books(warm=3)
        await rig.control("items.delete", id=ids[1])
        assert await rig.books() == {"accepted": 3, "deleted": 1, "held": 2, "warm": 2}
        assert (await rig.fill()).items == 2


async def test_what_runs_cannot_be_deleted_or_changed(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.to().is_patient = True
        (item,) = await rig.push(1)
        await until_state(rig, item, "RUNNING")
        for op, fields in (
            ("items.delete", {}),
            ("items.change", {"state": "DELETED"}),
            ("items.change", {"state": "FAILED"}),
            ("items.change", {"payload": "x"}),
        ):
            refused = await refusal(rig, op, id=item, **fields)
            assert refused.code == "CONFLICT"
        rig.to().answer()
        await rig.until_books(held=0, delivered=1)


async def test_a_delivered_item_is_in_history_and_done_for_good(tmp_path: Path) -> None:
    async with running(tmp_path, {"q": {"history": "all"}}) as rig:
        (item,) = await rig.push(1)
        await rig.until_books(held=0, delivered=1)
        await rig.restart()
        shown = await until_state(rig, item, "DONE")
        assert [event["what"] for event in shown["timeline"]] == ["accepted", "delivered"]
        refused = await refusal(rig, "items.change", id=item, state="QUEUED")
        assert "DONE" in refused.text
        assert refused.code == "CONFLICT"


async def test_a_dead_letter_is_shown_edited_retried(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.to().verdict = items_fail(lambda item: item.payload == b"\x01" * 20, GONE)
        ids = await rig.push(3)
        await rig.until_books(held=0, dead=1)
        shown = await until_state(rig, ids[1], "FAILED")
        assert [event["what"] for event in shown["timeline"]] == ["accepted", "failed", "dead"]
        assert shown["errors"][0]["text"] == "gone for good: 17"
        await rig.control("items.change", id=ids[1], payload="better", state="QUEUED")
        await rig.until_books(held=0, dead=0, delivered=3)
        (batch,) = [batch for batch in rig.to().batches if len(batch.items) == 1]
        assert (batch.ids, batch.items[0].payload) == ([ids[1]], b"better")


@pytest.mark.parametrize("due_s,place", [(0, "warm"), (3600, "cold")])
async def test_a_waiting_item_is_changed_and_keeps_its_id(
    tmp_path: Path, due_s: int, place: str
) -> None:
    queues = {"q": {"handler": {"type": "pull"}}}
    async with running(tmp_path, queues) as rig:
        ids = await rig.push(3, due_s=due_s, keys=[b"a", b"b", b"c"])
        await rig.until_books(**{place: 3})
        changed = await rig.control("items.change", id=ids[1], payload="new", priority=1, due_ms=0)
        assert (changed["id"], changed["priority"]) == (ids[1], 1)
        shown = await until_state(rig, ids[1], "QUEUED")
        assert (shown["payload"], shown["key"]) == ("new", "b")
        assert (await rig.books())["held"] == 3
        await rig.crash()
        shown = await until_state(rig, ids[1], "QUEUED")
        assert shown["payload"] == "new"
        books = await rig.books()
        assert (books["accepted"], books["held"]) == (3, 3)
        assert books.get("deleted", 0) == 0


async def test_a_waiting_item_is_put_off_and_given_up(tmp_path: Path) -> None:
    async with running(tmp_path, PULL) as rig:
        first, second = await rig.push(2)
        await rig.until_books(warm=2)
        later = rig.now_ms() + 3_600_000
        await rig.control("items.change", id=first, state="SCHEDULED", due_ms=later)
        await rig.until_books(cold=1, warm=1)
        assert (await rig.control("items.show", id=first))["due_ms"] == later
        assert "due_ms" in (await refusal(rig, "items.change", id=second, state="SCHEDULED")).text
        await rig.control("items.change", id=second, state="FAILED", error="not wanted")
        assert (await rig.until_books(dead=1))["held"] == 1
        (letter,) = await rig.dead()
        assert (letter.id, letter.errors[-1].text) == (second, "not wanted")
        await rig.control("items.delete", id=second)
        assert await state_of(rig, second) == "DELETED"


async def test_a_change_is_refused_while_cold_is_away_and_nothing_is_lost(tmp_path: Path) -> None:
    async with running(tmp_path, PULL) as rig:
        (item,) = await rig.push(1)
        await rig.until_books(warm=1)
        rig.life.cold.break_down("store")
        with pytest.raises(Exception, match="away"):
            await rig.control("items.change", id=item, payload="new")
        rig.life.cold.mend()
        assert await state_of(rig, item) == "QUEUED"
        assert await rig.books() == {"accepted": 1, "held": 1, "warm": 1}


async def test_a_failed_item_that_moved_to_cold_is_found_by_its_id(tmp_path: Path) -> None:
    """It is in a run of its own there, which lists its id."""
    slow = Failure("later", retry_after_s=3600, blames_destination=False)
    async with running(tmp_path) as rig:
        ids = await rig.push(4)
        await rig.until_books(held=0)
        rig.to().verdict = items_fail(lambda item: item.payload[:1] == b"\x02", slow)
        ids = await rig.push(4)
        await rig.until_books(held=1, cold=1)
        shown = await until_state(rig, ids[2], "COLD_QUEUED")
        assert (shown["attempt"], shown["errors"][0]["text"]) == (1, "later")
        assert [item["id"] for item in await find_all(rig, error="LATER")] == [ids[2]]
        await rig.control("items.delete", id=ids[2])
        assert (await rig.books())["deleted"] == 1
        assert await state_of(rig, ids[2]) == "DELETED"


async def test_a_search_goes_through_all_places_page_by_page(tmp_path: Path) -> None:
    queues: dict[str, Any] = {"q": {"history": "all"}, "p": {"handler": {"type": "pull"}}}
    async with running(tmp_path, queues) as rig:
        rig.to("q").verdict = items_fail(lambda item: item.payload[:1] == b"\x01", GONE)
        ended = await rig.push(5, headers={"correlation_id": "c-1"})
        await rig.until_books("q", held=0, dead=1)
        waiting = await rig.push(5, "p", keys=[b"k0", b"k1", b"k2", b"k3", b"k4"])
        later = await rig.push(5, "p", due_s=3600)
        await rig.until_books("p", warm=5, cold=5)
        await rig.restart()
        await rig.until_books("p", warm=5, cold=5)
        found = await find_all(rig, 2)
        assert sorted(item["id"] for item in found) == sorted(ended + waiting + later)
        assert [i["id"] for i in await find_all(rig, queue="p", key="k3")] == [waiting[3]]
        assert len(await find_all(rig, state="COLD_QUEUED")) == 5
        assert [i["id"] for i in await find_all(rig, state="QUEUED")] == waiting
        assert [i["id"] for i in await find_all(rig, state="FAILED")] == [ended[1]]
        assert len(await find_all(rig, state="DONE")) == 4
        assert len(await find_all(rig, correlation_id="c-1")) == 5
        assert await find_all(rig, before_ms=1) == []
        assert len(await find_all(rig, after_ms=1)) == 15
        assert await find_all(rig, queue="nobody") == []


@pytest.mark.parametrize("cursor", ["x", "e30", "WyJjb2xkIl0", "A" * 2000, "é", "WzEsMiwzLDQsNV0"])
async def test_a_cursor_that_is_none_is_refused(tmp_path: Path, cursor: str) -> None:
    async with running(tmp_path) as rig:
        refused = await refusal(rig, "items.find", cursor=cursor)
        assert "cursor" in refused.text


async def test_one_dead_letter_of_many_is_found_by_its_key(tmp_path: Path) -> None:
    """However few are wanted: a page for each that is wanted would go through them one by one."""
    async with running(tmp_path) as rig:
        rig.to().verdict = all_fail(GONE)
        await rig.push(400, keys=[b"key-%d" % (n // 2) for n in range(400)])
        await rig.until_books(held=0, dead=400)
        which = {"state": "FAILED", "key": "key-150"}
        page = await rig.control("items.find", which=which, limit=1)
        assert [item["key"] for item in page["items"]] == ["key-150"]
        found = await find_all(rig, 1, **which)
        assert len({item["id"] for item in found}) == len(found) == 2


@pytest.mark.parametrize(
    "text, shape",
    [
        ("503 from https://crm.example/a: busy", "503 from https://crm.example/a: busy"),
        ("HTTP/1.1 404 for customer 404", "HTTP/1.1 404 for customer …"),
        ("exit code 65: row 17", "exit code 65: row …"),
        ("4711 rows, 1.5 s, status=500", "… rows, … s, status=500"),
    ],
)
def test_codes_tell_errors_apart_and_other_numbers_do_not(text: str, shape: str) -> None:
    assert shape_of(text) == shape


async def test_dead_letters_are_grouped_by_what_went_wrong(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        for code in (17, 18):
            rig.to().verdict = all_fail(Failure(f"gone for good: {code}", is_permanent=True))
            await rig.push(3)
            await rig.until_books(held=0)
        rig.to().verdict = all_fail(Failure("no such customer", is_permanent=True))
        await rig.push(1)
        await rig.until_books(held=0, dead=7)
        groups = (await rig.control("dead.groups"))["groups"]
        assert [(g["error"], g["count"]) for g in groups] == [
            ("gone for good: …", 6),
            ("no such customer", 1),
        ]


async def test_a_job_retries_all_that_match_and_says_how_far_it_is(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.to().verdict = all_fail(GONE)
        await rig.push(5)
        await rig.until_books(held=0, dead=5)
        rig.to().verdict = all_good
        job = await rig.control("job.start", what="dead.retry", which={"queue": "q"})
        job = await until_over(rig, job)
        assert (job["state"], job["done"], job["total"]) == ("done", 5, 5)
        await rig.until_books(held=0, delivered=5)
        assert [known["id"] for known in (await rig.control("job.list"))["jobs"]] == [job["id"]]
        assert (await refusal(rig, "job.show", id="none")).code == "NOT_FOUND"


async def test_a_job_is_cancelled_while_the_store_is_away(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        job = await rig.control("job.start", what="dead.remove", which={})
        await rig.control("job.cancel", id=job["id"])
        assert (await until_over(rig, job))["state"] == "cancelled"
