"""Steps that are taken again: what the store does not carry out now it may carry out later."""

from collections.abc import Awaitable, Callable

import structlog
import trio

from actors.ports.tiers import StoreCorrupt, StoreUnavailable

log = structlog.get_logger()

Step = Callable[[], Awaitable[None]]


async def attempt(name: str, step: Step) -> None:
    try:
        await step()
    except StoreUnavailable:
        # `Presence` tells of it (actors/ports/presence.py).
        pass
    except StoreCorrupt as problem:
        log.error("decisions.store_corrupt", step=name, error=str(problem))


async def repeat(name: str, step: Step, every_s: float) -> None:
    """Never returns."""
    while True:
        await trio.sleep(every_s)
        await attempt(name, step)
