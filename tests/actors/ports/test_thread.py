"""A thread of one's own: results, errors, order, and no cancellation in the middle."""

import threading
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from actors.ports.thread import OwnThread


@pytest.fixture
async def thread() -> AsyncIterator[OwnThread]:
    own = OwnThread("test-own")
    own.start()
    yield own
    own.stop()


async def test_call_runs_in_the_thread_and_returns(thread: OwnThread) -> None:
    assert await thread.call(lambda: threading.current_thread().name) == "test-own"


async def test_call_raises_what_the_work_raised(thread: OwnThread) -> None:
    def fail() -> None:
        raise OSError(5, "no")

    with pytest.raises(OSError, match="no"):
        await thread.call(fail)
    assert await thread.call(lambda: 1) == 1


async def test_cancelled_caller_still_gets_the_result(thread: OwnThread) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        go_on.wait()
        return "done"

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            results = []

            async def call() -> None:
                results.append(await thread.call(work))

            nursery.start_soon(call)
            await trio.to_thread.run_sync(begun.wait)
            scope.cancel()
            go_on.set()
    assert results == ["done"]


async def test_work_is_done_in_order_and_waited_for_in_any(thread: OwnThread) -> None:
    done: list[int] = []
    jobs = [thread.submit(lambda order=order: done.append(order)) for order in range(5)]  # type: ignore[misc]
    for job in reversed(jobs):
        await job.wait()
    assert done == [0, 1, 2, 3, 4]


async def test_everyone_who_waits_gets_their_own_result(thread: OwnThread) -> None:
    results: dict[int, int] = {}

    async def call(number: int) -> None:
        results[number] = await thread.call(lambda: number * number)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(call, number)
    assert results == {number: number * number for number in range(20)}


async def test_work_that_nobody_waits_for_is_done_before_the_thread_stops() -> None:
    own = OwnThread("test-own")
    own.start()
    done: list[str] = []
    own.submit(lambda: done.append("first"))
    await own.call(lambda: done.append("second"))
    own.submit(lambda: done.append("third"))
    own.stop()
    assert done == ["first", "second", "third"]
    # Its listener has ended too: whatever has the descriptor's number now is left alone.
    await trio.testing.wait_all_tasks_blocked()
