"""The bridge to asyncio: outcomes, cancels, deadlines and the end, without any server."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.ports.tiers import StoreUnavailable
from daemon.stores.bridge import ANSWER_S, Bridge, BridgeStopped, TooSlow


@pytest.fixture
async def bridge() -> AsyncIterator[Bridge]:
    async with Bridge() as bridge:
        yield bridge


class Work:
    """Something in the loop that a test can look at from trio."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.finish = asyncio.Event()
        self.was_cancelled = False
        self.loop: asyncio.AbstractEventLoop | None = None

    async def run(self, *, goes_on: bool = False) -> str:
        self.loop = asyncio.get_running_loop()
        self.begun.set()
        try:
            await self.finish.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            if not goes_on:
                raise
        return "done"

    async def has_begun(self) -> None:
        await trio.to_thread.run_sync(self.begun.wait)

    def let_finish(self) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.finish.set)


async def test_results_and_exceptions_come_back(bridge: Bridge) -> None:
    async def add(left: int, right: int) -> int:
        await asyncio.sleep(0)
        return left + right

    async def fail() -> None:
        raise ZeroDivisionError("in the loop")

    assert await bridge.run(lambda: add(1, 2), 60) == 3
    with pytest.raises(ZeroDivisionError, match="in the loop"):
        await bridge.run(fail, 60)


async def test_awaitables_that_are_no_coroutines_are_fine_and_so_is_a_call_that_raises(
    bridge: Bridge,
) -> None:
    class Awaitable:
        def __await__(self) -> Any:
            yield from asyncio.sleep(0).__await__()
            return "awaited"

    def broken() -> Any:
        raise KeyError("before anything is awaited")

    assert await bridge.run(Awaitable, 60) == "awaited"
    with pytest.raises(KeyError):
        await bridge.run(broken, 60)


async def test_a_cancel_is_forwarded_and_waited_for(bridge: Bridge) -> None:
    work = Work()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bridge.run, work.run, 60)
        await work.has_begun()
        nursery.cancel_scope.cancel()
    assert work.was_cancelled


async def test_work_that_finishes_though_cancelled_is_reported(bridge: Bridge) -> None:
    work = Work()
    got: list[str] = []

    async def caller() -> None:
        got.append(await bridge.run(lambda: work.run(goes_on=True), 60))
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller)
        await work.has_begun()
        nursery.cancel_scope.cancel()
    assert got == ["done"]


async def test_nothing_is_begun_by_a_caller_that_is_cancelled_already(bridge: Bridge) -> None:
    work = Work()
    with trio.CancelScope() as scope:
        scope.cancel()
        await bridge.run(work.run, 60, shield=True)
    assert scope.cancelled_caught
    assert not work.begun.is_set()


async def test_shielded_work_is_carried_through(bridge: Bridge) -> None:
    work = Work()
    got: list[str] = []

    async def caller() -> None:
        got.append(await bridge.run(work.run, 60, shield=True))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller)
        await work.has_begun()
        nursery.cancel_scope.cancel()
        work.let_finish()
    assert got == ["done"]
    assert not work.was_cancelled


@pytest.mark.parametrize("shield", [False, True])
async def test_a_deadline_cancels_the_work(
    bridge: Bridge, shield: bool, mock_clock: MockClock
) -> None:
    work = Work()

    async def caller() -> None:
        with pytest.raises(TooSlow, match="within 10 s"):
            await bridge.run(work.run, 10, shield=shield)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller)
        await work.has_begun()
        mock_clock.jump(10)
    assert work.was_cancelled
    assert issubclass(TooSlow, StoreUnavailable)


async def test_a_result_that_comes_with_the_deadline_is_a_result(
    bridge: Bridge, mock_clock: MockClock
) -> None:
    work = Work()
    got: list[str] = []

    async def caller() -> None:
        got.append(await bridge.run(lambda: work.run(goes_on=True), 10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller)
        await work.has_begun()
        mock_clock.jump(10)
    assert got == ["done"]


async def test_a_loop_that_is_stuck_is_not_waited_for(
    bridge: Bridge, mock_clock: MockClock
) -> None:
    stuck, free = threading.Event(), threading.Event()

    async def block() -> None:
        stuck.set()
        free.wait()

    async def out_of_time() -> None:
        with pytest.raises(TooSlow, match="does not answer"):
            await bridge.run(block, 10)

    async def cancelled() -> None:
        with pytest.raises(TooSlow), trio.move_on_after(10):
            await bridge.run(block, 60)

    try:
        for caller in (out_of_time, cancelled):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(caller)
                await trio.to_thread.run_sync(stuck.wait)
                await wait_all_tasks_blocked()
                mock_clock.jump(10)
                await wait_all_tasks_blocked()
                mock_clock.jump(ANSWER_S)
    finally:
        free.set()
    assert await bridge.run(lambda: asyncio.sleep(0, "works again"), 60) == "works again"


async def test_many_run_at_once(bridge: Bridge) -> None:
    got: list[int] = []

    async def one(number: int) -> None:
        got.append(await bridge.run(lambda: asyncio.sleep(0, number), 60))

    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(one, number)
    assert sorted(got) == list(range(200))


async def test_callbacks_reach_trio(bridge: Bridge) -> None:
    heard = trio.Event()

    async def call_back() -> None:
        asyncio.get_running_loop().call_soon(bridge.call_in_trio, heard.set)

    await bridge.run(call_back, 60)
    await heard.wait()


async def test_closing_ends_what_is_under_way() -> None:
    bridge, work = Bridge(), Work()
    await bridge.open()
    ended: list[BaseException] = []

    async def caller() -> None:
        try:
            await bridge.run(work.run, 60, shield=True)
        except BridgeStopped as error:
            ended.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller)
        await work.has_begun()
        await bridge.close()
    assert work.was_cancelled
    assert len(ended) == 1
    with pytest.raises(BridgeStopped):
        await bridge.run(work.run, 60)
    await bridge.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "asyncio"]
