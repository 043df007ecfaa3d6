"""A push whose answer was lost comes again: it is stored once, whatever happened in between."""

import shutil
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from actors.spooler.spooler import TICK_S
from daemon.journal.checkpoint import read_checkpoint
from daemon.journal.files import Files
from daemon.journal.journal import Journal
from forebay.errors import Refused
from forebay.wire import Outcome
from tests.actors.spooler.spooling import KIB, make_run, running_spooler, spool_settings
from tests.crash.named_files import QuickFiles
from tests.crash.spooler_time import TURNS_PER_TICK, until


async def test_run_is_known_after_its_chunk_is_gone(tmp_path: Path, mock_clock: MockClock) -> None:
    """Stored, killed before the answer; recovered, delivered, freed; killed again; sent again.

    docs/protocol.md: the last `spool.dedup_runs` ids are remembered across restarts.
    """
    run = make_run()
    other = make_run(items=4, run_id=run[0].run_id)
    others = [make_run(items=1, size=20 * KIB) for _ in range(10)]
    with capture_logs():
        async with running_spooler(tmp_path, QuickFiles(tmp_path)) as desk:
            await desk.push(run, *others)
            await desk.settle(*await desk.take())
            await until(mock_clock, desk, lambda report: report["spool"]["chunks"] <= 1)
            assert await desk.push(run) == [Outcome.DUPLICATE]
        async with running_spooler(tmp_path, QuickFiles(tmp_path)) as desk:
            assert await desk.push(run) == [Outcome.DUPLICATE]
            (refused,) = await desk.push(other)
            assert isinstance(refused, Refused)
            assert refused.code == "BAD_RUN"
            assert (await desk.totals())["accepted"] == 13


class SlowDisk(QuickFiles):
    """Writes no block while its gate is closed."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.gate = threading.Event()
        self.gate.set()
        self.is_waiting = threading.Event()

    def write(self, fd: int, parts: Sequence[bytes], at: int) -> None:
        if self.name_of(fd).endswith(".chunk") and at and not self.gate.is_set():
            self.is_waiting.set()
            self.gate.wait()
        super().write(fd, parts, at)


async def test_run_that_is_being_stored_is_not_known_before_it_is(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """Chunks are freed, and the known ids are written down, while a commit is under way. A daemon
    that is killed then has not stored the run, and must not say so when it comes again."""
    spool = tmp_path / "spool"
    files = SlowDisk(spool)
    run = make_run()
    with capture_logs():
        async with running_spooler(spool, files) as desk:
            await desk.push(*(make_run(items=1, size=20 * KIB) for _ in range(10)))
            leases = await desk.take()
            await desk.settle(*leases[:5])
            await until(mock_clock, desk, lambda _: sequence(files) == 1)
            await desk.settle(*leases[5:])
            await desk.stats()
            files.gate.clear()
            try:
                await desk.submit([run])
                while not files.is_waiting.is_set():
                    await trio.lowlevel.checkpoint()
                for turn in count():
                    if sequence(files) == 2:
                        break
                    if turn % TURNS_PER_TICK == 0:
                        mock_clock.jump(TICK_S)
                    await trio.lowlevel.checkpoint()
                copy = copy_of(spool)
            finally:
                files.gate.set()
        recovered = Journal(QuickFiles(copy), spool_settings()).recover(100, lambda *_: None)
        assert not [live for chunk in recovered.chunks for live in chunk.live]
        assert run[0].run_id not in recovered.recent


def sequence(files: Files) -> int:
    """How often chunks were freed: the ids are written first, then a checkpoint."""
    return read_checkpoint(files)[0].sequence


def copy_of(spool: Path) -> Path:
    """The spool as it would be found if the daemon died now."""
    copy = spool.with_name("copy")
    while not copy.exists():
        try:
            shutil.copytree(spool, copy)
        except shutil.Error:
            # A temporary file went while it was looked at.
            shutil.rmtree(copy)
    return copy
