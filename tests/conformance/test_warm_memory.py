"""The warm queue of this process: the port's suite, the model's scripts, and what it has beyond."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

pytest.register_assert_rewrite(
    "tests.conformance.warm_rig",
    "tests.conformance.warm_places",
    "tests.conformance.warm_leases",
    "tests.conformance.warm_moves",
    "tests.conformance.warm_waits",
    "tests.conformance.warm_steps",
    "tests.conformance.warm_scripts",
)

from actors.model.slices import InJournal  # noqa: E402
from actors.ports.tiers import Ending, Fill, Limits, WarmQueue  # noqa: E402
from actors.tiers.warm import MemoryWarm  # noqa: E402
from tests.conformance import warm_steps  # noqa: E402
from tests.conformance.warm_rig import (  # noqa: E402
    LEASE_S,
    PLENTY,
    START_MS,
    Check,
    Rig,
    in_journal,
    in_row,
    lease_all,
    make_run,
    part,
    places,
    waiting,
    whole,
)
from tests.conformance.warm_scripts import Player, Step, scripts  # noqa: E402
from tests.conformance.warm_suite import CHECKS  # noqa: E402


class MemoryRig(Rig):
    """Its time is trio's, which jumps only when all wait and something must happen."""

    patience_s = 5.0

    def __init__(self, clock: MockClock, bytes_max: int | None = None) -> None:
        self._clock = clock
        self._ahead_ms = 0
        self.memory = MemoryWarm(bytes_max, self.now_ms, self.steady_ms)

    @property
    def warm(self) -> WarmQueue:
        return self.memory

    def owner(self, number: int) -> InJournal:
        return in_journal(number)

    def now_ms(self) -> int:
        return self.steady_ms() + self._ahead_ms

    def steady_ms(self) -> int:
        return START_MS + 3_600_000 + round(trio.current_time() * 1000)

    async def advance(self, ms: int) -> None:
        self._clock.jump(ms / 1000)

    def step(self, ms: int) -> None:
        self._ahead_ms += ms

    async def settle(self) -> None:
        await wait_all_tasks_blocked()


@asynccontextmanager
async def waiting_change(warm: MemoryWarm, queue: str = "q") -> AsyncIterator[trio.Event]:
    async with trio.open_nursery() as nursery:
        done = trio.Event()

        async def wait() -> None:
            await warm.wait_change(queue)
            done.set()

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        yield done
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("check", [*CHECKS, *warm_steps.CHECKS], ids=lambda check: check.__name__)
async def test_memory_warm(check: Check, autojump_clock: MockClock) -> None:
    await check(MemoryRig(autojump_clock))


@settings(deadline=None, max_examples=80)
@given(scripts, st.sampled_from([None, 1, 900, 2000]))
def test_memory_warm_agrees_with_the_model(script: list[Step], bytes_max: int | None) -> None:
    clock = MockClock(autojump_threshold=0)

    async def play() -> None:
        await Player(MemoryRig(clock, bytes_max), bytes_max).play(script)

    trio.run(play, clock=clock)


async def test_methods_do_not_yield(autojump_clock: MockClock) -> None:
    """A cancelled caller has done all of it."""
    rig = MemoryRig(autojump_clock)
    warm = rig.memory
    with trio.CancelScope() as scope:
        scope.cancel()
        await warm.enter("q", [whole(make_run(1, 4))], PLENTY)
        [leased] = await warm.lease("q", 2, 10**9, LEASE_S)
        await warm.extend("q", [leased.token], LEASE_S)
        await warm.end("q", [Ending(leased.token)])
        await warm.expire()
        assert (await warm.fill("q")).items == 2
        assert places(await warm.withdraw("q")) == [(1, 2, 4)]
        assert await warm.fills() == {}
    assert not scope.cancelled_caught


async def test_withdraw_takes_a_flow_or_positions_or_both(autojump_clock: MockClock) -> None:
    rig = MemoryRig(autojump_clock)
    soon_ms = rig.now_ms() + 1000
    slices = [
        whole(make_run(1, 1, flow="a")),
        whole(make_run(2, 1, flow="b")),
        whole(make_run(3, 1, flow="a"), due_ms=soon_ms),
        whole(make_run(4, 1, flow="b"), due_ms=soon_ms),
        whole(make_run(5, 1, flow="a", owner=in_row(5))),
        whole(make_run(6, 1, flow="a")),
    ]
    await rig.memory.enter("q", slices, PLENTY)
    withdraw = rig.memory.withdraw
    assert await withdraw("q", positions=range(7, 99)) == []
    assert places(await withdraw("q", "a", range(2, 6))) == [(3, 0, 1)]
    assert places(await withdraw("q", positions=range(1, 3))) == [(1, 0, 1), (2, 0, 1)]
    assert (await rig.memory.fill("q")).cold_items == 1
    assert places(await withdraw("q", flow="a")) == [(5, 0, 1), (6, 0, 1)]
    fill = await rig.memory.fill("q")
    assert (fill.items, fill.scheduled, fill.cold_items) == (1, 1, 0)


async def test_tokens_differ_between_warm_queues_of_a_process(autojump_clock: MockClock) -> None:
    rig = MemoryRig(autojump_clock)
    other = MemoryWarm(now_ms=rig.now_ms)
    for warm in (rig.memory, other):
        await warm.enter("q", [whole(make_run(1, 1))], PLENTY)
    [one], [two] = await lease_all(rig.memory), await lease_all(other)
    assert one.token != two.token


async def test_cancelled_waiter_takes_no_news_with_it(autojump_clock: MockClock) -> None:
    rig = MemoryRig(autojump_clock)
    warm = rig.memory
    async with waiting(rig) as done:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(warm.wait, "q")
                await rig.settle()
                await warm.enter("q", [whole(make_run(1, 1))], PLENTY)
                scope.cancel()
        await rig.settle()
        assert done.is_set()


async def test_waiter_is_woken_even_if_another_leases_without_its_flow(
    autojump_clock: MockClock,
) -> None:
    rig = MemoryRig(autojump_clock)
    warm = rig.memory
    async with waiting(rig) as done:
        await warm.enter("q", [whole(make_run(1, 1, flow="f"))], PLENTY)
        assert await warm.lease("q", 1, 10**9, LEASE_S, frozenset("f")) == []
        await rig.settle()
        assert done.is_set()


async def test_waiter_sleeps_until_the_next_is_due_and_not_longer(
    autojump_clock: MockClock,
) -> None:
    rig = MemoryRig(autojump_clock)
    warm = rig.memory
    due_ms = rig.now_ms() + 3210
    await warm.enter("q", [whole(make_run(1, 1), due_ms=due_ms)], PLENTY)
    assert await lease_all(warm) == []
    await warm.wait("q")
    assert rig.now_ms() == due_ms


async def test_waiter_notices_that_the_time_was_set(autojump_clock: MockClock) -> None:
    time_ms = START_MS
    warm = MemoryWarm(now_ms=lambda: time_ms)
    await warm.enter("q", [whole(make_run(1, 1), due_ms=START_MS + 60_000)], PLENTY)
    assert await lease_all(warm) == []
    with trio.fail_after(2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(warm.wait, "q")
            await wait_all_tasks_blocked()
            time_ms += 60_000


async def test_wait_change_returns_when_the_fill_has_fallen(autojump_clock: MockClock) -> None:
    rig = MemoryRig(autojump_clock)
    warm = rig.memory
    await warm.enter("q", [whole(make_run(1, 4))], PLENTY)
    [leased] = await warm.lease("q", 2, 10**9, LEASE_S)
    async with waiting_change(warm) as done:
        await warm.enter("q", [whole(make_run(2, 4))], PLENTY)
        await warm.end("q", [Ending(leased.token, (leased.slice,))])
        await rig.settle()
        assert not done.is_set()
        [leased] = await warm.lease("q", 2, 10**9, LEASE_S)
        await warm.end("q", [Ending(leased.token, (part(leased.slice.run, 0, 1),))])
        await rig.settle()
        assert done.is_set()
    async with waiting_change(warm) as done:
        await warm.withdraw("q")
        await rig.settle()
        assert done.is_set()


async def test_cap_holds_for_all_queues_together(autojump_clock: MockClock) -> None:
    rig = MemoryRig(autojump_clock)
    run = make_run(1, 10)
    warm = MemoryWarm(bytes_max=10 * run.item_bytes, now_ms=rig.now_ms)
    assert (await warm.enter("a", [part(run, 0, 8)], PLENTY)).rest == []
    assert places((await warm.enter("b", [whole(make_run(2, 10))], PLENTY)).rest) == [(2, 2, 10)]
    # The cap is reached: a queue that has something waits, one that has nothing gets one item.
    assert places((await warm.enter("a", [part(run, 8, 10)], PLENTY)).rest) == [(1, 8, 10)]
    assert (await warm.enter("c", [whole(make_run(3, 10))], PLENTY)).fill.items == 1
    assert (await warm.enter("d", [whole(run)], Limits(0, 10**9))).fill == Fill()


async def test_who_was_held_up_by_the_cap_hears_of_room_elsewhere(
    autojump_clock: MockClock,
) -> None:
    rig = MemoryRig(autojump_clock)
    run = make_run(1, 10)
    warm = MemoryWarm(bytes_max=10 * run.item_bytes, now_ms=rig.now_ms)
    await warm.enter("other", [part(run, 0, 9)], PLENTY)
    await warm.enter("calm", [part(run, 9, 10)], PLENTY)
    assert (await warm.enter("q", [whole(make_run(2, 10))], PLENTY)).rest
    async with waiting_change(warm) as done, waiting_change(warm, "calm") as calm_done:
        await warm.withdraw("other")
        await rig.settle()
        assert done.is_set()
        assert not calm_done.is_set()
