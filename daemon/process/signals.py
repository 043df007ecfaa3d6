"""Signals: SIGTERM and SIGINT drain and stop, a second one stops at once, SIGHUP reloads."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

import structlog
import trio

log = structlog.get_logger()

T = TypeVar("T")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def stop_wanted(signals: AsyncIterator[int], reload: Callable[[], Awaitable[None]]) -> None:
    """Returns when a signal asks the daemon to stop; reloads on SIGHUP meanwhile."""
    async for number in signals:
        if number != signal.SIGHUP:
            log.info("daemon.draining", signal=signal.Signals(number).name)
            return
        await reload()


async def unless_stopped(
    signals: AsyncIterator[int], start: Callable[[], Awaitable[T]]
) -> T | None:
    """The result of `start`; None if a signal stopped the daemon first. `start` may wait for a
    server without limit."""
    result: T | None = None
    wants_reload = False

    async def watch(scope: trio.CancelScope) -> None:
        nonlocal wants_reload
        async for number in signals:
            wants_reload |= number == signal.SIGHUP
            if number != signal.SIGHUP:
                scope.cancel()
                return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, nursery.cancel_scope)
        result = await start()
        nursery.cancel_scope.cancel()
    if wants_reload and result is not None:
        # For `stop_wanted`, which reads signals next.
        signal.raise_signal(signal.SIGHUP)
    return result


async def second_stop(signals: AsyncIterator[int]) -> None:
    """Returns on a second signal: the daemon must not wait for deliveries. The journal is still
    sealed."""
    async for number in signals:
        if number != signal.SIGHUP:
            return
    await trio.sleep_forever()
