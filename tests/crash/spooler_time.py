"""Time for a spooler whose clock stands still until a test moves it."""

from collections.abc import Callable
from typing import Any, Final

from trio.testing import MockClock

from actors.spooler import TICK_S
from tests.unit.spooling import Desk

REST_S: Final = 6.0
"""Longer than any pause after a failure."""
TURNS_MAX: Final = 50_000
TURNS_PER_TICK: Final = 100


async def pass_time(clock: MockClock, desk: Desk, seconds: float = REST_S) -> None:
    """Moves the clock in the spooler's own steps, and lets it do what is due at each of them."""
    for _ in range(round(seconds / TICK_S)):
        clock.jump(TICK_S)
        await desk.stats()


async def until(clock: MockClock, desk: Desk, holds: Callable[[dict[str, Any]], object]) -> None:
    """Lets time pass until something holds of the spooler's report, or of the files."""
    for turn in range(TURNS_MAX):
        if holds(await desk.stats()):
            return
        # The disk works on threads, and needs turns more than it needs time.
        if turn % TURNS_PER_TICK == 0:
            clock.jump(TICK_S)
    raise AssertionError("it never came so far")
