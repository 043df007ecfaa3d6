"""The spooler and writes: what is staged is invisible, what is published is there as a whole."""

import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from actors.model.clock import wall_ms
from actors.model.runs import Fate
from actors.spooler import intake, staging
from actors.spooler.messages import DropStage
from daemon.journal.files import Files
from daemon.journal.records import RECORDS
from forebay.wire import Outcome
from tests.actors.spooler.spooling import HANG_S, KIB, handed_over, make_run, running_spooler
from tests.actors.spooler.staging_desk import (
    W1,
    W2,
    W3,
    A,
    B,
    C,
    abort,
    books,
    code_of,
    deliver,
    forget,
    lose_indexes,
    publish,
    receipt,
    seal,
    stage,
    stage_and_seal,
    staged_run,
)
from tests.crash.spooler_time import pass_time
from tests.eventually import eventually

FAR_MS = 2**52
"""Later than anything."""


# Visible or not.


async def test_what_is_staged_is_stored_and_invisible_until_it_is_published(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await stage_and_seal(desk, W1, A, staged_run(items=2), staged_run(items=3))
        assert await books(desk) == {"staged": 5}
        assert (await desk.stats())["spool"]["runs"] == 2
        assert await receipt(desk, W1) == {}
        result = await publish(desk, W1, A)
        assert isinstance(result, dict)
        assert (result["outcome"], result["items"]) == ("published", 5)
        assert await books(desk) == {"accepted": 5, "held": 5}
        assert await receipt(desk, W1) == {"accepted": 5}
        await deliver(desk, 2)
        assert await books(desk) == {"accepted": 5, "delivered": 5}
        assert await receipt(desk, W1) == {"accepted": 5, "delivered": 5}
        assert (await desk.stats())["spool"]["runs"] == 0


async def test_taker_that_waits_gets_nothing_before_the_publication(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk, trio.open_nursery() as nursery:
        taken: list[int] = []

        async def take() -> None:
            taken.extend(lease.run.head.count for lease in await desk.take())

        nursery.start_soon(take)
        await stage_and_seal(desk, W1, A, staged_run(items=7))
        await desk.stats()
        assert not taken
        await publish(desk, W1, A)
        await eventually(lambda: taken == [7])


async def test_published_runs_join_their_lanes_in_order_of_priority_then_publication(
    tmp_path: Path,
) -> None:
    async with running_spooler(tmp_path) as desk:
        await stage_and_seal(desk, W1, A, staged_run(items=1), staged_run(items=2, priority=0))
        await desk.push(make_run(items=3), make_run(items=4, priority=0))
        await stage_and_seal(desk, W2, A, staged_run(W2, items=5), staged_run(W2, items=6))
        await publish(desk, W2, A)
        await publish(desk, W1, A)
        await desk.push(make_run(items=7))
        counts = [lease.run.head.count for lease in await desk.take_runs(7)]
        assert counts == [4, 2, 3, 5, 6, 1, 7]


async def test_publishing_shows_the_named_stages_alone(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await stage_and_seal(desk, W1, A, staged_run(items=1), staged_run(queue="r", items=2))
        await stage_and_seal(desk, W1, B, staged_run(items=4))
        await stage(desk, W1, C, staged_run(items=8))
        await publish(desk, W1, A)
        assert await books(desk) == {"accepted": 3, "held": 3}
        await deliver(desk, 1)
        await deliver(desk, 1, "r")
        assert (await desk.stats())["spool"]["runs"] == 0
    async with running_spooler(tmp_path) as desk:
        assert await books(desk) == {"accepted": 3, "delivered": 3}
        assert await receipt(desk, W1) == {"accepted": 3, "delivered": 3}


# Restarts.


async def test_staged_runs_wait_through_a_restart(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await stage_and_seal(desk, W1, A, staged_run(items=2), staged_run(items=3))
        await stage(desk, W1, B, staged_run(items=4))
    async with running_spooler(tmp_path) as desk:
        assert await books(desk) == {"staged": 9}
        assert code_of((await stage(desk, W1, A, staged_run()))[0]) == "STAGE_OVER"
        assert code_of(await publish(desk, W1, A, B)) == "BAD_REQUEST"
        assert isinstance(await seal(desk, W1, B, 1, 4), dict)
        assert isinstance(await publish(desk, W1, A, B), dict)
    async with running_spooler(tmp_path) as desk:
        assert await books(desk) == {"accepted": 9, "held": 9}
        await deliver(desk, 3)
        assert await receipt(desk, W1) == {"accepted": 9, "delivered": 9}


async def test_what_was_delivered_of_a_write_is_known_after_a_restart(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await stage_and_seal(desk, W1, A, *(staged_run(items=count) for count in (1, 2, 3)))
        await publish(desk, W1, A)
        first, second, _ = await desk.take_runs(3)
        await desk.settle(first)
        assert await desk.record(handed_over(second, 0b01)) == [True]
    async with running_spooler(tmp_path) as desk:
        assert await receipt(desk, W1) == {"accepted": 6, "delivered": 1}
        assert await books(desk) == {"accepted": 6, "delivered": 1, "handed_over": 1, "held": 4}
        leases = await desk.take_runs(2)
        assert [(lease.run.head.count, lease.done) for lease in leases] == [(2, 0b01), (3, 0)]


async def test_run_is_known_for_staged_by_its_block_as_by_the_index(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await stage_and_seal(desk, W1, A, staged_run(items=2))
        await stage_and_seal(desk, W2, B, staged_run(W2, items=4))
        await desk.push(make_run(items=1))
        await publish(desk, W1, A)
    lose_indexes(tmp_path)
    async with running_spooler(tmp_path) as desk:
        assert await books(desk) == {"accepted": 3, "held": 3, "staged": 4}
        assert await receipt(desk, W1) == {"accepted": 2}
        assert isinstance(await publish(desk, W2, B), dict)


async def test_staged_run_that_is_sent_again_is_a_duplicate_after_a_restart(tmp_path: Path) -> None:
    run = staged_run(items=2)
    async with running_spooler(tmp_path) as desk:
        assert await stage(desk, W1, A, run, run) == [Outcome.STORED, Outcome.DUPLICATE]
    async with running_spooler(tmp_path) as desk:
        assert await stage(desk, W1, A, run) == [Outcome.DUPLICATE]
        assert isinstance(await seal(desk, W1, A, 1, 2), dict)


# What is over.


@pytest.mark.parametrize("end", ["sealed", "published", "aborted"])
async def test_straggler_is_refused(end: str, tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await stage_and_seal(desk, W1, A, staged_run(items=1))
        if end == "published":
            await publish(desk, W1, A)
        elif end == "aborted":
            await abort(desk, W1)
        straggler = A if end == "sealed" else C
        before = await books(desk)
        (refused,) = await stage(desk, W1, straggler, staged_run(items=9))
        assert code_of(refused) == "STAGE_OVER"
        assert await books(desk) == before


async def test_aborted_write_leaves_nothing_and_its_chunks_are_freed(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        runs = [staged_run(items=10, size=2 * KIB) for _ in range(12)]
        await stage_and_seal(desk, W1, A, *runs)
        assert (await desk.stats())["spool"]["chunks"] > 3
        assert await abort(desk, W1) == {"outcome": "aborted", "items": 120}
        assert await books(desk) == {}
        assert (await desk.stats())["spool"]["bytes"] == 0
        await desk.until_chunks(1)
        assert await books(desk) == {}
    async with running_spooler(tmp_path) as desk:
        assert await books(desk) == {}
        await desk.until_chunks(0)


async def test_abort_after_publishing_changes_nothing(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await stage_and_seal(desk, W1, A, staged_run(items=3))
        await publish(desk, W1, A)
        assert await abort(desk, W1) == {"outcome": "published", "items": 3}
        await deliver(desk, 1)
        assert await books(desk) == {"accepted": 3, "delivered": 3}


async def test_duplicate_version_drops_its_own_write_even_after_a_restart(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await stage_and_seal(desk, W1, A, staged_run(items=3))
        await publish(desk, W1, A, app="job", version=4)
    async with running_spooler(tmp_path) as desk:
        await stage_and_seal(desk, W2, A, staged_run(W2, items=3))
        result = await publish(desk, W2, A, app="job", version=4)
        assert isinstance(result, dict)
        assert (result["outcome"], result["write"]) == ("duplicate", W1.hex())
        assert await books(desk) == {"accepted": 3, "held": 3}
        assert (await desk.stats())["spool"]["runs"] == 1


async def test_requests_about_one_write_or_application_are_decided_in_order(tmp_path: Path) -> None:
    """They arrive together, while a commit is under way: the first one wins."""
    files = HeldUp(tmp_path)
    async with running_spooler(tmp_path, files) as desk, trio.open_nursery() as nursery:
        await stage_and_seal(desk, W1, A, staged_run(items=1))
        await stage_and_seal(desk, W2, A, staged_run(W2, items=2))
        answers: dict[str, Any] = {}

        async def keep(name: str, *asked: Any, **named: Any) -> None:
            answers[name] = await (abort if name == "abort" else publish)(desk, *asked, **named)

        files.may_sync.clear()
        nursery.start_soon(desk.push, make_run(items=4))
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.start_soon(keep, "abort", W3)
        await trio.testing.wait_all_tasks_blocked(0.01)
        for write in (W1, W2):
            await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.start_soon(
                lambda name, write: keep(name, write, A, app="job", version=1), write.hex(), write
            )
        await trio.testing.wait_all_tasks_blocked(0.01)
        files.may_sync.set()
        await eventually(lambda: len(answers) == 3)
        assert answers[W1.hex()]["outcome"] == "published"
        assert answers[W2.hex()] == answers[W1.hex()] | {"outcome": "duplicate"}
        assert await books(desk) == {"accepted": 5, "held": 5}


class HeldUp(Files):
    """A disk whose syncs wait until they may go on."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.may_sync = threading.Event()
        self.may_sync.set()

    def datasync(self, fd: int) -> None:
        self.may_sync.wait(HANG_S)
        super().datasync(fd)


# Limits.


async def test_open_write_expires_after_stage_ttl_and_others_do_not(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 1_000_000
    monkeypatch.setattr("actors.spooler.spooler.wall_ms", lambda: now_ms)
    async with running_spooler(tmp_path, stage_ttl="1h") as desk:
        await stage_and_seal(desk, W1, A, staged_run(items=1))
        await stage_and_seal(desk, W2, A, staged_run(W2, items=2))
        await publish(desk, W2, A)
        now_ms += 3_600_000
        await stage(desk, W3, A, staged_run(W3, items=4))
        await pass_time(mock_clock, desk, 11)
        assert await books(desk) == {"accepted": 2, "held": 2, "staged": 5}
        now_ms += 1
        with capture_logs() as logs:
            await pass_time(mock_clock, desk, 11)
        expired = [entry for entry in logs if entry["event"] == "spooler.write_expired"]
        assert [entry["write"] for entry in expired] == [W1.hex()]
        assert await books(desk) == {"accepted": 2, "held": 2, "staged": 4}
        assert code_of(await publish(desk, W1, A)) == "STAGE_OVER"


async def test_restart_gives_an_open_write_no_more_time(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_spooler(tmp_path, stage_ttl="1h") as desk:
        await stage(desk, W1, A, staged_run(items=1))
    later_ms = wall_ms() + 3_601_000
    monkeypatch.setattr("actors.spooler.spooler.wall_ms", lambda: later_ms)
    monkeypatch.setattr("actors.spooler.recovery.wall_ms", lambda: later_ms)
    async with running_spooler(tmp_path, stage_ttl="1h") as desk:
        await pass_time(mock_clock, desk, 11)
        assert await books(desk) == {}


async def test_stage_of_a_task_that_failed_is_dropped_for_good(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await stage(desk, W1, A, staged_run(items=3))
        await stage_and_seal(desk, W1, B, staged_run(items=2))
        assert (await desk.client.ask(DropStage(W1, A)))["items"] == 3
        assert await books(desk) == {"staged": 2}
        answers = await stage(desk, W1, A, staged_run(items=3))
        assert [code_of(answer) for answer in answers] == ["STAGE_OVER"]
    async with running_spooler(tmp_path) as desk:
        assert await books(desk) == {"staged": 2}
        await publish(desk, W1, B)
        assert await books(desk) == {"accepted": 2, "held": 2}


async def test_max_bytes_counts_what_is_staged(tmp_path: Path) -> None:
    drop = {"q": {"full_policy": "drop_newest"}}
    async with running_spooler(tmp_path, queues=drop, max_bytes=128 * KIB) as desk:
        answers = await stage(desk, W1, A, *(staged_run(items=8, size=5 * KIB) for _ in range(4)))
        assert [code_of(answer) for answer in answers] == ["ok", "ok", "ok", "QUEUE_FULL"]
        assert code_of((await desk.push(make_run(items=8, size=5 * KIB)))[0]) == "QUEUE_FULL"
        await abort(desk, W1)
        assert await desk.push(make_run(items=8, size=5 * KIB)) == [Outcome.STORED]


async def test_drop_oldest_takes_published_runs_and_never_staged_ones(tmp_path: Path) -> None:
    drop = {"q": {"full_policy": "drop_oldest"}}
    async with running_spooler(tmp_path, queues=drop, max_size=3) as desk:
        await stage_and_seal(desk, W1, A, staged_run(items=1))
        await stage_and_seal(desk, W2, A, staged_run(W2, items=2), staged_run(W2, items=4))
        await publish(desk, W2, A)
        await desk.push(make_run(items=8))
        assert await books(desk) == {"accepted": 14, "dropped": 2, "held": 12, "staged": 1}
        assert await receipt(desk, W2) == {"accepted": 6, "dropped": 2}
    async with running_spooler(tmp_path, queues=drop, max_size=3) as desk:
        assert await receipt(desk, W2) == {"accepted": 6, "dropped": 2}
        assert await books(desk) == {"accepted": 14, "dropped": 2, "held": 12, "staged": 1}


async def test_names_of_queues_are_bounded_staged_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "QUEUES_MAX", 3)
    async with running_spooler(tmp_path) as desk:
        await desk.push(make_run("a"))
        await stage(desk, W1, A, staged_run(queue="b"), staged_run(queue="a"))
        answers = [await stage(desk, W1, A, staged_run(queue=queue)) for queue in "cdb"]
        assert [code_of(answer) for (answer,) in answers] == ["ok", "UNKNOWN_QUEUE", "ok"]


async def test_run_that_names_a_write_cannot_be_pushed(tmp_path: Path) -> None:
    """The receipt of the write would count it."""
    async with running_spooler(tmp_path) as desk:
        (refused,) = await desk.push(staged_run(items=1))
        assert code_of(refused) == "BAD_RUN"
        assert await books(desk) == {}


# Receipts, and what is gone.


async def test_receipt_is_exact_when_the_chunks_are_gone(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        for number in range(1, 5):
            write = bytes([number]) * 16
            runs = [staged_run(write, items=10, size=2 * KIB) for _ in range(5)]
            await stage_and_seal(desk, write, A, *runs)
            await stage_and_seal(desk, write, B, staged_run(write, items=1))
            await publish(desk, write, A)
            await deliver(desk, 4)
            await deliver(desk, 1, fate=Fate.DELETED)
        await desk.until_chunks(1)
        expected = {"accepted": 50, "delivered": 40, "deleted": 10}
        for number in range(1, 5):
            assert await receipt(desk, bytes([number]) * 16) == expected
        assert await books(desk) == {"accepted": 200, "delivered": 160, "deleted": 40}
    async with running_spooler(tmp_path) as desk:
        await desk.until_chunks(0)
        for number in range(1, 5):
            assert await receipt(desk, bytes([number]) * 16) == expected
        assert await books(desk) == {"accepted": 200, "delivered": 160, "deleted": 40}


async def test_forgotten_receipt_leaves_the_books_as_they_are(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await stage_and_seal(desk, W1, A, *(staged_run(items=10, size=5 * KIB) for _ in range(3)))
        await publish(desk, W1, A, app="job", version=1)
        # Its runs are on disk, and their blocks say that they were staged.
        assert await forget(desk, FAR_MS) == []
        await deliver(desk, 3)
        await desk.push(*(make_run(items=10, size=5 * KIB) for _ in range(2)))
        await deliver(desk, 2)
        await desk.until_chunks(1)
    async with running_spooler(tmp_path) as desk:
        await desk.until_chunks(0)
        assert await receipt(desk, W1) == {"accepted": 30, "delivered": 30}
        assert await forget(desk, FAR_MS) == [W1]
        assert await receipt(desk, W1) == {}
        assert await books(desk) == {"accepted": 50, "delivered": 50}
    async with running_spooler(tmp_path) as desk:
        assert await receipt(desk, W1) == {}
        assert await books(desk) == {"accepted": 50, "delivered": 50}
        # The version is known for ever.
        result = await publish(desk, W2, app="job", version=1)
        assert isinstance(result, dict)
        assert (result["outcome"], result["write"]) == ("duplicate", None)


async def test_record_log_is_written_anew_when_it_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealed stages of a published write are in it no more; what is needed is."""
    monkeypatch.setattr(staging, "RECORDS_GROWN_MIN", 8)
    async with running_spooler(tmp_path) as desk:
        for version in range(40):
            write = bytes([version + 1]) * 16
            await stage_and_seal(desk, write, A, staged_run(write, items=1))
            await publish(desk, write, A, app="job", version=version)
        await desk.stats()
        lines = (tmp_path / RECORDS).read_bytes().count(b"\n")
        assert 40 <= lines < 70
    async with running_spooler(tmp_path) as desk:
        assert await books(desk) == {"accepted": 40, "held": 40}
