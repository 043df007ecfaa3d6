"""Writes as clients ask for them: a real journal, a real SQLite, and the actors between the two."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from actors.model.clock import wall_ms
from actors.ports.tiers import StoreUnavailable
from actors.ports.writes import Aborted, Published, PublishWish, Receipt, WriteView
from actors.writes.writes import Writes
from daemon.journal.files import Files
from daemon.journal.records import RECORDS
from daemon.stores.sqlite.store import SqliteCold
from forebay.errors import Refused
from tests.actors.spooler.spooling import Desk, running_spooler
from tests.actors.spooler.staging_desk import (
    W1,
    W2,
    W3,
    A,
    B,
    Run,
    books,
    code_of,
    deliver,
    stage,
    staged_run,
    view,
)
from tests.crash.failing_files import FailingFiles
from tests.eventually import eventually

TTL_S = 3600
COLD = "cold.sqlite"


@dataclass
class Office:
    """A daemon's writes, and what one may do to it."""

    desk: Desk
    cold: SqliteCold
    writes: Writes
    ahead_ms: int = 0

    def now_ms(self) -> int:
        return wall_ms() + self.ahead_ms

    async def stage_and_seal(self, write: bytes, name: bytes, *runs: Run) -> None:
        await stage(self.desk, write, name, *runs)
        await self.writes.seal(write, name, len(runs), sum(head.count for head, _ in runs))

    async def publish(
        self, write: bytes, *stages: bytes, app: str | None = None, version: int | None = None
    ) -> Published:
        return await self.writes.publish(write, stages, app, version)

    async def refusal(self, write: bytes, *stages: bytes) -> str:
        with pytest.raises(Refused) as raised:
            await self.publish(write, *stages)
        return str(raised.value.code)

    async def seal_in_the_journal(self, write: bytes, name: bytes) -> WriteView:
        """What the store would be told of it."""
        found = await view(self.desk, write, name)
        assert isinstance(found, WriteView)
        return found


@asynccontextmanager
async def office(directory: Path, files: Files | None = None) -> AsyncIterator[Office]:
    """One life: the journal is in `spool`, the store beside it."""
    journal = directory / "spool"
    async with running_spooler(journal, files) as desk:
        made: list[Office] = []
        cold = SqliteCold(directory / COLD, 60.0, lambda: made[0].now_ms(), ballast_bytes=0)
        writes = Writes(
            desk.client, cold.decisions, TTL_S, lambda: made[0].now_ms(), is_shared=False
        )
        made.append(Office(desk, cold, writes))
        await cold.open()
        try:
            await writes.catch_up()
            yield made[0]
        finally:
            await cold.close()


def lose_the_store(directory: Path) -> None:
    for path in directory.glob(f"{COLD}*"):
        path.unlink()


async def test_what_is_published_is_visible_when_it_is_answered(tmp_path: Path) -> None:
    async with office(tmp_path) as daemon:
        await daemon.stage_and_seal(W1, A, staged_run(items=2), staged_run(items=3))
        await daemon.stage_and_seal(W1, B, staged_run(items=4))
        done = await daemon.publish(W1, A)
        assert (done.outcome, done.write, done.items) == ("published", W1, 5)
        assert await books(daemon.desk) == {"accepted": 5, "held": 5}
        assert await daemon.publish(W1, B) == done
        assert await daemon.writes.abort(W1) == Aborted("published", 5)
        await deliver(daemon.desk, 2)
        receipt = await eventually_received(daemon, W1, delivered=5)
        assert (receipt.accepted, receipt.queues) == (5, ("q",))


async def eventually_received(daemon: Office, write: bytes, delivered: int) -> Receipt:
    async def check() -> Receipt:
        await daemon.desk.stats()
        receipt = await daemon.writes.receipt(write)
        assert receipt is not None
        assert receipt.delivered == delivered
        return receipt

    return await eventually(check)


async def test_a_stage_that_is_missing_or_not_sealed_fails_the_publish(tmp_path: Path) -> None:
    async with office(tmp_path) as daemon:
        await daemon.stage_and_seal(W1, A, staged_run(items=1))
        await stage(daemon.desk, W1, B, staged_run(items=1))
        assert await daemon.refusal(W1, A, B) == "NOT_FOUND"
        assert await daemon.refusal(W1, A, W3) == "NOT_FOUND"
        assert await books(daemon.desk) == {"staged": 2}
        await daemon.writes.seal(W1, B, 1, 1)
        assert (await daemon.publish(W1, A, B)).items == 2


async def test_a_version_that_was_published_is_a_duplicate_and_its_write_is_dropped(
    tmp_path: Path,
) -> None:
    async with office(tmp_path) as daemon:
        await daemon.stage_and_seal(W1, A, staged_run(items=3))
        done = await daemon.publish(W1, A, app="job", version=4)
    async with office(tmp_path) as daemon:
        await daemon.stage_and_seal(W2, A, staged_run(W2, items=3))
        again = await daemon.publish(W2, A, app="job", version=4)
        assert again == done._replace(outcome="duplicate")
        assert await books(daemon.desk) == {"accepted": 3, "held": 3}
        # Also of a write that had no stage yet.
        assert (await daemon.publish(W3, app="job", version=3)).outcome == "duplicate"
        (late,) = await stage(daemon.desk, W3, A, staged_run(W3))
        assert code_of(late) == "STAGE_OVER"


async def test_a_stage_of_a_failed_task_is_dropped_sealed_or_not(tmp_path: Path) -> None:
    async with office(tmp_path) as daemon:
        await stage(daemon.desk, W1, A, staged_run(items=2))
        await daemon.stage_and_seal(W1, B, staged_run(items=4))
        assert await daemon.writes.drop(W1, A) == 2
        assert await daemon.writes.drop(W1, B) == 4
        assert await daemon.writes.drop(W1, B) == 0
        assert await daemon.refusal(W1, B) == "NOT_FOUND"
        assert await books(daemon.desk) == {}


async def test_an_aborted_write_is_dropped_and_stragglers_are_refused(tmp_path: Path) -> None:
    async with office(tmp_path) as daemon:
        await daemon.stage_and_seal(W1, A, staged_run(items=2))
        assert await daemon.writes.abort(W1) == Aborted("aborted", 2)
        assert await daemon.writes.abort(W2) == Aborted("aborted", 0)
        assert await books(daemon.desk) == {}
        assert await daemon.refusal(W1, A) == "STAGE_OVER"
        for write in (W1, W2):
            (late,) = await stage(daemon.desk, write, B, staged_run(write))
            assert code_of(late) == "STAGE_OVER"


# What the one side knows and the other does not.


@pytest.mark.parametrize("is_published", [True, False])
async def test_a_decision_that_was_not_carried_out_is_at_the_next_start(
    is_published: bool, tmp_path: Path
) -> None:
    """The daemon was killed between the two."""
    async with office(tmp_path) as daemon:
        await daemon.stage_and_seal(W1, A, staged_run(items=3))
        if is_published:
            here = await daemon.seal_in_the_journal(W1, A)
            await daemon.cold.decisions.publish(PublishWish(W1, (A,), "job", 1, here))
        else:
            await daemon.cold.decisions.abort(W1, 3)
        assert await books(daemon.desk) == {"staged": 3}
    async with office(tmp_path) as daemon:
        expected = {"accepted": 3, "held": 3} if is_published else {}
        assert await books(daemon.desk) == expected
        assert await daemon.cold.decisions.verdicts([W1]) != []
        assert await daemon.cold.decisions.verdicts([]) == []


async def test_a_lost_store_takes_nothing_that_was_published(tmp_path: Path) -> None:
    async with office(tmp_path) as daemon:
        await daemon.stage_and_seal(W1, A, staged_run(items=3))
        done = await daemon.publish(W1, A, app="job", version=4)
        await daemon.writes.abort(W3)
    lose_the_store(tmp_path)
    async with office(tmp_path) as daemon:
        assert await books(daemon.desk) == {"accepted": 3, "held": 3}
        # Whatever is asked again is answered as before.
        await daemon.writes.seal(W1, A, 1, 3)
        assert await daemon.publish(W1, A, app="job", version=4) == done
        assert await daemon.writes.abort(W1) == Aborted("published", 3)
        assert await daemon.writes.drop(W1, A) == 0
        assert await daemon.refusal(W3) == "STAGE_OVER"
        await daemon.stage_and_seal(W2, A, staged_run(W2, items=3))
        again = await daemon.publish(W2, A, app="job", version=4)
        assert again == done._replace(outcome="duplicate")
        await deliver(daemon.desk, 1)
        await eventually_received(daemon, W1, delivered=3)
        assert await books(daemon.desk) == {"accepted": 3, "delivered": 3}


async def test_what_was_sealed_before_the_store_was_lost_is_published_or_expires(
    tmp_path: Path,
) -> None:
    async with office(tmp_path) as daemon:
        for write in (W1, W2):
            await daemon.stage_and_seal(write, A, staged_run(write, items=3))
    lose_the_store(tmp_path)
    async with office(tmp_path) as daemon:
        assert await books(daemon.desk) == {"staged": 6}
        assert (await daemon.publish(W1, A)).items == 3
        daemon.ahead_ms = 1000 * TTL_S + 60_000
        with capture_logs() as logs:
            await daemon.writes._follower.expire()
        assert [entry["write"] for entry in logs] == [W2.hex()]
        assert await books(daemon.desk) == {"accepted": 3, "held": 3}


async def test_a_record_that_was_lost_is_written_again(tmp_path: Path) -> None:
    """The store knows that the write is published; nothing waits for an operator."""
    async with office(tmp_path) as daemon:
        await daemon.stage_and_seal(W1, A, staged_run(items=3))
        await daemon.publish(W1, A)
    log = tmp_path / "spool" / RECORDS
    log.write_bytes(log.read_bytes().replace(b'"published"', b'"publixhed"'))
    async with office(tmp_path) as daemon:
        assert await books(daemon.desk) == {"accepted": 3, "held": 3}


# Time.


async def test_a_write_expires_after_stage_ttl_and_others_do_not(tmp_path: Path) -> None:
    async with office(tmp_path) as daemon:
        for write in (W1, W2):
            await daemon.stage_and_seal(write, A, staged_run(write, items=1))
        await daemon.publish(W2, A)
        daemon.ahead_ms = 1000 * TTL_S - 60_000
        await daemon.writes._follower.expire()
        assert await books(daemon.desk) == {"accepted": 1, "held": 1, "staged": 1}
        daemon.ahead_ms = 1000 * TTL_S + 60_000
        with capture_logs() as logs:
            await daemon.writes._follower.expire()
        assert [(entry["event"], entry["write"]) for entry in logs] == [
            ("decisions.write_expired", W1.hex())
        ]
        assert await books(daemon.desk) == {"accepted": 1, "held": 1}
        assert await daemon.refusal(W1, A) == "STAGE_OVER"


async def test_a_restart_gives_an_open_write_no_more_time(tmp_path: Path) -> None:
    async with office(tmp_path) as daemon:
        await stage(daemon.desk, W1, A, staged_run(items=1))
    async with office(tmp_path) as daemon:
        daemon.ahead_ms = 1000 * TTL_S + 60_000
        await daemon.writes._follower.expire()
        assert await books(daemon.desk) == {}


async def test_old_decisions_are_forgotten_once_they_are_carried_out(tmp_path: Path) -> None:
    async with office(tmp_path) as daemon:
        await daemon.stage_and_seal(W1, A, staged_run(items=3))
        await daemon.publish(W1, A, app="job", version=4)
        daemon.ahead_ms = 60_000
        await daemon.writes.forget(1000)
        assert await daemon.cold.decisions.receipt(W1) is not None
        await daemon.writes.catch_up()
        await daemon.writes.forget(1000)
        assert await daemon.cold.decisions.receipt(W1) is None
        # The journal remembers it.
        assert (await daemon.publish(W1, A)).items == 3
        receipt = await daemon.writes.receipt(W1)
        assert receipt is not None
        assert (receipt.accepted, receipt.version) == (3, 4)


# What is away.


async def test_while_the_store_is_away_nothing_is_decided_and_all_waits(tmp_path: Path) -> None:
    async with office(tmp_path) as daemon:
        await daemon.stage_and_seal(W1, A, staged_run(items=3))
        await daemon.cold.close()
        await stage(daemon.desk, W1, B, staged_run(items=4))
        for ask in (
            lambda: daemon.writes.seal(W1, B, 1, 4),
            lambda: daemon.publish(W1, A),
            lambda: daemon.writes.abort(W1),
            lambda: daemon.writes.drop(W1, A),
        ):
            with pytest.raises(StoreUnavailable):
                await ask()
        await daemon.writes.catch_up()
        assert await books(daemon.desk) == {"staged": 7}
        await daemon.cold.open()
        await daemon.writes.seal(W1, B, 1, 4)
        assert (await daemon.publish(W1, A, B)).items == 7
        assert await books(daemon.desk) == {"accepted": 7, "held": 7}


async def test_a_publication_that_the_journal_cannot_record_is_refused_and_repeated(
    tmp_path: Path,
) -> None:
    files = FailingFiles(tmp_path / "spool")
    async with office(tmp_path, files) as daemon:
        await daemon.stage_and_seal(W1, A, staged_run(items=3))
        files.break_down("datasync", errno.EIO, f"{RECORDS}*")
        with pytest.raises(Refused) as raised:
            await daemon.publish(W1, A)
        assert (raised.value.code, raised.value.retryable) == ("DISK_ERROR", True)
        assert await books(daemon.desk) == {"staged": 3}
        files.mend()
        assert (await daemon.publish(W1, A)).items == 3
        assert await books(daemon.desk) == {"accepted": 3, "held": 3}


async def test_many_tasks_seal_at_once(tmp_path: Path) -> None:
    stages = [bytes([number]) * 16 for number in range(1, 41)]
    async with office(tmp_path) as daemon:
        async with trio.open_nursery() as nursery:
            for name in stages:
                nursery.start_soon(daemon.stage_and_seal, W1, name, staged_run(items=1))
        assert (await daemon.publish(W1, *stages)).items == 40
        assert await books(daemon.desk) == {"accepted": 40, "held": 40}
