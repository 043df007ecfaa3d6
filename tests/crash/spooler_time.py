"""Time for a spooler whose clock stands still until a test moves it."""

import time
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from trio.testing import MockClock

from actors.spooler.spooler import TICK_S
from tests.actors.spooler.spooling import Desk
from tests.eventually import DEADLINE_S

REST_S: Final = 6.0
"""Longer than any pause after a failure."""
TURNS_PER_TICK: Final = 100


async def pass_time(clock: MockClock, desk: Desk, seconds: float = REST_S) -> None:
    """Moves the clock in the spooler's own steps, and lets it do what is due at each of them."""
    for _ in range(round(seconds / TICK_S)):
        clock.jump(TICK_S)
        await desk.stats()


async def until(clock: MockClock, desk: Desk, holds: Callable[[dict[str, Any]], object]) -> None:
    """Lets time pass until something holds of the spooler's report, or of the files. (`eventually`
    would sleep on a clock that stands.)"""
    ends_at = time.monotonic() + DEADLINE_S
    for turn in count():
        report = await desk.stats()
        if holds(report):
            return
        assert time.monotonic() < ends_at, f"it never came so far: {report}"
        # The disk works on threads, and needs turns more than it needs time.
        if turn % TURNS_PER_TICK == 0:
            clock.jump(TICK_S)
