"""What was finished stays visible, whoever owned it; and never at the cost of what is delivered."""

from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from actors.model.outcomes import Failure
from actors.observers import history as history_module
from forebay.errors import Refused
from forebay.fetch_frames import FetchedRow, FetchWish, pack_fetched, unpack_fetched
from forebay.limits import ATTEMPT_MAX
from forebay.run import Run, read_head
from tests.actors.workers.test_retries import OWNERS
from tests.eventually import eventually
from tests.rig.rig import Rig, running
from tests.rig.scripted import all_fail, all_good, items_fail

DOWN = Failure("down", status=503)
GONE = Failure("gone", status=410, is_permanent=True, blames_destination=False)
ALL = {"q": {"history": "all"}}


async def look(rig: Rig, queue: str = "q") -> list[FetchedRow]:
    """All of it, as FETCH reads it."""
    rows: list[FetchedRow] = []
    cursor: str | None = ""
    while cursor is not None:
        about, found = await rig.life.streams.fetch(
            FetchWish(queue, state="history", cursor=cursor, rows=3)
        )
        rows += found
        cursor = about["cursor"]
    return rows


def ids_of(rows: list[FetchedRow]) -> list[str]:
    ids: list[str] = []
    for row in rows:
        run = Run(read_head(row.run), row.run)
        every = run.item_ids(0, run.head.count)
        ids += [id_ for n, id_ in enumerate(every) if row.bits is None or row.bits >> n & 1]
    return ids


async def test_a_run_with_the_most_attempts_can_be_read(tmp_path: Path) -> None:
    async with running(tmp_path, ALL) as rig:
        await rig.push(1, attempt=ATTEMPT_MAX)
        rows = await until_seen(rig, 1)
        (row,) = unpack_fetched(pack_fetched({}, rows)).rows
        assert row.attempt == ATTEMPT_MAX
        rig.to().verdict = all_fail(GONE)
        await rig.push(1, attempt=ATTEMPT_MAX)
        await rig.until_books(dead=1)
        assert [letter.attempt for letter in await rig.dead()] == [ATTEMPT_MAX]


async def until_seen(rig: Rig, items: int, queue: str = "q") -> list[FetchedRow]:
    """Rows are written a moment after they were settled."""

    async def check() -> list[FetchedRow]:
        rows = await look(rig, queue)
        assert len(ids_of(rows)) >= items, rows
        return rows

    return await eventually(check)


async def until_dropped(rig: Rig, rows: int) -> None:
    def check() -> None:
        assert rig.life.history.dropped_total == rows, rig.life.history.dropped_total

    await eventually(check)


@OWNERS
class TestKept:
    async def test_all_that_is_delivered_is_seen_once(self, tmp_path: Path, enter: Any) -> None:
        async with running(tmp_path, ALL) as rig:
            ids = await enter(rig, 28)
            before = rig.now_ms()
            await rig.until_books(held=0)
            rows = await until_seen(rig, 28)
            assert sorted(ids_of(rows)) == sorted(ids)
            for row in rows:
                assert row.finished is not None
                assert (row.finished.outcome, row.finished.errors) == ("delivered", ())
                assert before - 60_000 < row.finished.finished_ms <= rig.now_ms()
                assert row.attempt == 1
            assert await rig.books() == {"accepted": 28, "delivered": 28}

    async def test_of_failures_only_what_has_failed_is_seen(
        self, tmp_path: Path, enter: Any
    ) -> None:
        async with running(tmp_path, {"q": {"max_retries": 3}}) as rig:
            destination = rig.to()
            destination.is_patient = True
            ids = await enter(rig, 10)
            await destination.until(lambda: destination.items_waiting == 10)
            destination.answer(items_fail({ids[2], ids[7]}, DOWN))
            destination.open_up()
            await rig.until_books(held=0)
            rows = await until_seen(rig, 2)
            assert set(ids_of(rows)) == {ids[2], ids[7]}
            for row in rows:
                assert row.finished is not None
                assert row.attempt == 2
                assert [error.text for error in row.finished.errors] == ["down"]

    async def test_a_dead_letter_is_seen_when_it_is_removed_or_retried_and_delivered(
        self, tmp_path: Path, enter: Any
    ) -> None:
        async with running(tmp_path) as rig:
            rig.to().verdict = all_fail(GONE)
            ids = await enter(rig, 4)
            await rig.until_books(dead=4)
            assert await look(rig) == []
            await rig.control("dead.remove", which={"ids": ids[:2]})
            rows = await look(rig)
            assert sorted(ids_of(rows)) == ids[:2]
            assert {row.finished and row.finished.outcome for row in rows} == {"deleted"}
            rig.to().verdict = all_good
            await rig.control("dead.retry", which={})
            await rig.until_books(dead=0, held=0)
            rows = await until_seen(rig, 4)
            assert sorted(ids_of(rows)) == ids
            ends = [row.finished for row in rows if row.finished]
            assert [end.errors[-1].text for end in ends] == ["gone"] * len(rows)
            assert await rig.books() == {"accepted": 4, "delivered": 2, "deleted": 2}

    async def test_nothing_is_kept_of_a_queue_that_wants_none(
        self, tmp_path: Path, enter: Any
    ) -> None:
        async with running(tmp_path, {"q": {"history": "none"}, "b": ALL["q"]}) as rig:
            rig.to().verdict = all_fail(GONE)
            await enter(rig, 3)
            await rig.until_books(dead=3)
            await rig.control("dead.remove", which={})
            await rig.push(1, "b")
            await until_seen(rig, 1, "b")
            assert await look(rig) == []


class TestWriter:
    async def test_what_was_noted_is_written_before_the_end(self, tmp_path: Path) -> None:
        async with running(tmp_path, ALL) as rig:
            ids = await rig.push(30)
            await rig.until_books(held=0)
            await rig.restart()
            assert sorted(ids_of(await look(rig))) == sorted(ids)

    async def test_a_store_that_is_away_costs_rows_and_nothing_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(history_module, "WRITTEN_ROWS", 1)
        async with running(tmp_path, ALL) as rig:
            rig.life.cold.break_down("note_history")
            with structlog.testing.capture_logs() as logs:
                await rig.push(10)
                await rig.push(10)
                await rig.until_books(held=0)
                await until_dropped(rig, 20)
                rig.life.cold.mend()
                monkeypatch.setattr(history_module, "QUIET_S", 0.0)
                ids = await rig.push(5)
                assert ids_of(await until_seen(rig, 5)) == ids
            assert await rig.books() == {"accepted": 25, "delivered": 25}
            events = [line["event"] for line in logs if line["event"].startswith("history.")]
            assert events == ["history.dropping", "history.kept_again"]

    async def test_a_full_list_drops_rows_and_holds_up_nobody(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(history_module, "ROWS_MAX", 2)
        async with running(tmp_path, ALL, batch_items=1) as rig:
            held = trio.Event()
            rig.life.cold.after["note_history"] = held.wait
            await rig.push(1)
            await eventually(lambda: "note_history" not in rig.life.cold.after)
            # The writer waits; the list takes two more.
            await rig.push(12)
            await rig.until_books(delivered=13)
            await until_dropped(rig, 10)
            held.set()
            assert len(ids_of(await until_seen(rig, 3))) == 3

    async def test_history_stops_before_pushes_are_refused(self, tmp_path: Path) -> None:
        spool = {"min_free_bytes": 1000}
        settings = {"spool": {"chunk_size": "64Ki", "ballast_bytes": "64Ki", **spool}}
        async with running(tmp_path, ALL, **settings) as rig:
            with structlog.testing.capture_logs() as logs:
                rig.free_bytes = 1999
                await rig.push(3)
                await rig.until_books(delivered=3)
                await eventually(lambda: any(line["event"] == "history.paused" for line in logs))
                rig.free_bytes = 2000
                ids = await rig.push(2)
                assert sorted(ids_of(await until_seen(rig, 2))) == ids
            assert rig.life.history.dropped_total == 0
            assert [line["event"] for line in logs if "history." in line["event"]] == [
                "history.paused",
                "history.resumed",
            ]


class TestRetention:
    async def test_what_is_too_old_is_forgotten_at_the_start_and_what_is_not_is_kept(
        self, tmp_path: Path
    ) -> None:
        queues = {
            "q": {"history": "all", "retention": "1h"},
            "slow": {"history": "all", "retention": "2h"},
        }
        async with running(tmp_path, queues) as rig:
            await rig.push(5)
            await rig.push(5, "slow")
            await until_seen(rig, 5)
            await until_seen(rig, 5, "slow")
            rig.advance(3601)
            await rig.restart()

            async def check() -> None:
                rows = await look(rig)
                assert not rows, rows

            await eventually(check)
            assert len(ids_of(await look(rig, "slow"))) == 5

    async def test_a_cursor_that_is_none_is_refused(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            with pytest.raises(Refused, match="cursor"):
                await rig.life.streams.fetch(FetchWish("q", state="history", cursor="x"))


class TestCrash:
    async def test_history_of_the_cold_store_survives_with_its_books(self, tmp_path: Path) -> None:
        async with running(tmp_path) as rig:
            rig.to().verdict = all_fail(GONE)
            ids = await rig.push(3)
            await rig.until_books(dead=3)
            await rig.control("dead.remove", which={})
            await rig.crash()
            assert sorted(ids_of(await look(rig))) == ids
            assert await rig.books() == {"accepted": 3, "deleted": 3}
