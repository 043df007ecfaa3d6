"""A thread of an actor's own, for blocking work, one call at a time.

Calls run in the order they are submitted. The actor may go on between `submit` and `wait`. Waiting
cannot be cancelled: a thread cannot be stopped, and the caller always gets the result or the
exception.

The thread signals through an eventfd that work is done. A system task of trio listens all the time
and wakes the task that waits for the work: the round trip takes 75 to 90 µs next to other work, and
20 µs more if each waiter listens to the eventfd directly. What counts is how soon the actor's
thread sleeps after it has handed the work over: until then it holds the interpreter lock, and the
other thread waits for it. trio's `run_sync_soon` takes 40 µs more, its thread pool 70.

Tried and rejected: answering a client from the work thread, so that the actor's wake-up does not
count. Pushes of one item took 85 µs longer: three threads then want two cores and one interpreter
at the same moment.
"""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import outcome
import trio

P = ParamSpec("P")
T = TypeVar("T")


class ThreadJob(Generic[T]):
    """Work that was submitted to the thread."""

    __slots__ = ("_result", "_work", "waiter")

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: outcome.Maybe[T] | None = None
        self.waiter: trio.lowlevel.Task | None = None

    def run(self) -> None:
        """Runs in the thread."""
        self._result = outcome.capture(self._work)

    async def wait(self) -> T:
        """The result, or the exception; call it once."""
        if self._result is None:
            self.waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(_carry_on)
            self.waiter = None
        assert self._result is not None
        return self._result.unwrap()


class OwnThread:
    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[ThreadJob[Any] | None] = queue.SimpleQueue()
        self._done: deque[ThreadJob[Any]] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._done_fd = -1
        self._is_stopped = False

    def start(self) -> None:
        """Call it in trio, which listens to the thread from then on."""
        self._done_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        trio.lowlevel.spawn_system_task(self._listen)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the submitted work. No task may wait for any of it by then."""
        self._work.put(None)
        self._thread.join()
        self._is_stopped = True
        trio.lowlevel.notify_closing(self._done_fd)
        os.close(self._done_fd)

    def submit(self, work: Callable[[], T]) -> ThreadJob[T]:
        """Starts `work` after all earlier submissions."""
        job = ThreadJob(work)
        self._work.put(job)
        return job

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `work` in the thread and waits for it."""
        return await self.submit(lambda: work(*args, **kwargs)).wait()

    def _run(self) -> None:
        while (job := self._work.get()) is not None:
            job.run()
            self._done.append(job)
            os.eventfd_write(self._done_fd, 1)

    async def _listen(self) -> None:
        """A system task of trio: it ends with the thread, or with the run."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._done_fd)
                if self._is_stopped:
                    # It was woken for a job that is already reported; the descriptor is closed.
                    return
                os.eventfd_read(self._done_fd)
                while self._done:
                    job = self._done.popleft()
                    if job.waiter is not None:
                        trio.lowlevel.reschedule(job.waiter)
        except trio.ClosedResourceError:
            return


def _carry_on(_: Callable[[], object]) -> trio.lowlevel.Abort:
    """Refuses cancellation: a cancelled task waits all the same."""
    return trio.lowlevel.Abort.FAILED
