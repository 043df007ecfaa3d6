"""The python handler: calls a function, in the daemon's loop, in a thread, or in a process.

The function is imported once, when the handler is opened, so that a wrong name is reported before
anything is delivered. A function for one item is called for each item of a batch in turn, all in
one hop; items done before a failure or the deadline stay delivered.

A thread cannot be stopped. At the deadline its item and those after it fail and will be retried,
while the function may still be at work on that one item, and may even finish it; its result is
ignored then. It is called for no further item. A sender may have one such thread besides a working
one; beyond that its sends fail until a thread returns. A process is killed at the deadline instead:
see process.py.

On cancel: an async function is cancelled, a thread is left behind as at a deadline.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import trio

from actors.config.handlers import PythonHandler
from actors.model.outcomes import Failure, Report
from actors.model.slices import Slice
from actors.model.units import format_duration
from actors.ports.handler import Pace, Prepared, Sender
from daemon.errors import ConfigError
from daemon.handlers.items import UnpackedRuns, Verdict, report, unpack_batch
from daemon.handlers.python.call import (
    NoFunction,
    call_batch,
    call_batch_async,
    call_each,
    call_each_async,
    is_async,
    load_function,
)
from daemon.handlers.python.process import BatchItems, ProcessSender
from forebay.item import Item

THREADS_A_SENDER: Final = 2
"""Threads per sender: one that works, and one that hangs."""


class PythonDelivery:
    def __init__(self, queue: str, settings: PythonHandler) -> None:
        key = f"queues.{queue}.handler"
        try:
            self._function = load_function(settings.function)
        except NoFunction as problem:
            raise ConfigError(f"{key}.function: {problem}") from problem
        self._is_async = is_async(self._function)
        if self._is_async and settings.mode != "auto":
            raise ConfigError(
                f"{key}.mode: {settings.function} is async, and runs in the daemon's loop, "
                f"not in a {settings.mode}"
            )
        self._settings = settings
        self._limiter = trio.CapacityLimiter(THREADS_A_SENDER)
        self._senders = 0
        self._unpacked = UnpackedRuns()
        self.destination = f"python:{settings.function}"
        self.batch_items = settings.batch_items
        self.batch_bytes = settings.batch_bytes
        self.timeout_s = settings.timeout

    def prepare(self, batch: Sequence[Slice]) -> Prepared:
        columns = unpack_batch(batch, self._unpacked)
        return Prepared(batch, BatchItems(columns.items(), columns.places), columns.rejected)

    def open_sender(self, pace: Pace) -> Sender:
        settings = self._settings
        if settings.mode == "process":
            return ProcessSender(
                settings.function, is_batch=settings.batch, timeout_s=self.timeout_s
            )
        if self._is_async:
            return LoopSender(self._function, is_batch=settings.batch, timeout_s=self.timeout_s)
        self._count_senders(1)
        return ThreadSender(
            self._function,
            self._limiter,
            lambda: self._count_senders(-1),
            is_batch=settings.batch,
            timeout_s=self.timeout_s,
        )

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    def _count_senders(self, more: int) -> None:
        """Threads that a closed sender left in the function count until they return."""
        self._senders += more
        self._limiter.total_tokens = THREADS_A_SENDER * max(self._senders, 1)


class LoopSender:
    """Calls an async function in the daemon's own loop."""

    def __init__(self, function: Callable[..., Any], *, is_batch: bool, timeout_s: float) -> None:
        self._function = function
        self._call = call_batch_async if is_batch else call_each_async
        self._timeout_s = timeout_s

    async def send(self, prepared: Prepared) -> Report:
        await trio.lowlevel.checkpoint()
        content: BatchItems = prepared.content
        verdicts: list[Verdict] = []
        with trio.move_on_after(self._timeout_s):
            await self._call(self._function, content.items, verdicts.append)
        fill_up(verdicts, len(content.items), too_late(self._timeout_s))
        return report(prepared, content.places, verdicts)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class ThreadSender:
    """Calls a function in a thread, one hop per batch."""

    def __init__(
        self,
        function: Callable[..., Any],
        limiter: trio.CapacityLimiter,
        closed: Callable[[], None],
        *,
        is_batch: bool,
        timeout_s: float,
    ) -> None:
        self._function = function
        self._limiter = limiter
        self._closed: Callable[[], None] | None = closed
        self._is_batch = is_batch
        self._timeout_s = timeout_s

    async def send(self, prepared: Prepared) -> Report:
        content: BatchItems = prepared.content
        call = ThreadCall(self._function, content.items, is_batch=self._is_batch)
        try:
            with trio.move_on_after(self._timeout_s):
                await trio.to_thread.run_sync(
                    call.run, abandon_on_cancel=True, limiter=self._limiter
                )
        finally:
            call.is_over = True
        verdicts = call.verdicts[:]
        failure = too_late(self._timeout_s)
        if not call.has_begun:
            failure = Failure(
                f"no thread was free for {format_duration(self._timeout_s)}: "
                "those of earlier sends are still in the function"
            )
        fill_up(verdicts, len(content.items), failure)
        return report(prepared, content.places, verdicts)

    async def aclose(self) -> None:
        closed, self._closed = self._closed, None
        if closed is not None:
            closed()
        await trio.lowlevel.checkpoint()


class ThreadCall:
    """One hop into a thread. The thread writes it; the loop reads it and may end it."""

    def __init__(self, function: Callable[..., Any], items: list[Item], *, is_batch: bool) -> None:
        self._function = function
        self._items = items
        self._is_batch = is_batch
        self.has_begun = False
        self.is_over = False
        self.verdicts: list[Verdict] = []

    def run(self) -> None:
        self.has_begun = True
        if self.is_over:
            return
        if self._is_batch:
            # Stored all at once, so that the loop never sees a part of them.
            told: list[Verdict] = []
            call_batch(self._function, self._items, told.append)
            self.verdicts = told
        else:
            call_each(self._function, self._items, self.verdicts.append, lambda: self.is_over)


def too_late(timeout_s: float) -> Failure:
    return Failure(f"the function was not done after {format_duration(timeout_s)}")


def fill_up(verdicts: list[Verdict], items: int, failure: Failure) -> None:
    """Adds a failure for each item that was not reached."""
    verdicts += [failure] * (items - len(verdicts))
