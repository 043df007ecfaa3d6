"""Watches the wall clock and acts when it was set back.

Due times are wall-clock times. After a step back, retries due in seconds would wait until that time
comes again. So retries that this daemon has postponed are postponed anew, by the pause they were
given (`retry_due_ms`). Items scheduled by producers and operators keep their time.

The step is found within LOOK_S by comparing the wall clock with the steady one, and logged once.

It cannot reach retries that wait in Valkey or PostgreSQL, which have their own clocks.
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
        """Call it before anything is delivered. `written_ms` is when this daemon last wrote a file.
        If that is in the future, the clock was set back while the daemon was down."""
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
