"""Signals: SIGTERM and SIGINT drain, a second one does not wait, SIGHUP reloads."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import structlog
import trio

log = structlog.get_logger()

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def stop_wanted(signals: AsyncIterator[int], reload: Callable[[], Awaitable[None]]) -> None:
    """Returns when the daemon is to stop; reloads meanwhile."""
    async for number in signals:
        if number != signal.SIGHUP:
            log.info("daemon.draining", signal=signal.Signals(number).name)
            return
        await reload()


async def stop_at_once(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    """A second signal does not wait for deliveries. The journal is still sealed."""
    async for number in signals:
        if number != signal.SIGHUP:
            scope.cancel()
            return
