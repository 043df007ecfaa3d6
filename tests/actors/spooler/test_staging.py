"""The spooler and writes: what is staged is invisible, what is published is there as a whole."""

import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from actors.model.runs import Fate
from actors.ports.writes import LastVersion, SealedStage, Verdict, WriteView
from actors.spooler import intake, staging
from actors.spooler.messages import Apply, DropStage
from daemon.journal.files import Files
from daemon.journal.records import RECORDS
from forebay.wire import Outcome
from tests.actors.spooler.spooling import HANG_S, KIB, Desk, handed_over, make_run, running_spooler
from tests.actors.spooler.staging_desk import (
    W1,
    W2,
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
    view,
)
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
        assert await publish(desk, W1, A) == 0
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
        here = await view(desk, W1, A, B)
        assert isinstance(here, WriteView)
        assert here.sealed == (SealedStage(A, 2, 5, ("q",)),)
        assert await seal(desk, W1, B, 1, 4) == SealedStage(B, 1, 4, ("q",))
        assert await publish(desk, W1, A, B) == 0
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
        assert await publish(desk, W2, B) == 0


async def test_staged_run_that_is_sent_again_is_a_duplicate_after_a_restart(tmp_path: Path) -> None:
    run = staged_run(items=2)
    async with running_spooler(tmp_path) as desk:
        assert await stage(desk, W1, A, run, run) == [Outcome.STORED, Outcome.DUPLICATE]
    async with running_spooler(tmp_path) as desk:
        assert await stage(desk, W1, A, run) == [Outcome.DUPLICATE]
        assert await seal(desk, W1, A, 1, 2) == SealedStage(A, 1, 2, ("q",))


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
        assert await abort(desk, W1) == 0
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
        assert await abort(desk, W1) == 0
        await deliver(desk, 1)
        assert await books(desk) == {"accepted": 3, "delivered": 3}


async def test_of_requests_about_one_write_that_arrive_together_the_first_wins(
    tmp_path: Path,
) -> None:
    """While a commit is under way."""
    files = HeldUp(tmp_path)
    async with running_spooler(tmp_path, files) as desk, trio.open_nursery() as nursery:
        await stage_and_seal(desk, W1, A, staged_run(items=1))
        await stage_and_seal(desk, W2, A, staged_run(W2, items=2))
        await stage(desk, W2, B, staged_run(W2, items=8))
        answers: list[object] = []

        async def keep(ask: Callable[[], Awaitable[object]]) -> None:
            answers.append(await ask())

        files.may_sync.clear()
        nursery.start_soon(desk.push, make_run(items=4))
        published = Verdict(W1, True, 1, (A,), 1, ("q",))
        await trio.testing.wait_all_tasks_blocked(0.01)
        for ask in (
            lambda: desk.client.ask(Apply(published)),
            lambda: abort(desk, W1),
            lambda: desk.client.ask(DropStage(W2, B, also_sealed=True)),
            lambda: abort(desk, W2),
        ):
            nursery.start_soon(keep, ask)
            await trio.testing.wait_all_tasks_blocked(0.01)
        files.may_sync.set()
        await eventually(lambda: len(answers) == 4)
        assert set(answers) == {0, 8}
        assert await books(desk) == {"accepted": 5, "held": 5}
    async with running_spooler(tmp_path) as desk:
        assert await books(desk) == {"accepted": 5, "held": 5}


async def test_seals_of_one_write_share_a_commit(tmp_path: Path) -> None:
    files = Counting(tmp_path)
    async with running_spooler(tmp_path, files) as desk, trio.open_nursery() as nursery:
        stages = [bytes([number]) * 16 for number in range(1, 21)]
        for name in stages:
            await stage(desk, W1, name, staged_run(items=1))
        files.may_sync.clear()
        nursery.start_soon(desk.push, make_run(items=4))
        await trio.testing.wait_all_tasks_blocked(0.01)
        before = files.records
        for name in stages:
            nursery.start_soon(seal, desk, W1, name, 1, 1)
        await trio.testing.wait_all_tasks_blocked(0.01)
        files.may_sync.set()
        await eventually(lambda: _are_sealed(desk, W1, *stages))
        assert files.records == before + 1


async def _are_sealed(desk: Desk, write: bytes, *stages: bytes) -> None:
    here = await view(desk, write, *stages)
    assert isinstance(here, WriteView)
    assert len(here.sealed) == len(stages)


class HeldUp(Files):
    """A disk whose syncs wait until they may go on."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.may_sync = threading.Event()
        self.may_sync.set()

    def datasync(self, fd: int) -> None:
        self.may_sync.wait(HANG_S)
        super().datasync(fd)


class Counting(HeldUp):
    """Counts how often records are appended."""

    records = 0

    def append(self, fd: int, data: bytes) -> None:
        self.records += 1
        super().append(fd, data)


# Limits.


async def test_stage_of_a_task_that_failed_is_dropped_for_good(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await stage(desk, W1, A, staged_run(items=3))
        await stage_and_seal(desk, W1, B, staged_run(items=2))
        assert await desk.client.ask(DropStage(W1, A, also_sealed=True)) == 3
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
        here = await view(desk, W2, app="job")
        assert isinstance(here, WriteView)
        assert here.last == LastVersion(1, W1, None)


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
