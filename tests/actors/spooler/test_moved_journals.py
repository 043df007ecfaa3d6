"""Journals of older versions: items that `forebay spool export --release` moved out of them, and
items of writes published elsewhere that `forebay spool import` moved into them.

Both commands are gone. What they wrote stays readable, and the books balance.
"""

from pathlib import Path

import pytest

from actors.model.runs import Fate
from actors.ports.journal import ItemMark, Record
from actors.ports.writes import WritePart
from actors.spooler.messages import AskParts
from daemon.journal.files import Files
from daemon.journal.journal import Journal
from daemon.journal.records import RECORDS
from forebay.stage_frames import MOVED
from tests.actors.spooler.spooling import Desk, make_run, running_spooler, spool_settings
from tests.actors.spooler.staging_desk import (
    W1,
    W2,
    A,
    B,
    deliver,
    forget,
    lose_indexes,
    publish,
    receipt,
    stage_and_seal,
    staged_run,
)
from tests.actors.spooler.test_staging import FAR_MS

WENT = ("delivered", "dead", "dropped", "deleted", "lost", "moved_out", "handed_over")


def old_journal(directory: Path) -> None:
    """70 items of queue q, of which 25 were moved out and 20 moved in.

    Pushed: 10 items, 10 that were moved out, and 15 of which 5 were moved out. W1 was published
    elsewhere, and 20 of its items were moved in. W2 was published here, and 10 of its 15 items
    were moved out.
    """
    journal = Journal(Files(directory), spool_settings())
    journal.recover(100, lambda done, size: None)
    runs = [
        make_run(items=10),
        make_run(items=10),
        make_run(items=15),
        staged_run(W1, items=20),
        staged_run(W2, items=15),
    ]
    published: Record = {"is": "published", "at_ms": 2, "write": W2.hex(), "stages": [A.hex()]}
    published |= {"items": 15, "queues": ["q"], "app": None, "version": None}
    stored = journal.commit(
        runs,
        [],
        durable=True,
        stages=[b"", b"", b"", MOVED, A],
        records=[{"is": "moved", "at_ms": 1, "write": W1.hex()}, published],
    )
    [number] = stored.started
    marks = [
        ItemMark(number, position - number, head.run_id, first, last, Fate.MOVED)
        for (head, _), position, first, last in (
            (runs[1], stored.positions[1], 0, 10),
            (runs[2], stored.positions[2], 3, 8),
            (runs[4], stored.positions[4], 5, 15),
        )
    ]
    assert journal.commit([], marks, durable=True).marks_failure is None
    journal.close()


async def balanced(desk: Desk) -> dict[str, int]:
    """The daemon's books in figures that are not 0; their parts must add up."""
    entry: dict[str, int] = (await desk.stats())["daemon"]
    assert entry["accepted"] == sum(entry[name] for name in WENT) + entry["held"]
    return {name: entry[name] for name in ("accepted", *WENT, "held") if entry[name]}


async def moved_parts(desk: Desk) -> list[WritePart]:
    await desk.stats()
    return await desk.client.ask(AskParts((), also_moved=True))


@pytest.mark.parametrize("has_index", [True, False])
async def test_journal_with_moved_items_is_recovered_and_its_books_balance(
    tmp_path: Path, has_index: bool
) -> None:
    old_journal(tmp_path)
    if not has_index:
        lose_indexes(tmp_path)
    async with running_spooler(tmp_path) as desk:
        assert await balanced(desk) == {"accepted": 70, "moved_out": 25, "held": 45}
        assert await receipt(desk, W1) == {"accepted": 20}
        assert await receipt(desk, W2) == {"accepted": 5}
    async with running_spooler(tmp_path) as desk:
        assert await balanced(desk) == {"accepted": 70, "moved_out": 25, "held": 45}
        leases = await desk.take_runs(4)
        left = sorted(lease.run.head.count - lease.done.bit_count() for lease in leases)
        assert left == [5, 10, 10, 20]


async def test_books_still_balance_when_the_chunk_of_moved_items_is_freed(tmp_path: Path) -> None:
    old_journal(tmp_path)
    done = {"accepted": 70, "delivered": 45, "moved_out": 25}
    async with running_spooler(tmp_path) as desk:
        await deliver(desk, 4)
        await desk.until_chunks(0)
        assert await balanced(desk) == done
    async with running_spooler(tmp_path) as desk:
        assert await balanced(desk) == done
        assert await receipt(desk, W1) == {"accepted": 20, "delivered": 20}
        assert await receipt(desk, W2) == {"accepted": 5, "delivered": 5}


async def test_receipt_of_moved_items_outlives_their_chunk_and_is_forgotten(tmp_path: Path) -> None:
    old_journal(tmp_path)
    async with running_spooler(tmp_path) as desk:
        # Its record is old, and its chunk still needs it.
        assert await forget(desk, FAR_MS) == []
        assert await moved_parts(desk) == [WritePart(W1)]
        await deliver(desk, 4)
        assert await moved_parts(desk) == [WritePart(W1, 20, is_over=True)]
        await desk.until_chunks(0)
        assert await receipt(desk, W1) == {"accepted": 20, "delivered": 20}
        assert set(await forget(desk, FAR_MS)) == {W1, W2}
        assert await receipt(desk, W1) == {}
        assert await balanced(desk) == {"accepted": 70, "delivered": 45, "moved_out": 25}


async def test_runs_say_themselves_that_they_were_moved(tmp_path: Path) -> None:
    old_journal(tmp_path)
    lose_indexes(tmp_path)
    (tmp_path / RECORDS).unlink()
    async with running_spooler(tmp_path) as desk:
        assert await receipt(desk, W1) == {"accepted": 20}
        assert await moved_parts(desk) == [WritePart(W1)]


async def test_items_published_here_and_items_moved_here_are_one_receipt(tmp_path: Path) -> None:
    old_journal(tmp_path)
    async with running_spooler(tmp_path) as desk:
        await stage_and_seal(desk, W1, B, staged_run(items=4))
        assert await receipt(desk, W1) == {"accepted": 20}
        await publish(desk, W1, B)
        assert await receipt(desk, W1) == {"accepted": 24}
        await deliver(desk, 5)
        assert await receipt(desk, W1) == {"accepted": 24, "delivered": 24}
    async with running_spooler(tmp_path) as desk:
        assert await receipt(desk, W1) == {"accepted": 24, "delivered": 24}
