"""A disk that fails: nothing is acknowledged that is not stored, and the daemon lives on.

A spooler on a real journal, whose files fail as the test says. Time stands still until a test
moves it: the spooler lets a disk that failed rest for a while.
"""

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from actors.model.runs import StoredRun
from actors.spooler.messages import RunLoan
from daemon.journal.journal import Journal
from forebay.errors import Refused
from forebay.run import RunHead
from forebay.wire import Outcome
from tests.actors.spooler.spooling import KIB, make_run, running_spooler, spool_settings
from tests.crash.failing_files import FailingFiles
from tests.crash.named_files import QuickFiles
from tests.crash.spooler_time import pass_time, until

Run = tuple[RunHead, bytes]

ATTEMPTS = 8
BIG = 20 * KIB
"""Three of these fill a chunk."""


def stored_ids(directory: Path) -> list[bytes]:
    """The ids of all live runs that a recovery finds; each of them can be read."""
    files = QuickFiles(directory)
    journal = Journal(files, spool_settings())
    ids = []
    with capture_logs():
        recovered = journal.recover(0, lambda done, chunks: None)
    for chunk in recovered.chunks:
        for live in chunk.live:
            (run,) = journal.read([(chunk.number, live.place)])
            assert isinstance(run, StoredRun)
            ids.append(run.head.run_id)
    files.let_go()
    return ids


def ids(runs: Sequence[Run]) -> list[bytes]:
    return [head.run_id for head, _ in runs]


def code_of(answer: Outcome | Refused) -> str:
    return answer.code if isinstance(answer, Refused) else answer.name


@pytest.mark.parametrize("runs_before", [0, 1, 2])
@pytest.mark.parametrize("call", ["write", "datasync"])
async def test_group_goes_to_a_new_chunk_when_its_own_fails(
    call: str, runs_before: int, tmp_path: Path, mock_clock: MockClock
) -> None:
    files = FailingFiles(tmp_path)
    before = [make_run() for _ in range(runs_before)]
    group = [make_run() for _ in range(5)]
    after = make_run()
    with capture_logs() as events:
        async with running_spooler(tmp_path, files) as desk:
            for run in before:
                await desk.push(run)
            files.break_down("write" if call == "write" else "datasync", errno.EIO, "*.chunk", 1)
            assert await desk.push(*group) == [Outcome.STORED] * 5
            ((_, failed),) = files.failed
            files.written.clear()
            assert await desk.push(after) == [Outcome.STORED]
            found = stored_ids_of_a_copy(tmp_path)
            assert sorted(found) == sorted(ids([*before, *group, after]))
            await pass_time(mock_clock, desk)
        assert failed not in [name for name, _ in files.written], "it was written to again"
    abandoned = [event for event in events if event["event"] == "spooler.chunk_abandoned"]
    assert [f"{event['chunk']}.chunk" for event in abandoned] == [failed]
    assert sorted(stored_ids(tmp_path)) == sorted(ids([*before, *group, after]))


def stored_ids_of_a_copy(directory: Path) -> list[bytes]:
    """What would be found if the daemon died now."""
    copy = directory.with_name(directory.name + "-copy")
    while not copy.exists():
        try:
            shutil.copytree(directory, copy)
        except shutil.Error:
            # A temporary file went while it was looked at.
            shutil.rmtree(copy)
    found = stored_ids(copy)
    shutil.rmtree(copy)
    return found


async def test_failed_chunk_is_not_used_again_when_it_is_empty(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """Not even as a spare: a place that failed once may fail again."""
    files = FailingFiles(tmp_path)
    with capture_logs():
        async with running_spooler(tmp_path, files) as desk:
            files.break_down("datasync", errno.EIO, "*.chunk", 1)
            await desk.push(make_run())
            ((_, failed),) = files.failed
            inode = os.stat(tmp_path / failed).st_ino
            await until(mock_clock, desk, lambda _: failed not in os.listdir(tmp_path))
            assert inode not in [entry.inode() for entry in os.scandir(tmp_path)]


async def test_disk_that_always_fails_refuses_and_works_again_when_it_does(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    files = FailingFiles(tmp_path)
    first, second, third = make_run(), make_run(), make_run()
    with capture_logs() as events:
        async with running_spooler(tmp_path, files) as desk:
            assert await desk.push(first) == [Outcome.STORED]
            files.break_down("datasync", errno.EIO)
            (answer,) = await desk.push(second)
            assert code_of(answer) == "DISK_ERROR"
            await pass_time(mock_clock, desk)
            (answer,) = await desk.push(third)
            assert code_of(answer) == "DISK_ERROR"
            files.mend()
            await pass_time(mock_clock, desk)
            assert await desk.push(second) == [Outcome.STORED]
            assert await desk.push(second) == [Outcome.DUPLICATE]
            assert (await desk.totals())["accepted"] == 6
    assert [event["event"] for event in events].count("spooler.disk_refuses") == 1
    assert sorted(stored_ids(tmp_path)) == sorted(ids([first, second]))


async def test_disk_that_fails_for_long_is_not_filled_with_attempts(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    files = FailingFiles(tmp_path)
    with capture_logs():
        async with running_spooler(tmp_path, files) as desk:
            await desk.push(make_run())
            files.break_down("datasync", errno.EIO)
            for _ in range(ATTEMPTS):
                await desk.push(make_run())
                await pass_time(mock_clock, desk)
            await until(mock_clock, desk, lambda _: len(os.listdir(tmp_path)) < ATTEMPTS)


async def test_refused_run_is_not_found_later(tmp_path: Path, mock_clock: MockClock) -> None:
    """It was written, and the sync failed; nobody was told that it is stored."""
    files = FailingFiles(tmp_path)
    stored, refused, later = make_run(), make_run(), make_run()
    with capture_logs():
        async with running_spooler(tmp_path, files) as desk:
            await desk.push(stored)
            files.break_down("datasync", errno.EIO, "*.chunk")
            (answer,) = await desk.push(refused)
            assert code_of(answer) == "DISK_ERROR"
            files.mend()
            await pass_time(mock_clock, desk)
            await desk.push(later)
            found = stored_ids_of_a_copy(tmp_path)
    assert sorted(found) == sorted(ids([stored, later]))


def test_end_of_a_failed_chunk_is_known_when_the_next_one_is_gone(tmp_path: Path) -> None:
    """Two chunks fail one after the other; the second, with nothing in it, is freed at once."""
    files = FailingFiles(tmp_path)
    journal = Journal(files, spool_settings())
    journal.recover(0, lambda done, chunks: None)
    stored, refused, later = make_run(), make_run(), make_run()
    assert journal.commit([stored], [], durable=False).failure is None
    files.break_down("datasync", errno.EIO, "*.chunk", times=2)
    failed = journal.commit([refused], [], durable=False)
    assert failed.failure is not None
    journal.free([number for number, _ in failed.abandoned[1:]], {}, {})
    assert journal.commit([later], [], durable=False).failure is None
    files.let_go()
    assert sorted(stored_ids(tmp_path)) == sorted(ids([stored, later]))


@pytest.mark.parametrize("times", [1, 3])
async def test_directory_that_cannot_be_synced_for_a_new_chunk(
    times: int, tmp_path: Path, mock_clock: MockClock
) -> None:
    files = FailingFiles(tmp_path)
    runs = [make_run(items=1, size=BIG) for _ in range(12)]
    with capture_logs():
        async with running_spooler(tmp_path, files, spare_chunks=0) as desk:
            files.break_down("sync_directory", errno.EIO, times=times)
            refused = []
            for run in runs:
                (answer,) = await desk.push(run)
                if answer is not Outcome.STORED:
                    assert code_of(answer) == "DISK_ERROR"
                    refused.append(run)
                    await pass_time(mock_clock, desk)
            assert await desk.push(*refused) == [Outcome.STORED] * len(refused)
            assert len(files.failed) == times
    assert sorted(stored_ids(tmp_path)) == sorted(ids(runs))


@pytest.mark.parametrize(
    "call, pattern, skip",
    [
        *(("sync_directory", "*", skip) for skip in range(8)),
        *(("rename", "*.chunk", skip) for skip in range(3)),
        ("rename", "checkpoint*", 0),
        ("rename", "checkpoint*", 1),
        ("datasync", "checkpoint*", 0),
        ("write", "checkpoint*", 0),
        ("write", "spool.meta*", 0),
        ("datasync", "*.index.tmp", 0),
        ("open_new", "*.index.tmp", 0),
        ("unlink", "*.index", 0),
        ("unlink", "*.marks", 1),
    ],
)
async def test_failure_in_upkeep_is_made_good_later(
    call: str, pattern: str, skip: int, tmp_path: Path, mock_clock: MockClock
) -> None:
    """Chunks are freed in the end, the books are exact, and the spool is whole."""
    files = FailingFiles(tmp_path)
    held = make_run(queue="held")
    with capture_logs():
        async with running_spooler(tmp_path, files) as desk:
            await desk.push(*(make_run(items=1, size=BIG) for _ in range(10)))
            await desk.push(held)
            await desk.settle(*await desk.take())
            await desk.stats()
            files.break_down(call, errno.EIO, pattern, times=1, skip=skip)  # type: ignore[arg-type]
            await until(mock_clock, desk, lambda report: report["spool"]["chunks"] == 1)
            assert await desk.totals() == {"accepted": 10, "delivered": 10}
            files.mend()
        assert stored_ids(tmp_path) == ids([held])
        async with running_spooler(tmp_path, QuickFiles(tmp_path)) as desk:
            assert await desk.totals() == {"accepted": 10, "delivered": 10}


async def test_chunks_are_freed_while_no_index_can_be_written(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """A full disk has room again only if what was delivered goes."""
    files = FailingFiles(tmp_path)
    with capture_logs():
        async with running_spooler(tmp_path, files) as desk:
            files.break_down("write", errno.ENOSPC, "*.index.tmp")
            await desk.push(*(make_run(items=1, size=BIG) for _ in range(10)))
            await until(mock_clock, desk, lambda _: files.failed)
            await desk.settle(*await desk.take())
            await until(mock_clock, desk, lambda report: report["spool"]["chunks"] == 1)
            files.mend()


@pytest.mark.parametrize("call, pattern", [("append", "*.marks"), ("open_append", "*.marks")])
async def test_mark_that_cannot_be_written_comes_again(
    call: str, pattern: str, tmp_path: Path, mock_clock: MockClock
) -> None:
    files = FailingFiles(tmp_path)
    with capture_logs():
        async with running_spooler(tmp_path, files) as desk:
            await desk.push(make_run(items=4))
            files.break_down(call, errno.EIO, pattern, times=2)  # type: ignore[arg-type]
            await desk.settle(*await desk.take())
            assert (await desk.totals())["held"] == 4, "it is settled when its mark is written"
            await pass_time(mock_clock, desk)
            assert await desk.totals() == {"accepted": 4, "delivered": 4}
        assert stored_ids(tmp_path) == []


@pytest.mark.parametrize("call", ["append", "open_append"])
async def test_ballast_makes_room_for_marks(
    call: str, tmp_path: Path, mock_clock: MockClock
) -> None:
    class FullFiles(FailingFiles):
        is_full = False

        def free_bytes(self) -> int:
            return 0 if self.is_full else super().free_bytes()

        def _meet(self, call: object, name: str = "") -> None:
            if (self.directory / "ballast").exists():
                super()._meet(call, name)  # type: ignore[arg-type]

    files = FullFiles(tmp_path)
    ballast = tmp_path / "ballast"
    with capture_logs():
        async with running_spooler(tmp_path, files) as desk:
            await until(mock_clock, desk, lambda _: ballast.exists())
            await desk.push(make_run(items=4))
            files.is_full = True
            await until(mock_clock, desk, lambda report: report["spool"]["free_bytes"] == 0)
            files.break_down(call, errno.ENOSPC, "*.marks")  # type: ignore[arg-type]
            await desk.settle(*await desk.take())
            assert await desk.totals() == {"accepted": 4, "delivered": 4}
            assert not ballast.exists()
            files.mend()
            files.is_full = False
            await until(mock_clock, desk, lambda _: ballast.exists())
        assert stored_ids(tmp_path) == []


async def test_chunks_are_freed_on_a_disk_whose_other_room_is_used_up(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """Marks have taken the ballast, and somebody else the rest."""
    to_free = tmp_path / "ballast-to-free"

    class FullFiles(FailingFiles):
        is_full = False

        def free_bytes(self) -> int:
            return 0 if self.is_full else super().free_bytes()

        def _meet(self, call: object, name: str = "") -> None:
            if to_free.exists():
                super()._meet(call, name)  # type: ignore[arg-type]

    files = FullFiles(tmp_path)
    with capture_logs():
        async with running_spooler(tmp_path, files) as desk:
            await until(mock_clock, desk, lambda _: to_free.exists())
            for _ in range(40):
                await desk.push(make_run(items=1, size=10_000))
            assert (await desk.stats())["spool"]["chunks"] > 2
            files.is_full = True
            files.unlink("ballast")
            files.break_down("open_new", errno.ENOSPC, "*.tmp")
            await desk.settle(*await desk.take())
            await until(mock_clock, desk, lambda report: report["spool"]["chunks"] <= 1)
            assert not to_free.exists()


async def test_drop_that_cannot_be_marked_is_marked_with_the_next_commit(tmp_path: Path) -> None:
    """A part of the marks may be on disk already: what was dropped does not come back."""
    files = FailingFiles(tmp_path)
    queues = {"q": {"full_policy": "drop_oldest"}}
    first, second = make_run(), make_run()
    with capture_logs():
        async with running_spooler(tmp_path, files, queues, max_size=1) as desk:
            await desk.push(first)
            files.break_down("append", errno.EIO, "*.marks", times=1)
            assert await desk.push(second) == [Outcome.STORED]
            totals = {"accepted": 6, "dropped": 3, "held": 3, "spooled": 3}
            assert await desk.totals() == totals
            (lease,) = await desk.take()
            assert lease.run.head.run_id == second[0].run_id
    assert stored_ids(tmp_path) == ids([second])


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize("call", ["open_read", "read"])
async def test_run_that_cannot_be_read_for_a_while_is_not_dropped(
    call: str, number: int, tmp_path: Path, mock_clock: MockClock
) -> None:
    files = FailingFiles(tmp_path)
    run = make_run(items=4)
    async with running_spooler(tmp_path, QuickFiles(tmp_path)) as desk:
        await desk.push(run)
    with capture_logs():
        async with running_spooler(tmp_path, files) as desk:
            files.break_down(call, number, "*.chunk", times=1)  # type: ignore[arg-type]
            async with trio.open_nursery() as nursery:
                taken: list[RunLoan] = []

                async def take() -> None:
                    taken.extend(await desk.take())

                nursery.start_soon(take)
                await until(mock_clock, desk, lambda report: taken or report["daemon"]["lost"])
                assert [lease.run.head.run_id for lease in taken] == ids([run])
                nursery.cancel_scope.cancel()
            assert "lost" not in await desk.totals()


@pytest.mark.parametrize("how", ["is gone", "cannot be opened", "cannot be read"])
async def test_chunk_that_is_lost_for_good_holds_up_nobody(
    how: str, tmp_path: Path, mock_clock: MockClock
) -> None:
    """What was in it is lost and counted, and the rest goes on."""
    runs = a_spool(tmp_path)
    files = FailingFiles(tmp_path)
    name = "0000000000000000.chunk"
    with capture_logs() as events:
        async with running_spooler(tmp_path, files) as desk:
            match how:
                case "is gone":
                    os.unlink(tmp_path / name)
                case "cannot be opened":
                    files.break_down("open_read", errno.EIO, name)
                case "cannot be read":
                    files.break_down("read", errno.EIO, name)
            async with trio.open_nursery() as nursery:
                taken: list[RunLoan] = []

                async def take() -> None:
                    while True:
                        leases = await desk.take()
                        taken.extend(leases)
                        await desk.settle(*leases)

                nursery.start_soon(take)
                await until(mock_clock, desk, lambda report: not report["daemon"]["held"])
                nursery.cancel_scope.cancel()
            assert await desk.totals() == {"accepted": 10, "delivered": 7, "lost": 3}
    assert [lease.run.head.run_id for lease in taken] == ids(runs[3:])
    assert [event["event"] for event in events].count("spooler.block_unreadable") == 3


@pytest.mark.parametrize("bytes_max", [1, 7, 4096])
async def test_short_writes_are_continued(
    bytes_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system call may write less than it was asked to."""
    whole_pwrite, whole_write = os.pwrite, os.write

    def pwritev(fd: int, parts: Sequence[bytes], at: int) -> int:
        return whole_pwrite(fd, b"".join(parts)[:bytes_max], at)

    def pwrite(fd: int, data: bytes, at: int) -> int:
        return whole_pwrite(fd, data[: bytes_max * 100], at)

    def write(fd: int, data: bytes) -> int:
        return whole_write(fd, data[:bytes_max])

    files = QuickFiles(tmp_path)
    journal = Journal(files, spool_settings())
    journal.recover(0, lambda done, chunks: None)
    runs = [make_run(items=5, size=1000) for _ in range(30)]
    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "write", write)
    committed = journal.commit(runs, [], durable=True)
    journal.look()
    journal.write_indexes()
    journal.prepare()
    monkeypatch.undo()
    assert committed.failure is None
    files.let_go()
    assert sorted(stored_ids(tmp_path)) == sorted(ids(runs))


# Recovery.


def a_spool(directory: Path, runs: int = 10) -> list[Run]:
    """A spool as a crash leaves it: full chunks without an index, and one that was written to."""
    files = QuickFiles(directory)
    journal = Journal(files, spool_settings())
    journal.recover(0, lambda done, chunks: None)
    stored = [make_run(items=1, size=BIG) for _ in range(runs)]
    for run in stored:
        assert journal.commit([run], [], durable=True).failure is None
    files.let_go()
    return stored


FAILURES_OF_RECOVERY = [
    ("write", "*.index.tmp"),
    ("datasync", "*.index.tmp"),
    ("rename", "*.index.tmp"),
    ("open_new", "*.index.tmp"),
    ("truncate", "*.chunk"),
    ("sync", "*.chunk"),
    ("sync_directory", "*"),
]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call, pattern", FAILURES_OF_RECOVERY)
async def test_recovery_on_a_disk_that_takes_no_writes_loses_nothing(
    call: str, pattern: str, number: int, tmp_path: Path
) -> None:
    """What is there can be read and delivered: a full disk must drain."""
    runs = a_spool(tmp_path)
    files = FailingFiles(tmp_path)
    files.break_down(call, number, pattern)  # type: ignore[arg-type]
    with capture_logs():
        async with running_spooler(tmp_path, files) as desk:
            assert (await desk.totals())["held"] == len(runs)
            leases = await desk.take()
            while len(leases) < len(runs):
                leases += await desk.take()
            assert [lease.run.head.run_id for lease in leases] == ids(runs)
            files.mend()
    assert sorted(stored_ids(tmp_path)) == sorted(ids(runs))


@pytest.mark.parametrize("pattern", ["*.index", "*.marks", "spool.meta", "checkpoint"])
async def test_file_that_cannot_be_read_loses_nothing(pattern: str, tmp_path: Path) -> None:
    with capture_logs():
        async with running_spooler(tmp_path, QuickFiles(tmp_path)) as desk:
            runs = [make_run(items=2, size=BIG // 2) for _ in range(10)]
            await desk.push(*runs)
            first, *_ = await desk.take(runs_max=1)
            await desk.settle(first)
        files = FailingFiles(tmp_path)
        files.break_down("read_file", errno.EIO, pattern)
        async with running_spooler(tmp_path, files) as desk:
            held = (await desk.totals())["held"]
            assert held == 18 or (pattern == "*.marks" and held == 20)
    assert set(stored_ids(tmp_path)) >= set(ids(runs[1:]))


async def test_chunk_without_a_head_is_used_where_it_cannot_be_rewritten(tmp_path: Path) -> None:
    runs = a_spool(tmp_path)
    path = tmp_path / "0000000000000000.chunk"
    path.write_bytes(bytes(64) + path.read_bytes()[64:])
    files = FailingFiles(tmp_path)
    files.break_down("write", errno.ENOSPC, "*.chunk.tmp")
    with capture_logs():
        async with running_spooler(tmp_path, files) as desk:
            assert (await desk.totals())["held"] == len(runs)
    assert sorted(stored_ids(tmp_path)) == sorted(ids(runs))


async def test_blocks_that_cannot_be_put_back_wait_for_the_next_start(tmp_path: Path) -> None:
    """Bytes are missing from the middle of a chunk: one block is lost, and one has moved."""
    runs = a_spool(tmp_path)
    path = tmp_path / "0000000000000000.chunk"
    data = path.read_bytes()
    middle = data.index(runs[1][0].run_id)
    path.write_bytes(data[:middle] + data[middle + 100 :])
    files = FailingFiles(tmp_path)
    files.break_down("write", errno.ENOSPC, "*.chunk.tmp")
    with capture_logs() as events:
        async with running_spooler(tmp_path, files) as desk:
            assert (await desk.totals())["held"] == len(runs) - 2
    (failure,) = [event for event in events if event["event"] == "recovery.not_sealed"]
    assert failure["moved_blocks"] == 1
    assert sorted(stored_ids(tmp_path)) == sorted(ids([runs[0], *runs[2:]]))
