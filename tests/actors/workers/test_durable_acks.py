"""A consumer is answered when what it said is on disk, wherever its items are."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.ports.tiers import StoreUnavailable
from actors.tiers import failover
from actors.workers import recording
from actors.workers.pull import Holdings
from forebay.lease_frames import LeasedRun, LeaseReport, LeaseWish, Part, What
from tests.actors.workers.test_retries import OWNERS, in_cold, in_journal
from tests.eventually import eventually
from tests.rig.rig import Rig, running
from tests.wire.lending import all_delivered

PULLED: dict[str, Any] = {"handler": {"type": "pull"}, "max_retries": 3}
MARKS = "*.marks"


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured by these: what is not on disk yet is soon said to be so."""
    monkeypatch.setattr(recording, "RECORD_S", 0.05)
    monkeypatch.setattr(failover, "TRY_AGAIN_S", 0.01)


async def leased(rig: Rig, items: int) -> LeasedRun:
    pull = rig.life.daemon.workers.pull
    (run,) = await pull.lease(LeaseWish("q", items, wait_ms=600_000), Holdings())
    return run


async def settle(rig: Rig, *reports: LeaseReport) -> list[bool]:
    return await rig.life.daemon.workers.pull.settle("q", reports)


def break_disk(rig: Rig) -> None:
    rig.life.files.break_down("datasync", errno.EIO, MARKS)


def break_cold(rig: Rig) -> None:
    rig.life.cold.break_down()


def mend(rig: Rig) -> None:
    rig.life.files.mend()
    rig.life.cold.mend()


BROKEN_OWNERS = pytest.mark.parametrize(
    "enter, break_down",
    [(in_journal, break_disk), (in_cold, break_cold)],
    ids=["journal", "cold"],
)


@BROKEN_OWNERS
async def test_a_report_that_is_repeated_waits_for_the_first_one(
    tmp_path: Path, enter: Any, break_down: Callable[[Rig], None]
) -> None:
    async with running(tmp_path, {"q": PULLED}) as rig:
        await enter(rig, 3)
        run = await leased(rig, 3)
        break_down(rig)
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await settle(rig, all_delivered(run))
        mend(rig)

        async def counts() -> bool:
            return await settle(rig, all_delivered(run)) == [True]

        await eventually(counts, errors=(StoreUnavailable,))
        # It counts once, and was the last thing that could be said under the token.
        assert await settle(rig, all_delivered(run)) == [False]
        assert await rig.until_books(held=0) == {"accepted": 3, "delivered": 3}


@BROKEN_OWNERS
async def test_who_does_not_want_to_wait_is_answered_at_once(
    tmp_path: Path, enter: Any, break_down: Callable[[Rig], None]
) -> None:
    async with running(tmp_path, {"q": PULLED | {"settle_durability": "lazy"}}) as rig:
        await enter(rig, 3)
        run = await leased(rig, 3)
        break_down(rig)
        assert await settle(rig, all_delivered(run)) == [True]
        mend(rig)
        await rig.until_books(held=0, delivered=3)


@OWNERS
async def test_failed_items_that_move_are_on_disk_too(tmp_path: Path, enter: Any) -> None:
    """One is a dead letter, one is retried much later: both change their owner, or their row."""
    async with running(tmp_path, {"q": PULLED}) as rig:
        await enter(rig, 3)
        run = await leased(rig, 3)
        report = LeaseReport(
            run.token,
            (
                Part(What.DELIVERED, 0b001),
                Part(What.FAILED, 0b010, "no", is_permanent=True),
                Part(What.FAILED, 0b100, "later", delay_ms=3_600_000),
            ),
        )
        break_cold(rig)
        with pytest.raises(StoreUnavailable):
            await settle(rig, report)
        mend(rig)

        async def counts() -> bool:
            return await settle(rig, report) == [True]

        await eventually(counts, errors=(StoreUnavailable,))
        # Whatever is lost from now on, they are where they are.
        await rig.crash()
        books = await rig.until_books(held=1)
        assert books == {"accepted": 3, "delivered": 1, "dead": 1, "held": 1, "cold": 1}


@OWNERS
async def test_a_report_that_the_failover_has_dropped_did_not_count(
    tmp_path: Path, enter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "RECORD_S", 600.0)
    async with running(tmp_path, {"q": PULLED}, failover=(0, 1 << 20)) as rig:
        await enter(rig, 1)
        run = await leased(rig, 1)
        break_cold(rig)
        done = LeaseReport(run.token, (Part(What.FAILED, 0, "no", is_permanent=True),))
        assert await settle(rig, done) == [False]
        mend(rig)
        # So it comes again.
        assert await settle(rig, all_delivered(await leased(rig, 1))) == [True]


async def test_what_consumers_say_is_synced_and_what_workers_say_is_not(tmp_path: Path) -> None:
    queues = {"q": PULLED, "worked": {}}
    async with running(tmp_path, queues) as rig:
        found: list[bool] = []
        record = rig.life.sqlite.settle

        async def noting(outcomes: Any, *, is_durable: bool = False) -> list[bool]:
            found.append(is_durable)
            return await record(outcomes, is_durable=is_durable)

        rig.life.sqlite.settle = noting  # type: ignore[method-assign]
        await rig.pause("worked", "f")
        await rig.push(3, "worked", flow="f")
        await rig.until_books("worked", cold=3)
        await rig.control("queues.resume", queue="worked", flow="f")
        await rig.until_books("worked", held=0)
        assert not any(found)
        found.clear()
        await in_cold(rig, 3)
        assert await settle(rig, all_delivered(await leased(rig, 3))) == [True]
        assert True in found
