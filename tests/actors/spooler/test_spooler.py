"""The spooler on a real journal: what is acknowledged, lent, settled, and found again."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from actors.model.clock import wall_ms
from actors.model.failures import RetryNote, slices_of
from actors.model.runs import Fate
from actors.model.slices import InJournal, LentRun
from actors.spooler.messages import GiveBack, Settle
from daemon.journal.checkpoint import read_recent
from daemon.journal.files import Files
from forebay.errors import Refused
from forebay.run import RunHead
from forebay.wire import Outcome
from tests.actors.spooler.spooling import (
    HANG_S,
    KIB,
    handed_over,
    make_run,
    retried,
    running_spooler,
    settled,
)
from tests.eventually import eventually


class CountingSyncs(Files):
    """Counts the syncs that a commit makes, and holds them up if need be."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.commit_syncs = 0
        self.may_sync = threading.Event()
        self.may_sync.set()

    def datasync(self, fd: int) -> None:
        if threading.current_thread().name == "forebay-commit":
            self.may_sync.wait(HANG_S)
            self.commit_syncs += 1
        super().datasync(fd)


async def test_push_is_answered_after_its_sync(tmp_path: Path) -> None:
    files = CountingSyncs(tmp_path)
    async with running_spooler(tmp_path, files) as desk:
        await desk.push(make_run())
        before = files.commit_syncs
        assert await desk.push(make_run()) == [Outcome.STORED]
        assert files.commit_syncs == before + 1


async def test_pushes_that_wait_share_a_sync(tmp_path: Path) -> None:
    files = CountingSyncs(tmp_path)
    async with running_spooler(tmp_path, files) as desk:
        await desk.push(make_run())
        before = files.commit_syncs
        files.may_sync.clear()
        await desk.submit([make_run() for _ in range(50)])
        files.may_sync.set()
        await desk.inbox.wait_for(51)
        assert files.commit_syncs - before <= 2
        assert desk.inbox.flushes <= 3


async def test_outcomes_that_are_waited_for_share_a_sync(tmp_path: Path) -> None:
    files = CountingSyncs(tmp_path)
    async with running_spooler(tmp_path, files) as desk:
        await desk.push(*(make_run() for _ in range(50)))
        first, *leases = await desk.take_runs(50)
        before = files.commit_syncs
        files.may_sync.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(desk.record, settled(first))
            await trio.testing.wait_all_tasks_blocked()
            # The first one is with the disk now.
            for lease in leases:
                nursery.start_soon(desk.record, settled(lease))
            await trio.testing.wait_all_tasks_blocked()
            assert files.commit_syncs == before
            files.may_sync.set()
        assert files.commit_syncs == before + 2


async def test_runs_are_lent_in_order_of_priority_then_arrival(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await desk.push(
            make_run(items=1, priority=5),
            make_run(items=2, priority=0),
            make_run(items=3, priority=5),
            make_run(items=4, priority=0),
        )
        assert [lease.run.head.count for lease in await desk.take_runs(4)] == [2, 4, 1, 3]


async def test_taker_that_waits_gets_the_next_run(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk, trio.open_nursery() as nursery:
        taken = []

        async def take() -> None:
            taken.extend(await desk.take())

        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        await desk.push(make_run(items=7))
        await eventually(lambda: len(taken) > 0)
        assert taken[0].run.head.count == 7


async def test_books_balance_while_items_are_lent_and_settled(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await desk.push(make_run(items=10), make_run(items=5))
        first, second = await desk.take_runs(2)
        assert await desk.totals() == {"accepted": 15, "held": 15, "running": 15}
        await desk.client.send(Settle((settled(first, 0, 4),)))
        assert await desk.totals() == {"accepted": 15, "delivered": 4, "held": 11, "running": 11}
        await desk.settle(first, second)
        assert await desk.totals() == {"accepted": 15, "delivered": 15}


async def test_settled_items_stay_settled_after_a_restart(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await desk.push(make_run(items=10), make_run(items=5))
        first, second = await desk.take_runs(2)
        await desk.client.send(Settle((settled(first, 2, 4), settled(second))))
    async with running_spooler(tmp_path) as desk:
        assert await desk.totals() == {"accepted": 15, "delivered": 7, "held": 8, "spooled": 8}
        (lease,) = await desk.take()
        assert lease.run.head.run_id == first.run.head.run_id
        assert lease.done == 0b1100
        await desk.settle(lease)
        assert await desk.totals() == {"accepted": 15, "delivered": 15}


async def test_stale_token_changes_nothing(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await desk.push(make_run(items=3))
        (old,) = await desk.take()
        await desk.client.send(GiveBack((old,)))
        (new,) = await desk.take()
        await desk.settle(old)
        assert await desk.totals() == {"accepted": 3, "held": 3, "running": 3}
        await desk.settle(new)
        assert await desk.totals() == {"accepted": 3, "delivered": 3}


async def test_outcome_for_another_run_at_the_same_place_changes_nothing(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await desk.push(make_run(items=3))
        (lease,) = await desk.take()
        wrong = settled(lease)
        wrong = type(wrong)(wrong.token, wrong.position, bytes(16), 0, 3, Fate.DELIVERED)
        await desk.client.send(Settle((wrong,)))
        assert await desk.totals() == {"accepted": 3, "held": 3, "running": 3}


async def test_run_that_is_given_back_is_the_next_again(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await desk.push(make_run(items=1), make_run(items=2))
        (first,) = await desk.take(runs_max=1)
        await desk.client.send(GiveBack((first,)))
        assert [lease.run.head.count for lease in await desk.take_runs(2)] == [1, 2]


async def test_what_does_not_fit_into_memory_is_read_back_in_order(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"inmemory_runs": 3, "inmemory_bytes": 64 * KIB}
    async with running_spooler(tmp_path, **limits) as desk:
        await desk.push(*(make_run(items=count) for count in range(1, 41)))
        spool = (await desk.stats())["spool"]
        assert spool["memory_runs"] <= 3
        counts: list[int] = []
        while len(counts) < 40:
            leases = await desk.take(runs_max=5)
            counts += [lease.run.head.count for lease in leases]
            await desk.settle(*leases)
        assert counts == list(range(1, 41))


async def test_full_memory_does_not_starve_another_queue(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"inmemory_runs": 2, "inmemory_bytes": 64 * KIB}
    async with running_spooler(tmp_path, **limits) as desk:
        await desk.push(*(make_run("hog") for _ in range(5)))
        await desk.push(make_run("other", items=9))
        (lease,) = await desk.take("other")
        assert lease.run.head.count == 9


async def test_run_that_is_pushed_again_is_a_duplicate(tmp_path: Path) -> None:
    run = make_run(items=4)
    async with running_spooler(tmp_path) as desk:
        assert await desk.push(run, run) == [Outcome.STORED, Outcome.DUPLICATE]
        assert await desk.push(run) == [Outcome.DUPLICATE]
        totals = await desk.totals()
        assert totals == {"accepted": 4, "duplicate": 8, "held": 4, "spooled": 4}


def same_id(run: tuple[RunHead, bytes]) -> list[tuple[RunHead, bytes]]:
    """Other runs under this run's id: other payloads, another number of items, another queue."""
    head, run_id = run[0], run[0].run_id
    return [
        make_run(items=head.count + 1, size=100, run_id=run_id),
        make_run(items=head.count, size=90, run_id=run_id),
        make_run("other", items=head.count, run_id=run_id),
    ]


async def test_another_run_under_a_known_id_is_refused_and_the_same_run_is_a_duplicate(
    tmp_path: Path,
) -> None:
    run = make_run(items=4)
    # A push over HTTP is encoded anew when it is repeated: at another time.
    later = make_run(items=4, run_id=run[0].run_id, enqueued_ms=run[0].enqueued_ms + 1)

    def codes(answers: list[Outcome | Refused]) -> list[Outcome | str]:
        return [one.code if isinstance(one, Refused) else one for one in answers]

    expected = [*["BAD_RUN"] * 3, Outcome.DUPLICATE, Outcome.DUPLICATE]
    async with running_spooler(tmp_path) as desk:
        found = codes(await desk.push(run, *same_id(run), run, later))
        assert found == [Outcome.STORED, *expected]
        assert codes(await desk.push(*same_id(run), run, later)) == expected
        assert (await desk.totals())["accepted"] == 4
    # Found in the index of its chunk, or, after the chunk is gone, in the list of the newest runs.
    async with running_spooler(tmp_path) as desk:
        assert codes(await desk.push(*same_id(run), run, later)) == expected
        await desk.settle(*await desk.take_runs(1))
    (tmp_path / "recent").unlink()
    async with running_spooler(tmp_path) as desk:
        assert codes(await desk.push(*same_id(run), run, later)) == expected


async def test_duplicate_is_known_after_a_restart(tmp_path: Path) -> None:
    run = make_run()
    async with running_spooler(tmp_path) as desk:
        await desk.push(run)
        (lease,) = await desk.take()
        await desk.settle(lease)
    async with running_spooler(tmp_path) as desk:
        assert await desk.push(run) == [Outcome.DUPLICATE]


async def test_run_that_was_given_back_for_later_waits_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = wall_ms()
    monkeypatch.setattr("actors.spooler.spooler.wall_ms", lambda: now_ms)
    async with running_spooler(tmp_path) as desk:
        await desk.push(make_run(items=2), make_run(items=1))
        first, second = await desk.take()
        await desk.client.send(GiveBack((first,), not_before_ms=now_ms + 1000))
        now_ms += 999
        assert (await desk.totals())["scheduled"] == 2
        await desk.client.send(GiveBack((second,)))
        (now,) = await desk.take()
        assert now.run.head.count == 1
        now_ms += 1
        (later,) = await desk.take()
        assert later.run.head.count == 2


async def test_failed_items_keep_their_attempts_and_errors_over_a_restart(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await desk.push(make_run(items=5))
        (lease,) = await desk.take()
        first = RetryNote(1, 1_000, 500, "refused")
        await desk.client.send(
            Settle((retried(lease, 0, 3, first), settled(lease, 4, 5), settled(lease, 0, 1)))
        )
        second = RetryNote(2, 2_000, 1_500, "refused again")
        await desk.client.send(Settle((retried(lease, 1, 2, second),)))
        assert await desk.totals() == {"accepted": 5, "delivered": 2, "held": 3, "running": 3}
    async with running_spooler(tmp_path) as desk:
        assert await desk.totals() == {"accepted": 5, "delivered": 2, "held": 3, "spooled": 3}
        (lease,) = await desk.take()
        assert lease.done == 0b10001
        run = LentRun(lease.run.head, lease.run.data, InJournal(lease.token, lease.run.position))
        found = {s.bits: s for s in slices_of(run, lease.done, lease.portions)}
        assert set(found) == {0b01000, 0b00010, 0b00100}
        assert found[0b01000].attempt == 0
        assert found[0b00100].attempt == 1
        assert found[0b00100].due_ms == 1_000
        assert found[0b00010].attempt == 2
        assert [error.text for error in found[0b00010].errors] == ["refused", "refused again"]


async def test_hand_over_is_answered_once_it_is_durable_and_never_lent_again(
    tmp_path: Path,
) -> None:
    async with running_spooler(tmp_path) as desk:
        await desk.push(make_run(items=3))
        (lease,) = await desk.take()
        assert await desk.record(handed_over(lease, 0b101)) == [True]
        totals = {"accepted": 3, "handed_over": 2, "held": 1, "running": 1}
        assert await desk.totals() == totals
        # Of items that are gone nothing is handed over again, not even the one that is not.
        assert await desk.record(handed_over(lease, 0b111)) == [False]
        stale = replace(lease, token=lease.token + 1)
        assert await desk.record(handed_over(stale, 0b010)) == [False]
        assert await desk.totals() == totals
    async with running_spooler(tmp_path) as desk:
        (lease,) = await desk.take()
        assert lease.done == 0b101
        assert await desk.record(settled(lease, 1, 2, Fate.DELETED)) == [True]
        assert await desk.totals() == {"accepted": 3, "handed_over": 2, "deleted": 1}


@pytest.mark.parametrize(
    "limit", [{"max_size": 3}, {"max_bytes": 128 * KIB}], ids=["max_size", "max_bytes"]
)
async def test_drop_newest_refuses_what_does_not_fit(tmp_path: Path, limit: dict[str, Any]) -> None:
    size = 40 * KIB if "max_bytes" in limit else 10
    queues: dict[str, dict[str, Any]] = {"q": {"full_policy": "drop_newest"}}
    async with running_spooler(tmp_path, queues=queues, **limit) as desk:
        answers = await desk.push(*(make_run(items=1, size=size) for _ in range(4)))
        assert answers[:3] == [Outcome.STORED] * 3
        assert isinstance(answers[3], Refused)
        assert answers[3].code == "QUEUE_FULL"
        assert answers[3].retry_after_ms > 0
        assert await desk.totals() == {"accepted": 3, "held": 3, "spooled": 3}


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "on disk"])
async def test_drop_oldest_makes_room_and_counts_what_went(tmp_path: Path, in_memory: bool) -> None:
    queues: dict[str, dict[str, Any]] = {"q": {"full_policy": "drop_oldest"}}
    limits: dict[str, Any] = {"max_size": 3, "inmemory_runs": 2048 if in_memory else 1}
    async with running_spooler(tmp_path, queues=queues, **limits) as desk:
        for count in range(1, 6):
            assert await desk.push(make_run(items=count)) == [Outcome.STORED]
        assert await desk.totals() == {"accepted": 15, "dropped": 3, "held": 12, "spooled": 12}
    async with running_spooler(tmp_path, queues=queues, **limits) as desk:
        assert await desk.totals() == {"accepted": 15, "dropped": 3, "held": 12, "spooled": 12}
        counts: list[int] = []
        while len(counts) < 3:
            counts += [lease.run.head.count for lease in await desk.take()]
        assert counts == [3, 4, 5]


async def test_drop_oldest_never_drops_what_is_lent(tmp_path: Path) -> None:
    queues: dict[str, dict[str, Any]] = {"q": {"full_policy": "drop_oldest", "full_timeout": 0}}
    async with running_spooler(tmp_path, queues=queues, max_size=1) as desk:
        await desk.push(make_run(items=2))
        (lease,) = await desk.take()
        (answer,) = await desk.push(make_run(items=3))
        assert isinstance(answer, Refused)
        assert answer.code == "QUEUE_FULL"
        await desk.settle(lease)
        assert await desk.totals() == {"accepted": 2, "delivered": 2}


async def test_blocked_push_is_stored_when_there_is_room(tmp_path: Path) -> None:
    async with running_spooler(tmp_path, max_size=1) as desk:
        await desk.push(make_run(items=1))
        (sequence,) = await desk.submit([make_run(items=2)])
        (lease,) = await desk.take()
        assert sequence not in desk.inbox.answers
        await desk.settle(lease)
        await desk.inbox.wait_for(2)
        assert desk.inbox.answers[sequence] is Outcome.STORED


async def test_blocked_push_is_refused_after_full_timeout(tmp_path: Path) -> None:
    queues: dict[str, dict[str, Any]] = {"q": {"full_timeout": 0.2}}
    async with running_spooler(tmp_path, queues=queues, max_size=1) as desk:
        await desk.push(make_run(items=1))
        (answer,) = await desk.push(make_run(items=2))
        assert isinstance(answer, Refused)
        assert answer.code == "QUEUE_FULL"
        assert await desk.totals() == {"accepted": 1, "held": 1, "spooled": 1}


async def test_blocked_pushes_keep_their_order(tmp_path: Path) -> None:
    async with running_spooler(tmp_path, max_size=1) as desk:
        await desk.push(make_run(items=1))
        await desk.submit([make_run(items=2), make_run(items=3)])
        counts: list[int] = []
        while len(counts) < 3:
            leases = await desk.take()
            counts += [lease.run.head.count for lease in leases]
            await desk.settle(*leases)
        assert counts == [1, 2, 3]


async def test_blocked_push_is_told_that_the_daemon_stops(tmp_path: Path) -> None:
    async with running_spooler(tmp_path, max_size=1) as desk:
        await desk.push(make_run())
        (sequence,) = await desk.submit([make_run()])
    answer = desk.inbox.answers[sequence]
    assert isinstance(answer, Refused)
    assert answer.code == "DRAINING"


async def test_low_disk_refuses_and_still_settles(tmp_path: Path) -> None:
    class Small(Files):
        free = 1 << 40

        def free_bytes(self) -> int:
            return Small.free

    files = Small(tmp_path)
    async with running_spooler(tmp_path, files, min_free_bytes=1 << 20) as desk:
        await desk.push(make_run(items=3))
        Small.free = 1000
        await desk.until(lambda report: report["spool"]["free_bytes"] == 1000)
        (answer,) = await desk.push(make_run())
        assert isinstance(answer, Refused)
        assert answer.code == "DISK_FULL"
        (lease,) = await desk.take()
        await desk.settle(lease)
        assert await desk.totals() == {"accepted": 3, "delivered": 3}
        Small.free = 1 << 40
        await desk.until(lambda report: report["spool"]["free_bytes"] != 1000)
        assert await desk.push(make_run()) == [Outcome.STORED]


async def test_chunks_are_recycled_and_the_books_remember(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        pushed = 0
        for _ in range(40):
            await desk.push(make_run(items=10, size=2 * KIB))
            pushed += 10
            await desk.settle(*await desk.take())
        await desk.until_chunks(1)
        assert await desk.totals() == {"accepted": pushed, "delivered": pushed}
    chunks = [name for name in Files(tmp_path).names() if name.endswith(".chunk")]
    assert len(chunks) <= 1
    async with running_spooler(tmp_path) as desk:
        assert await desk.totals() == {"accepted": pushed, "delivered": pushed}


async def test_chunk_with_held_items_is_kept(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await desk.push(make_run("held", items=1))
        for _ in range(20):
            await desk.push(make_run(items=10, size=2 * KIB))
            await desk.settle(*await desk.take())
        await desk.until_chunks(2)
    async with running_spooler(tmp_path) as desk:
        assert await desk.totals("held") == {"accepted": 1, "held": 1, "spooled": 1}


async def test_block_that_rots_on_disk_is_counted_as_lost(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await desk.push(*(make_run(items=count, size=500) for count in (1, 2, 3)))
    (name,) = [name for name in Files(tmp_path).names() if name.endswith(".chunk")]
    rot(tmp_path / name, 64 + 24 + 700 + 24 + 100)
    async with running_spooler(tmp_path) as desk:
        counts: list[int] = []
        while len(counts) < 2:
            counts += [lease.run.head.count for lease in await desk.take()]
        assert counts == [1, 3]
        totals = await desk.totals()
        assert totals == {"accepted": 6, "lost": 2, "held": 4, "running": 4}
    assert list((tmp_path / "quarantine").iterdir())
    async with running_spooler(tmp_path) as desk:
        assert (await desk.totals())["lost"] == 2


async def test_durability_memory_answers_before_the_disk(tmp_path: Path) -> None:
    files = CountingSyncs(tmp_path)
    async with running_spooler(tmp_path, files, durability="memory") as desk:
        await desk.push(make_run(items=1))
        # It was answered before its commit, which may sync too: the first run needs a chunk.
        assert await desk.totals() == {"accepted": 1, "held": 1, "spooled": 1}
        files.may_sync.clear()
        assert await desk.push(make_run(items=2)) == [Outcome.STORED]
        files.may_sync.set()
        assert await desk.totals() == {"accepted": 3, "held": 3, "spooled": 3}


async def test_drop_oldest_drops_nothing_where_that_makes_no_room(tmp_path: Path) -> None:
    """Another queue holds the space: dropping all of this one's runs would not be enough."""
    queues: dict[str, dict[str, Any]] = {"q": {"full_policy": "drop_oldest", "full_timeout": 0}}
    async with running_spooler(tmp_path, queues=queues, max_bytes=128 * KIB) as desk:
        await desk.push(*(make_run("hog", items=1, size=40 * KIB) for _ in range(2)))
        await desk.push(*(make_run(items=1, size=10 * KIB) for _ in range(3)))
        (answer,) = await desk.push(make_run(items=1, size=50 * KIB))
        assert isinstance(answer, Refused)
        assert await desk.totals() == {"accepted": 3, "held": 3, "spooled": 3}


async def test_drop_that_is_undone_while_its_lane_is_read_loses_nothing(tmp_path: Path) -> None:
    reading, go_on = threading.Event(), threading.Event()

    class SlowAndFailing(Files):
        is_failing = False

        def read(self, fd: int, length: int, at: int) -> bytes:
            if threading.current_thread().name != "forebay-commit" and at > 64:
                reading.set()
                go_on.wait(HANG_S)
            return super().read(fd, length, at)

        def write(self, fd: int, parts: Sequence[bytes], at: int) -> None:
            if self.is_failing and threading.current_thread().name == "forebay-commit":
                raise OSError(5, "broken")
            super().write(fd, parts, at)

    files = SlowAndFailing(tmp_path)
    queues: dict[str, dict[str, Any]] = {"q": {"full_policy": "drop_oldest"}}
    async with running_spooler(tmp_path, files, queues, max_size=4) as desk:
        await desk.push(*(make_run(items=count) for count in (1, 2, 3, 4)))
        taken: list[int] = []

        async def take_all() -> None:
            taken.extend(lease.run.head.count for lease in await desk.take_runs(4))

        async with trio.open_nursery() as nursery:
            files.is_failing = True
            (sequence,) = await desk.submit([make_run(items=9)])
            nursery.start_soon(take_all)
            await trio.to_thread.run_sync(reading.wait, HANG_S)
            await desk.inbox.wait_for(5)
            assert isinstance(desk.inbox.answers[sequence], Refused)
            files.is_failing = False
            go_on.set()
        assert sorted(taken) == [1, 2, 3, 4]
        assert await desk.totals() == {"accepted": 10, "held": 10, "running": 10}


async def test_id_of_a_run_that_is_being_stored_is_not_remembered_yet(tmp_path: Path) -> None:
    """A chunk is freed while a commit is under way, and the daemon dies before it is done."""
    files = CountingSyncs(tmp_path)
    stored, unstored = make_run(items=10, size=6 * KIB), make_run(items=2)
    async with running_spooler(tmp_path, files) as desk:
        await desk.push(stored, make_run(items=10, size=6 * KIB))
        await desk.settle(*await desk.take_runs(2))
        await desk.totals()
        files.may_sync.clear()
        await desk.submit([unstored])
        await eventually((tmp_path / "recent").exists)
        remembered = read_recent(files)
        files.may_sync.set()
    assert stored[0].run_id in remembered
    assert unstored[0].run_id not in remembered


async def test_quarantine_that_was_cleared_away_stops_nothing(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        (tmp_path / "quarantine").rmdir()
        for _ in range(10):
            await desk.push(make_run(items=10, size=2 * KIB))
            await desk.settle(*await desk.take())
        await desk.until_chunks(1)


async def test_low_disk_gives_up_its_spares(tmp_path: Path) -> None:
    class Small(Files):
        free = 1 << 40

        def free_bytes(self) -> int:
            return Small.free

    async with running_spooler(tmp_path, Small(tmp_path), min_free_bytes=1 << 20) as desk:
        await desk.until(lambda report: report["spool"]["spare_chunks"])
        Small.free = 1000
        await desk.until(lambda report: not report["spool"]["spare_chunks"])
    assert not [name for name in Files(tmp_path).names() if name.startswith("spare-")][1:]


async def test_unreadable_block_keeps_its_own_bytes_aside_and_no_more(tmp_path: Path) -> None:
    async with running_spooler(tmp_path) as desk:
        await desk.push(*(make_run(items=1, size=500) for _ in range(20)))
    (name,) = [name for name in Files(tmp_path).names() if name.endswith(".chunk")]
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[:64] + bytes(len(data) - 64))
    async with running_spooler(tmp_path) as desk, trio.open_nursery() as nursery:
        nursery.start_soon(desk.take)
        await desk.until(lambda report: report["queues"]["q"]["lost"] == 20)
        nursery.cancel_scope.cancel()
    kept = sum(path.stat().st_size for path in (tmp_path / "quarantine").iterdir())
    assert kept <= len(data)


def rot(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"rot")
