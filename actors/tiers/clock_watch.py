"""Watches the wall clock, and acts when it was set back.

Due times are times of the wall clock. If that is set back, retries that were due in seconds would
wait until the time comes round again. So what this daemon has put off itself is put off anew, by
the pause that it was given (`retry_due_ms`). What producers and operators have scheduled stays at
the time that they named.

The step is found within LOOK_S, by comparing the wall clock with the steady one, and logged once.

What it cannot do: reach retries that wait in Valkey or PostgreSQL, which have clocks of their own.
"""

from typing import Final

import structlog
import trio

from actors.model.clock import JUMP_MS, Clock, steady_ms, wall_ms
from actors.ports.tiers import ColdQueue, StoreUnavailable
from actors.tiers.warm import MemoryWarm

log = structlog.get_logger()

LOOK_S: Final = 1.0


class ClockWatch:
    def __init__(
        self,
        warm: MemoryWarm,
        cold: ColdQueue,
        now_ms: Clock = wall_ms,
        lease_ms: Clock = steady_ms,
    ) -> None:
        self._warm = warm
        self._cold = cold
        self._now_ms = now_ms
        self._lease_ms = lease_ms
        self._ahead_ms = now_ms() - lease_ms()

    async def start(self, written_ms: int) -> None:
        """Before anything is delivered. `written_ms`: when an earlier life last wrote a file. If
        that is still to come, the clock was set back while no daemon ran."""
        await self._moved(min(0, self._now_ms() - written_ms))

    async def run(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Acts if the clock was set since the last look."""
        ahead_ms = self._now_ms() - self._lease_ms()
        moved_ms, self._ahead_ms = ahead_ms - self._ahead_ms, ahead_ms
        await self._moved(moved_ms)

    async def _moved(self, by_ms: int) -> None:
        if abs(by_ms) <= JUMP_MS:
            return
        log.warning("clock.jumped", seconds=round(by_ms / 1000, 1))
        if by_ms > 0:
            return
        self._warm.put_off_anew()
        while True:
            try:
                await self._cold.put_off_anew()
                return
            except StoreUnavailable:
                await trio.sleep(LOOK_S)
