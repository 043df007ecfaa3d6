"""Every operation of CONTROL on the running core: what it does, and what it refuses."""

import base64
from pathlib import Path
from typing import Any

import pytest

from actors.model.outcomes import Failure
from actors.ports.tiers import StoreUnavailable
from forebay.errors import Refused
from tests.rig.rig import Rig, running
from tests.rig.scripted import all_fail, all_good

GONE = Failure("gone for good", is_permanent=True)


async def dead(rig: Rig, items: int, queue: str = "q", **fields: Any) -> list[str]:
    rig.to(queue).verdict = all_fail(GONE)
    before = (await rig.books(queue)).get("dead", 0)
    ids = await rig.push(items, queue, **fields)
    await rig.until_books(queue, held=0, dead=before + items)
    rig.to(queue).verdict = all_good
    return ids


async def refusal(rig: Rig, op: str, **fields: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        await rig.control(op, **fields)
    assert "\n" not in refused.value.text
    return refused.value


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("no.such", {}, "unknown operation no.such"),
    ("dead.find", {"which": []}, "which must be an object"),
    ("dead.find", {"which": {"queue": 3}}, "queue must be a text"),
    ("dead.find", {"which": {"colour": "red"}}, "unknown field 'colour'"),
    ("dead.find", {"which": {"ids": "x"}}, "ids must be a list of texts"),
    ("dead.find", {"which": {"ids": ["x"] * 1001}}, "ids has at most 1000 entries"),
    ("dead.find", {"which": {"died_before_ms": "now"}}, "died_before_ms must be a whole number"),
    ("dead.find", {"limit": 0}, "limit must be a whole number, 1 to 1000"),
    ("dead.find", {"limit": True}, "limit must be a whole number"),
    ("dead.find", {"limit": 2.5}, "limit must be a whole number"),
    ("dead.find", {"payloads": 1}, "payloads must be true or false"),
    ("dead.find", {"cursor": "***"}, "cursor is not base64"),
    ("dead.find", {"cursor": "AAAA"}, "cursor"),
    ("dead.find", {"more": 1}, "unknown field 'more'"),
    ("dead.count", {"limit": 1}, "unknown field 'limit'"),
    ("dead.retry", {"cursor": "AAAA"}, "cursor"),
    ("dead.retry", {"payloads": True}, "unknown field 'payloads'"),
    ("dead.remove", {"which": {"flow": 1}}, "flow must be a text"),
    ("dead.edit", {}, "id must be a text"),
    ("dead.edit", {"id": "x"}, "give payload or payload_b64"),
    ("dead.edit", {"id": "x", "payload": "a", "payload_b64": "YQ=="}, "give payload or payload"),
    ("dead.edit", {"id": "x", "payload_b64": "?"}, "payload_b64 is not base64"),
    ("queues.pause", {}, "queue must be given"),
    ("queues.pause", {"queue": ""}, "queue must have at least 1 char"),
    ("queues.pause", {"queue": "q", "flow": 3}, "flow must be a text"),
    ("queues.resume", {"queue": "q", "all": True}, "unknown field 'all'"),
    ("queues.ls", {"queue": "q"}, "unknown field 'queue'"),
    ("queues.add", {"settings": {}}, "queue must be given"),
    ("queues.add", {"queue": "new", "settings": 3}, "settings must be an object"),
    ("queues.add", {"queue": "a b"}, "queue must be a name"),
    ("queues.set", {"queue": "q", "settings": {"no_key": 1}}, "no_key"),
    ("queues.rm", {"queue": "q", "force": True}, "unknown field 'force'"),
    ("breakers.ls", {"x": 1}, "unknown field 'x'"),
    ("breakers.set", {"destination": "q"}, "state must be given"),
    (
        "breakers.set",
        {"destination": "q", "state": "ajar"},
        "state must be 'open', 'closed' or 'auto'",
    ),
]


@pytest.mark.parametrize("op,fields,text", WRONG)
async def test_wrong_members_are_refused(
    tmp_path: Path, op: str, fields: dict[str, Any], text: str
) -> None:
    async with running(tmp_path) as rig:
        await rig.control("queues.add", queue="q")
        await rig.push(1)
        await rig.until_books(held=0)
        refused = await refusal(rig, op, **fields)
        assert refused.code == "BAD_REQUEST"
        assert text in refused.text


class TestDead:
    async def test_found_in_pages(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            ids = await dead(rig, 5, keys=[b"a", b"b", b"c", b"d", b"e"], flow="f", action="put")
            found: list[dict[str, Any]] = []
            cursor = None
            while True:
                page = await rig.control("dead.find", limit=2, cursor=cursor, payloads=True)
                found += page["letters"]
                cursor = page["cursor"]
                if cursor is None:
                    break
            assert sorted(letter["id"] for letter in found) == ids
            (third,) = (letter for letter in found if letter["id"] == ids[2])
            assert third["payload"] == "\x02" * 20
            assert (third["key"], third["flow"], third["action"]) == ("c", "f", "put")
            assert [error["text"] for error in third["errors"]] == ["gone for good"]
            assert third["attempt"] == 1

    async def test_bytes_that_are_no_text_are_base64(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            (item_id,) = await dead(rig, 1)
            payload = base64.b64encode(b"\xff\x00").decode()
            await rig.control("dead.edit", id=item_id, payload_b64=payload)
            page = await rig.control("dead.find", payloads=True)
            assert page["letters"][0]["payload_b64"] == payload
            assert "payload" not in page["letters"][0]
            without = await rig.control("dead.find")
            assert not {"payload", "payload_b64"} & without["letters"][0].keys()

    async def test_chosen_by_everything_one_may_ask_for(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            await dead(rig, 2, flow="f")
            await dead(rig, 3, flow="g", action="put")
            await dead(rig, 4, "r")
            for which, expected in [
                ({}, 9),
                ({"queue": "q"}, 5),
                ({"queue": "q", "flow": "f"}, 2),
                ({"action": "put"}, 3),
                ({"error": "FOR good"}, 9),
                ({"error": "nothing like it"}, 0),
                ({"died_after_ms": rig.now_ms() + 1000}, 0),
                ({"died_before_ms": rig.now_ms() + 1000}, 9),
                ({"ids": []}, 9),
            ]:
                answer = await rig.control("dead.count", which=which)
                assert answer == {"count": expected}, which
            assert (await rig.control("dead.count", stop_at=4)) == {"count": 4}

    async def test_retried_in_steps(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            ids = await dead(rig, 5)
            done, cursor = 0, None
            while True:
                answer = await rig.control("dead.retry", limit=2, cursor=cursor)
                done, cursor = done + answer["done"], answer["cursor"]
                if cursor is None:
                    break
            assert done == 5
            await rig.until_books(held=0, delivered=5)
            assert sorted(rig.to().taken) == ids

    async def test_what_is_not_there_is_not_edited(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            (item_id,) = await rig.push(1)
            await rig.until_books(held=0)
            refused = await refusal(rig, "dead.edit", id=item_id, payload="x")
            assert refused.code == "NOT_FOUND"

    async def test_a_payload_that_is_too_long_is_refused(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            (item_id,) = await dead(rig, 1)
            refused = await refusal(rig, "dead.edit", id=item_id, payload="x" * (65 << 20))
            assert refused.code == "BAD_REQUEST"
            assert (await rig.control("dead.count")) == {"count": 1}


async def test_a_change_that_cannot_be_kept_is_refused_and_not_made(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.push(1)
        # A directory where the new file should be.
        (tmp_path / "queues.new").mkdir()
        with pytest.raises(StoreUnavailable, match="cannot be kept"):
            await rig.control("queues.pause", queue="q")
        await rig.push(1)
        await rig.until_books(held=0, delivered=2)


class TestQueues:
    async def test_listed_with_what_they_hold(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"file": {}}) as rig:
            await rig.control("queues.add", queue="made", settings={"is_active": False})
            await rig.push(3, "made")
            await rig.push(2, "pushed")
            await rig.until_books("pushed", held=0)
            listed = (await rig.control("queues.ls"))["queues"]
            assert [(entry["queue"], entry["origin"], entry["held"]) for entry in listed] == [
                ("file", "file", 0),
                ("made", "control", 3),
                ("pushed", "push", 0),
            ]

    async def test_deleted_when_empty(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            await rig.control("queues.add", queue="q", settings={"is_active": False})
            await rig.push(3)
            refused = await refusal(rig, "queues.rm", queue="q")
            assert refused.text == "q is not empty: held 3, dead 0"
            await rig.control("queues.set", queue="q", settings={"is_active": True})
            await rig.until_books(held=0)
            assert await rig.control("queues.rm", queue="q") == {}
            assert (await refusal(rig, "queues.rm", queue="q")).code == "NOT_FOUND"

    async def test_the_configurations_are_left_alone(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"file": {}}) as rig:
            for refused in (
                await refusal(rig, "queues.set", queue="file", settings={}),
                await refusal(rig, "queues.rm", queue="file"),
            ):
                assert "change it there" in refused.text

    async def test_what_nobody_knows_is_not_paused(self, tmp_path: Path) -> None:
        async with running(tmp_path, auto_create_queues=False) as rig:
            for op in ("show", "pause", "resume", "stats", "purge", "rm"):
                assert (await refusal(rig, f"queues.{op}", queue="nobody")).code == "NOT_FOUND"
            refused = await refusal(rig, "queues.set", queue="nobody", settings={})
            assert refused.code == "NOT_FOUND"

    async def test_pauses_are_told(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            await rig.push(3)
            assert (await rig.control("queues.pause", queue="q"))["is_paused"]
            answer = await rig.control("queues.pause", queue="q", flow="f")
            assert answer["paused_flows"] == ["f"]
            assert not (await rig.control("queues.resume", queue="q"))["is_paused"]
            answer = await rig.control("queues.resume", queue="q", flow="f")
            assert answer["paused_flows"] == []

    async def test_another_handler_is_used_from_then_on(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            await rig.control("queues.add", queue="q", settings={"handler": {"type": "pull"}})
            ids = await rig.push(3)
            await rig.until_books(warm=3)
            assert rig.opened == []
            await rig.control("queues.set", queue="q", settings={"handler": {"type": "null"}})
            await rig.until_books(held=0, delivered=3)
            assert (rig.opened, rig.to().ids) == (["q"], ids)
            await rig.control("queues.set", queue="q", settings={"handler": {"type": "pull"}})
            await rig.push(2)
            await rig.until_books(warm=2)
            assert len(rig.to().ids) == 3

    async def test_a_change_waits_for_nothing_and_cuts_nothing_off(self, tmp_path: Path) -> None:
        """The old workers finish what they have, while the new ones go on."""
        async with running(tmp_path, batch_items=1) as rig:
            await rig.control("queues.add", queue="q", settings={"max_retries": 1})
            rig.to().is_patient = True
            ids = await rig.push(3)
            await rig.to().until_begun(1)
            await rig.control("queues.set", queue="q", settings={"max_retries": 2})
            await rig.to().until_begun(2)
            rig.to().open_up()
            await rig.until_books(held=0, delivered=3)
            assert rig.to().taken == dict.fromkeys(ids, 1)


class TestBreakers:
    async def test_forced_open_and_closed(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"q": {"breaker": {"enabled": True}}}) as rig:
            await rig.push(1)
            await rig.until_books(held=0)
            answer = await rig.control("breakers.set", destination="q", state="open")
            assert (answer["state"], answer["forced"], answer["open_until_ms"]) == (
                "open",
                True,
                None,
            )
            await rig.push(2)
            await rig.until_books(warm=2)
            assert (await rig.control("breakers.ls"))["breakers"] == [answer]
            answer = await rig.control("breakers.set", destination="q", state="auto")
            assert (answer["state"], answer["forced"]) == ("closed", False)
            await rig.until_books(held=0, delivered=3)

    async def test_open_by_itself_says_until_when(self, tmp_path: Path) -> None:
        breaker = {"enabled": True, "threshold": 1, "reset_timeout": "1h"}
        async with running(tmp_path, {"q": {"breaker": breaker}}) as rig:
            rig.to().verdict = all_fail(Failure("down"))
            await rig.push(1)
            await rig.until(lambda report: report["breakers"]["q"]["state"] == "open")
            (answer,) = (await rig.control("breakers.ls"))["breakers"]
            assert not answer["forced"]
            assert 0 < answer["open_until_ms"] - rig.now_ms() <= 3_600_000
            assert answer["last_error"] == "down"
            left = await rig.control("breakers.set", destination="q", state="auto")
            assert left["state"] == "open"

    async def test_only_what_is_there_is_forced(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            refused = await refusal(rig, "breakers.set", destination="nowhere", state="open")
            assert refused.code == "NOT_FOUND"
