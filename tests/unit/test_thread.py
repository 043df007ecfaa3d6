"""A thread of one's own: results, errors, order, and no cancellation in the middle."""

import threading
from collections.abc import Iterator

import pytest
import trio

from actors.thread import OwnThread


@pytest.fixture
def thread() -> Iterator[OwnThread]:
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
