"""Writes on disks that are damaged, full or failing: nothing half visible, nobody waits in vain."""

import errno
from pathlib import Path
from typing import Any

import pytest

from actors.spooler.messages import AskOpenWrites
from daemon.journal.records import RECORDS
from forebay.errors import Refused
from forebay.wire import Outcome
from tests.actors.spooler.spooling import running_spooler
from tests.actors.spooler.staging_desk import (
    W1,
    W2,
    W3,
    A,
    abort,
    books,
    code_of,
    deliver,
    lose_indexes,
    publish,
    receipt,
    seal,
    stage,
    stage_and_seal,
    staged_run,
    view,
)
from tests.crash.failing_files import FailingFiles


def rot(directory: Path, payload: bytes) -> None:
    """Damages the block that holds this payload; no index hides it."""
    (path,) = [path for path in directory.glob("*.chunk") if payload in path.read_bytes()]
    data = bytearray(path.read_bytes())
    data[data.index(payload)] ^= 0xFF
    path.write_bytes(data)
    lose_indexes(directory)


@pytest.mark.parametrize("is_published", [False, True])
async def test_run_that_is_lost_to_damage_is_waited_for_by_nobody(
    is_published: bool, tmp_path: Path
) -> None:
    """Before its stage is published, that fails; after it, the receipt says that it is gone."""
    async with running_spooler(tmp_path) as desk:
        lost = staged_run(items=2, size=300)
        await stage_and_seal(desk, W1, A, staged_run(items=1), lost, staged_run(items=4))
        if is_published:
            await publish(desk, W1, A)
    rot(tmp_path, lost[1][-320:])
    async with running_spooler(tmp_path) as desk:
        if is_published:
            await deliver(desk, 2)
            assert await receipt(desk, W1) == {"accepted": 7, "delivered": 5, "lost": 2}
        else:
            assert code_of(await view(desk, W1, A)) == "BAD_REQUEST"
            assert await abort(desk, W1) == 0
            assert await books(desk) == {}


async def test_write_whose_end_may_be_lost_to_damage_is_kept(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await stage_and_seal(desk, W1, A, staged_run(items=3))
        await publish(desk, W1, A)
    # What stands before it, that the stage is sealed, is whole.
    log = tmp_path / RECORDS
    log.write_bytes(log.read_bytes().replace(b'"published"', b'"publixhed"'))
    for _ in range(2):
        async with running_spooler(tmp_path) as desk:
            assert await books(desk) == {"staged": 3}
            (found,) = await desk.client.ask(AskOpenWrites())
            assert (found.write, found.is_kept) == (W1, True)
    async with running_spooler(tmp_path) as desk:
        assert await publish(desk, W1, A) == 0
        assert await books(desk) == {"accepted": 3, "held": 3}


@pytest.mark.parametrize("call", ["append", "datasync"])
async def test_publication_that_cannot_be_recorded_is_refused_and_can_be_repeated(
    call: Any, tmp_path: Path
) -> None:
    files = FailingFiles(tmp_path)
    async with running_spooler(tmp_path, files) as desk:
        await stage_and_seal(desk, W1, A, staged_run(items=3))
        files.break_down(call, errno.EIO, f"{RECORDS}*")
        for _ in range(2):
            refused = await publish(desk, W1, A)
            assert isinstance(refused, Refused)
            assert (refused.code, refused.retryable) == ("DISK_ERROR", True)
        assert await books(desk) == {"staged": 3}
        files.mend()
        assert await publish(desk, W1, A) == 0
        assert await books(desk) == {"accepted": 3, "held": 3}
    async with running_spooler(tmp_path) as desk:
        assert await books(desk) == {"accepted": 3, "held": 3}


async def test_full_disk_still_publishes_and_aborts(tmp_path: Path) -> None:
    files = FailingFiles(tmp_path)
    async with running_spooler(tmp_path, files) as desk:
        await stage_and_seal(desk, W1, A, staged_run(items=3))
        await stage_and_seal(desk, W2, A, staged_run(W2, items=4))
        files.break_down("write", errno.ENOSPC, "*.chunk")
        files.break_down("allocate", errno.ENOSPC)
        files.break_down("append", errno.ENOSPC, RECORDS, times=1)
        assert code_of((await stage(desk, W3, A, staged_run(W3)))[0]) == "DISK_FULL"
        assert await publish(desk, W1, A) == 0
        assert await abort(desk, W2) == 0
        await deliver(desk, 1)
        assert await books(desk) == {"accepted": 3, "delivered": 3}
        files.mend()


@pytest.mark.parametrize("durability", ["os", "memory"])
async def test_weaker_durability_publishes_all_the_same(durability: str, tmp_path: Path) -> None:
    async with running_spooler(tmp_path, durability=durability) as desk:
        await stage_and_seal(desk, W1, A, staged_run(items=2))
        assert await publish(desk, W1, A) == 0
    async with running_spooler(tmp_path, durability=durability) as desk:
        assert await books(desk) == {"accepted": 2, "held": 2}


async def test_run_that_memory_took_and_the_disk_refused_cannot_be_sealed(tmp_path: Path) -> None:
    files = FailingFiles(tmp_path)
    async with running_spooler(tmp_path, files, durability="memory") as desk:
        await stage(desk, W1, A, staged_run(items=1))
        await desk.stats()
        files.break_down("write", errno.EIO, "*.chunk")
        assert await stage(desk, W1, A, staged_run(items=2)) == [Outcome.STORED]
        refused = await seal(desk, W1, A, 2, 3)
        assert code_of(refused) == "BAD_REQUEST"
        files.mend()
