"""A disk without room: pushes are refused, everything stored drains, then pushes are taken again.

The disk is a small tmpfs under a real daemon. The destination is a pipe that nobody reads until
the disk is full. Where no tmpfs can be mounted, a disk that keeps accounts stands in for it.
"""

import errno
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from structlog.testing import capture_logs
from trio.testing import MockClock

from actors.config.settings import Settings
from forebay.errors import Refused
from forebay.wire import Outcome
from tests.actors.spooler.spooling import KIB, make_run, running_spooler
from tests.crash.audit import Audit
from tests.crash.destinations import FileDestination
from tests.crash.found import look_into
from tests.crash.lives import Zygote
from tests.crash.named_files import QuickFiles
from tests.crash.producer import Producer
from tests.crash.seeds import seeded
from tests.crash.small_disk import MIB, SlowReader, fill_up, small_disk

DISK_BYTES: Final = 8 * MIB
PUSHES_MAX: Final = 20_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as path:
        yield path


@pytest.mark.parametrize("filled_by", ["the spool", "somebody else", "somebody else at once"])
def test_full_disk_refuses_drains_and_takes_again(
    filled_by: str, disk: Path, zygote: Zygote, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rng = seeded("full disk", filled_by)
    reader = SlowReader(tmp_path)
    producer = Producer(rng, ("out",), may_refuse=("DISK_FULL",))
    request.addfinalizer(producer.close)
    audit = Audit(producer, {"out": FileDestination(reader.output)})
    settings = {
        "socket": {"path": str(tmp_path / "socket"), "max_run_bytes": "16Ki"},
        "state_dir": str(disk / "state"),
        "spool": {
            "chunk_size": "256Ki",
            "min_free_bytes": "1Mi" if filled_by == "the spool" else "0",
            "ballast_bytes": "128Ki",
        },
        "queues": {"out": {"handler": {"type": "file", "path": str(reader.pipe)}}},
        "log": {"format": "json"},
    }
    life = zygote.start(settings, "", tmp_path / "daemon.log")
    producer.connect(tmp_path / "socket")
    if filled_by != "the spool":
        producer.push(300 if filled_by == "somebody else" else 1, window=8)
        producer.settle()
        fill_up(disk)
    pushes = 0
    while not producer.refusals_now:
        producer.push(1, window=8)
        pushes += 1
        assert pushes < PUSHES_MAX, "the disk does not get full"
    producer.settle()
    assert producer.stats()["daemon"]["held"] > 0

    reader.read_on()
    producer.wait_until_drained()
    producer.refusals_now = 0
    stored = len(producer.acked)
    while len(producer.acked) == stored:
        producer.push(1, window=1)
        producer.settle()
        pushes += 1
        assert pushes < PUSHES_MAX, "the disk is never taken for free again"
    producer.wait_until_drained()

    life.kill(signal.SIGTERM)
    assert life.wait() == 0, life.log_text()
    producer.close()
    reader.finish()
    spool_settings = Settings.model_validate(settings).spool
    audit.after_death(look_into(disk / "state", spool_settings, tmp_path / "copy"))
    audit.at_the_end()
    assert audit.delivered_again == 0
    events = [event["event"] for event in life.events()]
    assert "spooler.disk_low" in events or "spooler.disk_refuses" in events


class SmallDisk(QuickFiles):
    """Counts the bytes of its files and has no more than so many."""

    def __init__(self, directory: Path, capacity: int) -> None:
        super().__init__(directory)
        self.capacity = capacity

    def free_bytes(self) -> int:
        taken = 0
        for name in self.names():
            # Another thread may remove it meanwhile.
            with suppress(FileNotFoundError):
                taken += self.size(name)
        return max(0, self.capacity - taken)

    def write(self, fd: int, parts: Sequence[bytes], at: int) -> None:
        self._claim(fd, at + sum(map(len, parts)))
        super().write(fd, parts, at)

    def append(self, fd: int, data: bytes) -> None:
        self._claim(fd, os.fstat(fd).st_size + len(data))
        super().append(fd, data)

    def allocate(self, fd: int, length: int) -> None:
        self._claim(fd, length)
        super().allocate(fd, length)

    def _claim(self, fd: int, size: int) -> None:
        if size - os.fstat(fd).st_size > self.free_bytes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("min_free_bytes", [0, 256 * KIB])
async def test_disk_with_accounts_refuses_drains_and_takes_again(
    min_free_bytes: int, tmp_path: Path, mock_clock: MockClock
) -> None:
    files = SmallDisk(tmp_path, 1 * MIB)
    stored = 0
    with capture_logs():
        async with running_spooler(tmp_path, files, min_free_bytes=min_free_bytes) as desk:
            for _ in range(3):
                (answer,) = await desk.push(make_run(items=1, size=10 * KIB))
                for _ in range(PUSHES_MAX):
                    if answer is Outcome.STORED:
                        break
                    mock_clock.jump(0.001)
                    (answer,) = await desk.push(make_run(items=1, size=10 * KIB))
                while answer is Outcome.STORED:
                    stored += 1
                    (answer,) = await desk.push(make_run(items=1, size=10 * KIB))
                assert isinstance(answer, Refused)
                assert answer.code == "DISK_FULL"
                while "held" in await desk.totals():
                    await desk.settle(*await desk.take())
            assert await desk.totals() == {"accepted": stored, "delivered": stored}
