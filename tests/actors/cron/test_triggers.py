"""The actor of QUEUE triggers on a real store and a clock that the test moves.

Tests name the clock themselves: pytest-trio uses one that the test asks for, and no fixture's.
"""

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from actors.config.book import Kept
from actors.config.triggers import Hold, KeptTriggers, QueueTrigger
from actors.cron.trigger_ports import TriggerPorts
from actors.cron.trigger_watch import BACKOFF_S_MAX, LEASE_S, LIVE_S, LOOK_S, backoff_s
from actors.cron.triggers import Triggers
from actors.model.books import ColdReceipt
from actors.ports.tiers import (
    ColdItems,
    ColdTotals,
    RowOutcome,
    StoreCorrupt,
    StoreUnavailable,
)
from actors.ports.trigger_jobs import Claim, Poll, TriggerLease, TriggerStore, fate_of, next_step
from daemon.state.kept_file import TRIGGERS, KeptFile, from_text, to_text
from forebay.errors import Refused
from tests.conformance.cold_stores import new_row, put
from tests.conformance.cold_triggers import finish_job
from tests.conformance.sqlite_stores import SqliteStores

TEN = {"type": "QUEUE", "queue": "q", "target": "jobs", "batch_size": 5}
"""Each ten seconds."""
ME, OTHER = b"me", b"another"


def check(trigger: QueueTrigger) -> int:
    if trigger.target == "nobody":
        raise Refused("NOT_FOUND", "there is no queue nobody")
    return 5


class Stores(SqliteStores):
    @property
    def triggers(self) -> TriggerStore:
        return self.cold.triggers

    @property
    def items(self) -> ColdItems:
        return self.cold.items


class Neighbours(TriggerPorts):
    """Writes down what the triggers ask for."""

    def __init__(self, world: "World") -> None:
        self._world = world

    async def hold(self, queue: str, consumer: str) -> None:
        if self._world.is_away:
            raise StoreUnavailable("away")
        if queue == "damaged":
            raise StoreCorrupt("its rows contradict each other")
        self._world.held.add((queue, consumer))

    async def drop(self, queue: str, consumer: str) -> None:
        self._world.dropped.append((queue, consumer))
        self._world.held.discard((queue, consumer))

    def consumers(self) -> list[tuple[str, str]]:
        return self._world.known

    async def clear(self, _: str) -> None:
        self._world.cleared += 1

    def except_flows(self, _: str) -> frozenset[str] | None:
        return None if self._world.is_paused else frozenset()

    def has_come(self, queue: str) -> None:
        self._world.come.append(queue)

    async def withdraw(self, item_id: str) -> None:
        world = self._world
        world.asked.append(item_id)
        if item_id in world.in_hand:
            world.clock.jump(0.5)
            raise Refused("CONFLICT", "a worker has it")
        (row,) = await world.stores.cold.acquire("jobs", b"W" * 16, 1, 1 << 30, 60.0)
        await world.stores.cold.items.delete(row.row, row.bits, b"W" * 16)

    def failed(self, name: str, queue: str, error: str) -> None:
        self._world.failures.append((name, error))

    def retries_max(self, _: str) -> int:
        return self._world.retries_max

    def dead(self, queue: str, error: str, items: int, ids: Sequence[str]) -> None:
        self._world.dead.append((queue, items))


class World:
    """Lives of a daemon; what the actor asks of its neighbours is written down."""

    def __init__(self, directory: Path, clock: MockClock) -> None:
        self.stores = Stores(directory)
        self.clock = clock
        self.kept = KeptTriggers()
        self.held: set[tuple[str, str]] = set()
        self.known: list[tuple[str, str]] = []
        """Consumers that were there when a life began."""
        self.dropped: list[tuple[str, str]] = []
        self.come: list[str] = []
        self.failures: list[tuple[str, str]] = []
        self.dead: list[tuple[str, int]] = []
        self.retries_max = 8
        self.in_hand: set[str] = set()
        self.asked: list[str] = []
        """Jobs that were to be taken back."""
        self.is_paused = False
        self.is_away = False
        self.is_full = False
        self.cleared = 0

    def triggers(self, daemon: bytes = ME, **configured: dict[str, Any]) -> Triggers:
        """Another life."""

        async def save(kept: KeptTriggers) -> None:
            if self.is_full:
                raise OSError("no room")
            self.kept, rejected = from_text(to_text(kept), KeptTriggers)
            assert not rejected

        settings = {name: QueueTrigger.model_validate(keys) for name, keys in configured.items()}
        kept = Kept(self.kept, save)
        return Triggers(settings, kept, check, self.stores.triggers, daemon, Neighbours(self))

    def passes(self, seconds: float) -> None:
        self.stores.advance(round(seconds * 1000))
        self.clock.jump(seconds)

    async def push(self, items: int) -> None:
        await put(self.stores, new_row(items))

    async def books(self, queue: str = "q") -> tuple[int, int]:
        totals = (await self.stores.cold.totals()).get(queue, ColdTotals())
        return totals.held, totals.delivered

    async def begins(self) -> None:
        """Another life of the process."""
        await self.stores.cold.sync()
        await self.stores.crash()
        self.known = await self.stores.cold.streams()

    async def jobs(self) -> int:
        return len((await self.stores.triggers.jobs()).jobs)


@pytest.fixture
async def world(tmp_path: Path, mock_clock: MockClock) -> AsyncIterator[World]:
    world = World(tmp_path, mock_clock)
    await world.stores.cold.open()
    yield world
    await world.stores.cold.close()


async def test_a_queue_is_polled_at_its_interval_and_items_end_with_their_job(
    world: World, mock_clock: MockClock
) -> None:
    triggers = world.triggers(t=TEN)
    await triggers.look()
    assert world.held == {("q", "trigger/t")}
    await world.push(12)
    world.passes(LIVE_S)
    for delivered in (5, 10, 12):
        world.passes(8.9)
        await triggers.look()
        assert await world.jobs() == 0
        world.passes(0.1)
        await triggers.look()
        assert world.come.pop() == "jobs"
        assert (await world.books())[1] < delivered
        await finish_job(world.stores)
        assert await world.books() == (12 - delivered, delivered)
        world.passes(LIVE_S)
        await triggers.look()
        # The next poll is ten seconds after the last one, not after its job's end.
        assert await world.jobs() == 0
    assert triggers.figures() == {
        "triggers": 1,
        "jobs": 0,
        "jobs_total": 3,
        "items_total": 12,
        "failed_total": 0,
    }


async def test_no_two_daemons_poll_and_another_goes_on(world: World, mock_clock: MockClock) -> None:
    mine, others = world.triggers(t=TEN), world.triggers(OTHER, t=TEN)
    await mine.look()
    await others.look()
    assert (mine.watch("t").is_ours, others.watch("t").is_ours) == (True, False)
    await world.push(3)
    world.passes(10)
    await others.look()
    assert await world.jobs() == 0
    await mine.look()
    world.passes(LOOK_S)
    await others.look()
    assert (len(others.jobs("t")), await world.jobs()) == (1, 1)
    # Mine is gone.
    await finish_job(world.stores)
    assert await world.books() == (0, 3)
    world.passes(LEASE_S)
    await others.look()
    assert others.watch("t").is_ours


async def test_a_trigger_learns_how_its_jobs_ended_that_another_daemon_has_delivered(
    world: World, mock_clock: MockClock
) -> None:
    mine, others = world.triggers(t=TEN), world.triggers(OTHER, t=TEN)
    await mine.look()
    await others.look()
    for is_dead in (True, False):
        await world.push(1)
        assert await mine.run_now("t") is not None
        # The store is the other daemon's: it was made last.
        await finish_job(world.stores, is_dead=is_dead)
        assert (others.watch("t").failures, len(mine.jobs("t"))) == (0, 1)
        world.passes(LOOK_S)
        await mine.look()
        assert (mine.watch("t").failures, mine.jobs("t")) == (int(is_dead), [])
    ((_, error),) = world.failures
    assert "is dead" in error


async def test_a_dead_job_is_told_and_backed_off_until_one_is_done(
    world: World, mock_clock: MockClock
) -> None:
    triggers = world.triggers(t=TEN)
    await triggers.look()
    await world.push(1)
    for failures in (1, 2):
        world.passes(10)
        await triggers.look()
        await finish_job(world.stores, is_dead=True)
        assert len(world.failures) == triggers.watch("t").failures == failures
        assert await world.books() == (1, 0)
        assert "q" in world.come
        # Twice its interval, then four times.
        wait = 10 * 2**failures
        world.passes(LIVE_S)
        await triggers.look()
        for _ in range(wait // 5 - 1):
            world.passes(5)
            await triggers.look()
        assert await world.jobs() == 0
    assert "is dead: its items are given back" in world.failures[0][1]
    world.passes(10)
    await triggers.look()
    await finish_job(world.stores)
    world.passes(LIVE_S)
    await triggers.look()
    assert (triggers.watch("t").failures, triggers.watch("t").error) == (0, "")
    assert await world.books() == (0, 1)


async def test_a_job_that_nobody_begins_is_taken_back_when_its_lease_ends(
    world: World, mock_clock: MockClock
) -> None:
    triggers = world.triggers(t={**TEN, "job_lease": "60s"})
    await world.push(2)
    await triggers.look()
    (job,) = triggers.jobs("t")
    world.in_hand.add(job.id)
    world.passes(61)
    await triggers.look()
    assert (await world.jobs(), world.failures) == (1, [])
    world.in_hand.clear()
    world.passes(LIVE_S)
    await triggers.look()
    assert await world.jobs() == 0
    assert await world.books() == (2, 0)
    assert (await world.books("jobs")) == (0, 0)
    assert "was not done when its lease ended: its items are given back" in world.failures[0][1]


async def test_items_of_jobs_that_stall_are_given_up_in_the_end(
    world: World, mock_clock: MockClock
) -> None:
    world.retries_max = 1
    triggers = world.triggers(t={**TEN, "job_lease": "60s"})
    await world.push(2)
    for dead in (0, 2):
        await triggers.look()
        assert await triggers.run_now("t") is None
        assert await world.jobs() == 1
        world.passes(61)
        await triggers.look()
        assert (await world.stores.cold.totals())["q"].dead == dead
        world.passes(100)
    assert world.dead == [("q", 2)]
    assert "was not done when its lease ended: its items are dead letters" in world.failures[1][1]


async def test_overdue_jobs_that_somebody_has_are_asked_for_in_turn(
    world: World, mock_clock: MockClock
) -> None:
    triggers = world.triggers(t={**TEN, "job_lease": "60s", "batch_size": 1})
    await world.push(7)
    await triggers.look()
    for _ in range(6):
        await triggers.run_now("t")
    world.in_hand = {job.id for job in triggers.jobs("t")}
    world.passes(61)
    for asked in (4, 8):
        await triggers.look()
        # Half a second each, and no longer than two in all: leases must be kept.
        assert len(world.asked) == asked
        world.passes(LIVE_S)
    assert set(world.asked) == world.in_hand


async def test_all_jobs_are_swept_though_a_page_has_one(
    world: World, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = type(world.stores.triggers).jobs
    monkeypatch.setattr(
        type(world.stores.triggers), "jobs", lambda self, after=b"", limit=1: read(self, after, 1)
    )
    triggers = world.triggers(t={**TEN, "batch_size": 1})
    await world.push(3)
    await triggers.look()
    for _ in range(2):
        await triggers.run_now("t")
    assert (len(triggers.jobs("t", 2)), triggers.jobs_by_name()["t"]) == (2, 3)
    rows = await world.stores.cold.acquire("jobs", b"J" * 16, 10, 1 << 30, 60.0)
    await world.stores.cold.settle([RowOutcome(row.row, b"J" * 16, delivered=1) for row in rows])
    world.passes(LIVE_S)
    await triggers.look()
    assert await world.books() == (0, 3)
    assert triggers.jobs_by_name() == {}


async def test_jobs_end_though_this_hosts_disk_is_full(world: World, mock_clock: MockClock) -> None:
    await world.push(2)
    await world.triggers(t=TEN).look()
    await finish_job(world.stores)
    # The trigger is gone, and that its queue is let go cannot be written down.
    world.is_full = True
    await world.triggers().look()
    assert await world.books() == (0, 2)


async def test_what_cannot_be_used_fails_and_waits(world: World, mock_clock: MockClock) -> None:
    triggers = world.triggers(t={**TEN, "target": "nobody"})
    await triggers.look()
    await triggers.look()
    assert world.failures == [("t", "there is no queue nobody")]
    world.passes(20)
    await triggers.look()
    assert len(world.failures) == 2
    with pytest.raises(Refused, match="no queue nobody"):
        await triggers.run_now("t")


async def test_one_that_the_store_cannot_serve_keeps_no_other_waiting(
    world: World, mock_clock: MockClock
) -> None:
    await world.push(1)
    await world.triggers(a={**TEN, "queue": "damaged"}, b=TEN).look()
    assert world.failures == [("a", "its rows contradict each other")]
    assert await world.jobs() == 1


async def test_a_store_that_is_away_is_no_failure_of_the_trigger(
    world: World, mock_clock: MockClock
) -> None:
    triggers = world.triggers(t=TEN)
    world.is_away = True
    await triggers.look()
    world.is_away = False
    await world.push(1)
    await triggers.look()
    assert (await world.jobs(), world.failures) == (1, [])


async def test_paused_disabled_and_paused_queues_claim_nothing(
    world: World, mock_clock: MockClock
) -> None:
    await world.push(1)
    triggers = world.triggers(t={**TEN, "enabled": False})
    await triggers.look()
    assert not triggers.watch("t").is_ours
    triggers = world.triggers(t=TEN)
    await triggers.pause("t", is_paused=True)
    world.passes(10)
    await triggers.look()
    assert (await world.jobs(), triggers.watch("t").is_paused) == (0, True)
    world.is_paused = True
    await triggers.pause("t", is_paused=False)
    assert await world.jobs() == 0
    world.is_paused = False
    world.passes(10)
    await triggers.look()
    assert await world.jobs() == 1


async def test_run_now_polls_whenever(world: World, mock_clock: MockClock) -> None:
    triggers = world.triggers(t=TEN)
    await world.push(7)
    await triggers.look()
    made = await triggers.run_now("t")
    assert made is not None
    assert (made.items, await triggers.run_now("t")) == (2, None)
    with pytest.raises(Refused, match="another daemon runs t"):
        await world.triggers(OTHER, t=TEN).run_now("t")


async def test_a_trigger_that_is_removed_lets_its_queue_go_and_its_jobs_live(
    world: World, mock_clock: MockClock
) -> None:
    triggers = world.triggers()
    await world.push(2)
    await triggers.add("t", TEN)
    assert world.kept.held == {Hold("q", "t")}
    await triggers.remove("t")
    assert (world.held, world.kept.held, await world.jobs()) == (set(), frozenset(), 1)
    await finish_job(world.stores)
    world.passes(LIVE_S)
    await triggers.look()
    assert await world.books() == (0, 2)
    # And one that is gone from the configuration while the daemon was down.
    await world.triggers(t=TEN).look()
    assert world.held
    await world.triggers().look()
    assert world.held == set()


async def test_another_queue_is_held_instead(world: World, mock_clock: MockClock) -> None:
    triggers = world.triggers()
    await triggers.add("t", TEN)
    await triggers.change("t", {"queue": "other"})
    assert world.held == {("other", "trigger/t")}


async def test_jobs_of_earlier_lives_are_ended_and_their_streams_forgotten(
    world: World, mock_clock: MockClock
) -> None:
    await world.push(2)
    await world.triggers(t=TEN).look()
    await world.begins()
    triggers = world.triggers(t=TEN)
    await triggers.look()
    assert world.dropped == []
    await finish_job(world.stores)
    assert await world.books() == (0, 2)
    world.passes(LIVE_S)
    await triggers.look()
    assert [consumer.partition("/")[0] for _, consumer in world.dropped] == ["trigger-job"]


async def test_a_job_that_another_daemon_ends_keeps_no_queue_in_stream_mode_here(
    world: World, mock_clock: MockClock
) -> None:
    await world.push(2)
    await world.triggers(OTHER, t=TEN).look()
    await world.begins()
    others, mine = world.triggers(OTHER, t=TEN), world.triggers(t=TEN)
    await others.look()
    await mine.look()
    await finish_job(world.stores)
    world.passes(LIVE_S)
    await others.look()
    assert await world.jobs() == 0
    world.dropped.clear()
    world.passes(LOOK_S)
    await mine.look()
    assert [consumer.partition("/")[0] for _, consumer in world.dropped] == ["trigger-job"]


async def test_jobs_of_another_daemon_are_not_read_each_second(
    world: World, mock_clock: MockClock
) -> None:
    await world.push(2)
    others, mine = world.triggers(OTHER, t=TEN), world.triggers(t=TEN)
    await others.look()
    await mine.look()
    await finish_job(world.stores)
    world.passes(LIVE_S)
    await others.look()
    await mine.look()
    # Seen a second ago, and not looked for since.
    assert (others.jobs("t"), len(mine.jobs("t"))) == ([], 1)


async def test_nothing_more_is_claimed_while_the_daemon_drains_and_jobs_still_end(
    world: World, mock_clock: MockClock
) -> None:
    triggers = world.triggers(t=TEN)
    await world.push(7)
    await triggers.look()
    triggers.drain()
    await finish_job(world.stores)
    for _ in range(4):
        world.passes(5)
        await triggers.look()
    assert (await world.jobs(), await world.books()) == (0, (2, 5))
    with pytest.raises(Refused, match="shutting down"):
        await triggers.run_now("t")


async def test_circles_are_refused_and_one_that_a_reload_closes_makes_no_jobs(
    world: World, mock_clock: MockClock
) -> None:
    back = {**TEN, "queue": "jobs", "target": "q"}
    triggers = world.triggers(t=TEN)
    await triggers.add("on", {**TEN, "queue": "jobs", "target": "further"})
    with pytest.raises(Refused, match="come back to the queue that they were made of: back, on, t"):
        await triggers.add("back", {**back, "queue": "further"})
    await triggers.remove("on")
    triggers = world.triggers()
    await triggers.add("back", back)
    await world.push(2)
    await triggers.reload({"t": QueueTrigger.model_validate(TEN)})
    await triggers.look()
    assert {name for name, _ in world.failures} == {"back", "t"}
    assert await world.jobs() == 0
    with pytest.raises(Refused, match="come back"):
        await triggers.run_now("t")
    # Without the other one it is no circle.
    await triggers.remove("back")
    assert await triggers.run_now("t") is not None


async def test_the_book_refuses_what_cannot_be(world: World, mock_clock: MockClock) -> None:
    triggers = world.triggers(t=TEN)
    for name, keys, message in (
        ("t", TEN, "there is a trigger t already"),
        ("x", {**TEN, "target": "q"}, "queue and target are the same"),
        ("x", {**TEN, "batch_size": 0}, "outside 1..10000"),
        ("x", {**TEN, "headers": {"trigger": "x"}}, "is set by forebay"),
        ("x" * 91, TEN, "at most 90 characters"),
        ("x", {**TEN, "target": "nobody"}, "there is no queue nobody"),
    ):
        with pytest.raises(Refused, match=message):
            await triggers.add(name, keys)
    with pytest.raises(Refused, match="change it there"):
        await triggers.remove("t")
    assert world.kept == KeptTriggers()


async def test_the_file_is_kept_aside_if_it_makes_no_sense(tmp_path: Path) -> None:
    kept = KeptTriggers({"t": TEN}, frozenset({Hold("q", "t")}))
    file = KeptFile(tmp_path / TRIGGERS, KeptTriggers())
    await file.save(kept)
    assert file.load() == kept
    (tmp_path / "triggers.json").write_text("{}")
    assert file.load() == KeptTriggers()
    assert file.load() == KeptTriggers()
    (aside,) = os.listdir(tmp_path)
    assert aside.startswith("triggers.json.damaged-")


def test_the_wait_doubles_up_to_a_limit_and_is_never_shorter_than_the_interval() -> None:
    assert [backoff_s(10, n) for n in range(4)] == [0, 20, 40, 80]
    assert backoff_s(10, 10**6) == BACKOFF_S_MAX
    assert backoff_s(3600, 1) == 3600
    assert backoff_s(0.1, 1) == 2


def test_a_lease_is_kept_and_taken_over_in_time() -> None:
    claim = Claim("q", "jobs", 1, 1, 5, b"r" * 16)
    poll = Poll("t", ME, 30.0, 10_000, claim)
    assert next_step(None, poll, 100_000)[:3] == (True, True, True)
    mine, others = TriggerLease(ME, 130_000, 95_000), TriggerLease(OTHER, 130_000, 95_000)
    assert next_step(mine, poll, 100_000) == (True, False, False, 5.0)
    assert next_step(mine, poll, 105_000)[:2] == (True, True)
    assert next_step(mine, poll, 116_000).is_to_keep
    assert next_step(others, poll, 129_999).is_ours is False
    assert next_step(others, poll, 130_000).is_ours is True
    # A clock that was set back keeps nobody away for longer than a lease.
    assert next_step(others, poll, 50_000)[:2] == (True, True)


def test_a_receipt_says_one_thing_of_a_job() -> None:
    assert fate_of(ColdReceipt()) is None
    assert fate_of(ColdReceipt(delivered=1)) == "done"
    assert fate_of(ColdReceipt(dead=1)) == "dead"
    assert fate_of(ColdReceipt(deleted=1)) == "deleted"
    assert fate_of(ColdReceipt(lost=1)) == "unreadable"
