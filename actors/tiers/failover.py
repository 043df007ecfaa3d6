"""The failover: holds steps that no store takes now in memory and retries them every 5 s.

Most entries may be dropped: past the bounds (entries and bytes) the oldest is dropped and counted,
and its items are delivered again. A few must stay: hand-overs that the journal has marked and the
cold store has not confirmed, and rows that the cold store must forget. Those are small, and none
is added while the cold store is away.

On cancel everything here is lost with the process; after the restart the owners decide from their
files. It cannot skip an entry: entries are tried strictly in order.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from actors.ports.tiers import StoreUnavailable

log = structlog.get_logger()

ENTRIES_MAX: Final = 1000
BYTES_MAX: Final = 256 * 1024 * 1024
TRY_AGAIN_S: Final = 5.0

Step = Callable[[], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Held:
    """A step that must be recorded and could not be."""

    size: int
    again: Step
    """Raises StoreUnavailable while the step is not possible."""
    let_go: Step | None
    """Called when the entry is dropped: its items are delivered again. None: it must stay."""


class Failover:
    def __init__(self, entries_max: int = ENTRIES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self.entries_max = entries_max
        self.bytes_max = bytes_max
        self._held: deque[Held] = deque()
        self._trying: Held | None = None
        self._turn = trio.Lock()
        self.bytes = 0
        self.let_go_total = 0

    def __len__(self) -> int:
        return len(self._held)

    async def hold(self, entry: Held) -> None:
        if not self._held:
            log.error("failover.holding", hint="a store does not accept outcomes")
        self._held.append(entry)
        self.bytes += entry.size
        while (oldest := self._too_much()) is not None:
            self._remove(oldest)
            self.let_go_total += 1
            log.warning("failover.let_go", total=self.let_go_total)
            assert oldest.let_go is not None
            await oldest.let_go()

    def _too_much(self) -> Held | None:
        """The oldest entry that may be dropped, if the bounds are exceeded."""
        loose = [held for held in self._held if held.let_go is not None]
        is_over = len(loose) > self.entries_max or self.bytes > self.bytes_max
        return next((held for held in loose if held is not self._trying), None) if is_over else None

    def _remove(self, entry: Held) -> None:
        self._held.remove(entry)
        self.bytes -= entry.size

    async def run(self) -> None:
        while True:
            await trio.sleep(TRY_AGAIN_S)
            await self.try_again()

    async def try_again(self) -> None:
        """One round, oldest first; it ends at the first step that is still not possible."""
        async with self._turn:
            if not self._held:
                return
            while self._held:
                self._trying = self._held[0]
                try:
                    await self._trying.again()
                except StoreUnavailable:
                    return
                else:
                    self._remove(self._trying)
                finally:
                    self._trying = None
            log.info("failover.empty", let_go_total=self.let_go_total)
