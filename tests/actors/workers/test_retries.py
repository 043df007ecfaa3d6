"""Failures: attempts, histories, dead letters, and what becomes of those."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.model.outcomes import Failure, ItemsFailed, Report
from actors.ports.tiers import DeadFilter
from actors.tiers.clock_watch import ClockWatch
from tests.rig.rig import Rig, running
from tests.rig.scripted import Batch, Verdict, all_fail, all_good, items_fail

DAY_S = 86_400
DOWN = Failure("down", status=503)
REFUSED = Failure("refused", status=422, blames_destination=False)
GONE = Failure("gone", status=410, is_permanent=True, blames_destination=False)


async def in_cold(rig: Rig, items: int) -> list[str]:
    """Runs that are in cold before anything of theirs is tried."""
    await rig.pause("q", "f")
    ids = await rig.push(items, flow="f")
    await rig.until_books(cold=items)
    await rig.control("queues.resume", queue="q", flow="f")
    return ids


async def in_journal(rig: Rig, items: int) -> list[str]:
    return await rig.push(items, flow="f")


def by_payload(failures: Sequence[Failure | None]) -> Verdict:
    """Each item meets the failure that its first byte stands for, in turn; None: it is taken."""

    def judge(batch: Batch) -> Report:
        failed = []
        for item, (order, index) in zip(batch.items, batch.places, strict=True):
            failure = failures[item.payload[0] % len(failures)]
            if failure is not None:
                failed.append(ItemsFailed(order, 1 << index, failure))
        return Report(tuple(failed))

    return judge


OWNERS = pytest.mark.parametrize("enter", [in_journal, in_cold], ids=["journal", "cold"])


@OWNERS
class TestRetries:
    async def test_attempts_are_counted_and_errors_remembered(
        self, tmp_path: Path, enter: Any
    ) -> None:
        async with running(tmp_path, {"q": {"max_retries": 3}}) as rig:
            rig.to().verdict = all_fail(DOWN)
            ids = await enter(rig, 2)
            books = await rig.until_books(held=0)
            assert books == {"accepted": 2, "dead": 2}
            attempts = [[item.attempt for item in batch.items] for batch in rig.to().batches]
            assert attempts == [[0, 0], [1, 1], [2, 2], [3, 3]]
            letters = await rig.dead()
            assert sorted(letter.id for letter in letters) == ids
            for letter in letters:
                assert [(error.attempt, error.text) for error in letter.errors] == [
                    (1, "down"),
                    (2, "down"),
                    (3, "down"),
                    (4, "down"),
                ]
                assert letter.attempt == 4

    async def test_items_of_a_batch_fail_each_for_itself(self, tmp_path: Path, enter: Any) -> None:
        async with running(tmp_path) as rig:
            rig.to().is_patient = True
            ids = await enter(rig, 6)
            await rig.to().until_begun(1)
            rig.to().answer(items_fail(ids[1::2], REFUSED))
            await rig.to().until_begun(2)
            await rig.until_books(delivered=3, held=3)
            assert rig.to().batches[1].ids == ids[1::2]
            rig.to().answer(items_fail(ids[3:4], REFUSED))
            await rig.to().until_begun(3)
            assert [(item.id, item.attempt) for item in rig.to().batches[2].items] == [(ids[3], 2)]
            rig.to().answer()
            await rig.until_books(held=0, delivered=6)
            assert rig.to().taken == dict.fromkeys(ids, 1)

    async def test_a_permanent_failure_is_dead_at_once(self, tmp_path: Path, enter: Any) -> None:
        async with running(tmp_path) as rig:
            chosen: list[str] = []
            rig.to().verdict = lambda batch: items_fail(chosen, GONE)(batch)
            rig.to().is_patient = True
            ids = await enter(rig, 3)
            chosen.append(ids[1])
            await rig.to().until_begun(1)
            rig.to().open_up(items_fail(chosen, GONE))
            assert await rig.until_books(held=0) == {"accepted": 3, "delivered": 2, "dead": 1}
            (letter,) = await rig.dead()
            assert (letter.id, letter.attempt, letter.errors[0].text) == (ids[1], 1, "gone")
            assert letter.payload == bytes([1]) * 20

    @pytest.mark.parametrize("pause_s", [20, 100])
    @pytest.mark.parametrize("what", ["runs on", "restarts"])
    async def test_a_clock_that_is_set_back_makes_no_retry_wait_longer(
        self, tmp_path: Path, enter: Any, pause_s: int, what: str
    ) -> None:
        """Near the workers (20 s), in cold (100 s), and in the journal of the next life."""
        backoff = {"initial": f"{pause_s}s", "max": f"{pause_s}s", "jitter": 0}
        async with running(tmp_path, {"q": {"backoff": backoff}}) as rig:
            rig.advance(DAY_S)
            watch = ClockWatch(rig.life.memory, rig.life.sqlite, rig.now_ms)
            rig.to().verdict = all_fail(DOWN)
            ids = await enter(rig, 2)
            later = await rig.push(1, flow="f", due_s=3600)
            await rig.to().until_begun(1)
            await rig.until_books(running=0, spooled=0, held=3)
            rig.to().verdict = all_good
            rig.advance(-DAY_S)
            with capture_logs() as logs:
                if what == "restarts":
                    await rig.restart()
                    watch = ClockWatch(rig.life.memory, rig.life.sqlite, rig.now_ms)
                    await watch.start(rig.now_ms() + 1000 * DAY_S)
                else:
                    await watch.look()
            jumps = [line["seconds"] for line in logs if line["event"] == "clock.jumped"]
            assert [round(seconds, -1) for seconds in jumps] == [-DAY_S]
            await rig.until_books(running=0, spooled=0, held=3)
            rig.advance(pause_s)
            await rig.until_books(delivered=2, held=1)
            assert rig.to().taken == dict.fromkeys(ids, 1)
            # What a producer has scheduled stays at the time that it named.
            rig.advance(DAY_S - pause_s + 3600)
            await rig.until_books(delivered=3)
            assert rig.to().taken == dict.fromkeys(ids + later, 1)

    async def test_a_retry_later_than_a_minute_waits_in_cold(
        self, tmp_path: Path, enter: Any
    ) -> None:
        backoff = {"initial": "100s", "max": "100s", "jitter": 0}
        async with running(tmp_path, {"q": {"backoff": backoff, "warm_max_items": 5}}) as rig:
            ids = await enter(rig, 4)
            await rig.until_books(held=0)
            rig.to().batches.clear()
            rig.to().is_patient = True
            ids = await enter(rig, 4)
            await rig.to().until_begun(1)
            rig.to().open_up(items_fail(ids[2:], REFUSED))
            await rig.until_books(delivered=6, cold=2, running=0)
            assert (await rig.fill()).items == 0
            rig.to().open_up()
            rig.advance(99)
            await rig.stats()
            assert len(rig.to().batches) == 1
            rig.advance(2)
            await rig.until_books(held=0, delivered=8)
            assert [(item.id, item.attempt) for item in rig.to().batches[1].items] == [
                (ids[2], 1),
                (ids[3], 1),
            ]

    async def test_attempts_survive_a_crash(self, tmp_path: Path, enter: Any) -> None:
        backoff = {"initial": "10s", "max": "10s", "jitter": 0}
        async with running(tmp_path, {"q": {"backoff": backoff, "max_retries": 2}}) as rig:
            rig.to().is_patient = True
            ids = await enter(rig, 3)
            await rig.to().until_begun(1)
            rig.to().answer(items_fail(ids[:2], REFUSED))
            await rig.until_books(delivered=1, running=0)
            await rig.crash()
            await rig.until_books(delivered=1, held=2, spooled=0)
            rig.advance(11)
            await rig.to().until_begun(2)
            assert [(item.id, item.attempt) for item in rig.to().batches[1].items] == [
                (ids[0], 1),
                (ids[1], 1),
            ]
            rig.to().answer(items_fail(ids[:1], Failure("worse")))
            await rig.until_books(delivered=2, running=0)
            await rig.crash()
            rig.advance(11)
            await rig.to().until_begun(3)
            rig.to().open_up(all_fail(DOWN))
            await rig.until_books(held=0, delivered=2, dead=1)
            (letter,) = await rig.dead()
            assert [(e.attempt, e.text) for e in letter.errors] == [
                (1, "refused"),
                (2, "worse"),
                (3, "down"),
            ]

    async def test_rules_have_the_word(self, tmp_path: Path, enter: Any) -> None:
        rules = [
            {"status": "404", "then": "dead"},
            {"error": "slow", "max_retries": 1, "delay": "1ms"},
            {"status": ["4xx"], "error": "gone", "max_retries": 2},
        ]
        texts = ["missing", "too slow", "gone", "other"]
        statuses = [404, 500, 410, 500]
        backoff = {"initial": "1ms", "max": "1ms", "jitter": 0}
        keys = {"retry_rules": rules, "max_retries": 3, "backoff": backoff}
        async with running(tmp_path, {"q": keys}) as rig:
            rig.to().verdict = by_payload(
                [
                    Failure(text, status, is_permanent=status == 410)
                    for text, status in zip(texts, statuses, strict=True)
                ]
            )
            ids = await enter(rig, 4)
            await rig.until_books(held=0, dead=4)
            attempts = {letter.id: letter.attempt for letter in await rig.dead()}
            assert [attempts[item_id] for item_id in ids] == [1, 2, 3, 4]


@OWNERS
class TestDeadLetters:
    async def dead(self, rig: Rig, enter: Any, items: int = 3) -> list[str]:
        rig.to().verdict = all_fail(GONE)
        ids: list[str] = await enter(rig, items)
        await rig.until_books(held=0, dead=items)
        rig.to().batches.clear()
        rig.to().verdict = all_good
        return ids

    async def test_those_that_are_retried_are_delivered(self, tmp_path: Path, enter: Any) -> None:
        async with running(tmp_path) as rig:
            ids = await self.dead(rig, enter)
            answer = await rig.control("dead.retry", which={"ids": ids[:2]})
            assert answer["done"] == 2
            assert await rig.until_books(held=0) == {"accepted": 3, "delivered": 2, "dead": 1}
            assert sorted(rig.to().ids) == ids[:2]
            assert {item.attempt for batch in rig.to().batches for item in batch.items} == {0}

    async def test_those_that_die_again_keep_their_history(
        self, tmp_path: Path, enter: Any
    ) -> None:
        async with running(tmp_path) as rig:
            (item_id,) = await self.dead(rig, enter, 1)
            rig.to().verdict = all_fail(Failure("still gone", is_permanent=True))
            await rig.control("dead.retry", which={"queue": "q"})
            await rig.to().until_begun(1)
            await rig.until_books(held=0, dead=1)
            (letter,) = await rig.dead()
            assert letter.id == item_id
            assert [error.text for error in letter.errors] == ["gone", "still gone"]

    async def test_an_edited_one_has_its_id_and_another_payload(
        self, tmp_path: Path, enter: Any
    ) -> None:
        async with running(tmp_path) as rig:
            ids = await self.dead(rig, enter)
            await rig.control("dead.edit", id=ids[1], payload="mended")
            await rig.control("dead.retry", which={"queue": "q"})
            await rig.until_books(held=0, delivered=3)
            sent = {item.id: item.payload for batch in rig.to().batches for item in batch.items}
            assert sent == {
                ids[0]: bytes([0]) * 20,
                ids[1]: b"mended",
                ids[2]: bytes([2]) * 20,
            }

    async def test_those_that_are_removed_are_counted_as_deleted(
        self, tmp_path: Path, enter: Any
    ) -> None:
        async with running(tmp_path) as rig:
            ids = await self.dead(rig, enter)
            answer = await rig.control("dead.remove", which={"ids": ids[1:]})
            assert answer == {"done": 2, "cursor": None}
            assert await rig.books() == {"accepted": 3, "dead": 1, "deleted": 2}
            assert [letter.id for letter in await rig.dead()] == ids[:1]

    async def test_they_survive_a_crash(self, tmp_path: Path, enter: Any) -> None:
        async with running(tmp_path) as rig:
            ids = await self.dead(rig, enter)
            await rig.crash()
            assert await rig.books() == {"accepted": 3, "dead": 3}
            await rig.control("dead.retry", which={})
            await rig.until_books(held=0, delivered=3)
            assert sorted(rig.to().ids) == ids

    async def test_they_are_retried_across_a_restart(self, tmp_path: Path, enter: Any) -> None:
        """The queue has nothing in the journal any more, and its workers start all the same."""
        async with running(tmp_path) as rig:
            ids = await self.dead(rig, enter)
            await rig.restart()
            assert await rig.life.sqlite.dead_letters.count(DeadFilter("q"), 10) == 3
            await rig.control("dead.retry", which={})
            await rig.until_books(held=0, delivered=3)
            assert sorted(rig.to().ids) == ids


async def test_items_of_one_run_go_three_ways(tmp_path: Path) -> None:
    """Of one slice: delivered, again soon, again in cold, dead; each exactly once."""
    rules = [
        {"error": "later", "delay": "100s"},
        {"error": "dead", "then": "dead"},
    ]
    backoff = {"initial": "1ms", "max": "1ms", "jitter": 0}
    async with running(tmp_path, {"q": {"retry_rules": rules, "backoff": backoff}}) as rig:
        ids = await rig.push(8)
        await rig.until_books(held=0)
        rig.to().is_patient = True
        ids = await rig.push(8)

        await rig.to().until_begun(2)
        rig.to().answer(by_payload([None, Failure("soon"), Failure("later"), Failure("dead")]))
        await rig.to().until_begun(3)
        assert sorted(rig.to().batches[2].ids) == sorted([ids[1], ids[5]])
        rig.to().open_up()
        books = await rig.until_books(running=0, warm=0, scheduled=0, cold=2, dead=2)
        assert books == {"accepted": 16, "delivered": 12, "held": 2, "cold": 2, "dead": 2}
        rig.advance(101)
        await rig.until_books(held=0, delivered=14)
        assert sorted(letter.id for letter in await rig.dead()) == [ids[3], ids[7]]
        assert max(rig.to().taken.values()) == 1


async def test_a_destination_may_ask_for_a_pause(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        rig.to().is_patient = True
        await rig.push(1)
        await rig.to().until_begun(1)
        rig.to().open_up(all_fail(Failure("busy", 429, retry_after_s=30)))
        await rig.until_books(scheduled=1)
        rig.to().verdict = all_good
        rig.advance(31)
        await rig.until_books(held=0, delivered=1)
