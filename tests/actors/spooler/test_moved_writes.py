"""Runs of writes that were published elsewhere, and moved here: receipts know them, for good."""

from pathlib import Path

from actors.model.runs import Fate
from actors.ports.writes import WritePart
from actors.spooler.messages import AskParts
from daemon.journal.records import RECORDS
from forebay.stage_frames import MOVED
from forebay.wire import Outcome
from tests.actors.spooler.spooling import KIB, Desk, make_run, running_spooler
from tests.actors.spooler.staging_desk import (
    W1,
    A,
    books,
    deliver,
    forget,
    lose_indexes,
    publish,
    receipt,
    stage,
    stage_and_seal,
    staged_run,
)
from tests.actors.spooler.test_staging import FAR_MS


async def moved_parts(desk: Desk) -> list[WritePart]:
    await desk.stats()
    return await desk.client.ask(AskParts((), also_moved=True))


async def test_moved_items_are_visible_at_once_and_a_second_time_duplicates(tmp_path: Path) -> None:
    run = staged_run(items=10)
    async with running_spooler(tmp_path) as desk:
        assert await stage(desk, W1, MOVED, run) == [Outcome.STORED]
        assert await receipt(desk, W1) == {"accepted": 10}
        assert await stage(desk, W1, MOVED, run) == [Outcome.DUPLICATE]
        assert await moved_parts(desk) == [WritePart(W1)]
        await deliver(desk, 1)
        assert await receipt(desk, W1) == {"accepted": 10, "delivered": 10}
        assert await moved_parts(desk) == [WritePart(W1, 10, is_over=True)]
        assert await books(desk) == {"accepted": 10, "delivered": 10, "duplicate": 10}


async def test_receipt_of_moved_items_survives_their_chunks_and_is_forgotten(
    tmp_path: Path,
) -> None:
    expected = {"accepted": 50, "delivered": 40, "deleted": 10}
    async with running_spooler(tmp_path) as desk:
        runs = [staged_run(items=10, size=5 * KIB) for _ in range(5)]
        await stage(desk, W1, MOVED, *runs)
        assert await forget(desk, FAR_MS) == []
        await deliver(desk, 4)
        await deliver(desk, 1, fate=Fate.DELETED)
        await desk.push(*(make_run(items=10, size=5 * KIB) for _ in range(2)))
        await deliver(desk, 2)
        await desk.until_chunks(1)
        assert await receipt(desk, W1) == expected
    async with running_spooler(tmp_path) as desk:
        await desk.until_chunks(0)
        assert await receipt(desk, W1) == expected
        assert await forget(desk, FAR_MS) == [W1]
        assert await receipt(desk, W1) == {}
        assert await books(desk) == {"accepted": 70, "delivered": 60, "deleted": 10}


async def test_runs_say_themselves_that_they_were_moved(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await stage(desk, W1, MOVED, staged_run(items=10), staged_run(items=5))
        await deliver(desk, 1)
        assert await receipt(desk, W1) == {"accepted": 15, "delivered": 10}
    lose_indexes(tmp_path)
    (tmp_path / RECORDS).unlink()
    async with running_spooler(tmp_path) as desk:
        assert await receipt(desk, W1) == {"accepted": 15, "delivered": 10}
        await deliver(desk, 1)
        assert await receipt(desk, W1) == {"accepted": 15, "delivered": 15}


async def test_what_was_published_here_and_what_was_moved_here_are_one_receipt(
    tmp_path: Path,
) -> None:
    async with running_spooler(tmp_path) as desk:
        await stage_and_seal(desk, W1, A, staged_run(items=4))
        # Before this daemon has heard that the write is published.
        await stage(desk, W1, MOVED, staged_run(items=10))
        await deliver(desk, 1)
        assert await moved_parts(desk) == [WritePart(W1, 10, is_over=True)]
        await publish(desk, W1, A)
        assert await receipt(desk, W1) == {"accepted": 14, "delivered": 10}
        await deliver(desk, 1)
        assert await receipt(desk, W1) == {"accepted": 14, "delivered": 14}
    async with running_spooler(tmp_path) as desk:
        assert await receipt(desk, W1) == {"accepted": 14, "delivered": 14}
