"""Waiting for the first of several things."""

from collections.abc import Awaitable, Callable

import trio


async def first_of(*waits: Callable[[], Awaitable[None]] | None) -> None:
    """Returns when one of these does."""
    async with trio.open_nursery() as nursery:

        async def first(wait: Callable[[], Awaitable[None]]) -> None:
            await wait()
            nursery.cancel_scope.cancel()

        for wait in waits:
            if wait is not None:
                nursery.start_soon(first, wait)
