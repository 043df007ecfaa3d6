"""The failover: what could not be recorded anywhere, in memory, and tried again every 5 s.

An entry is a step that a store does not take now. Most may be let go: past the bounds, in entries
and in bytes, the oldest is, it is counted, and its items are delivered again. A few must not be:
what the journal has let go of already, and the cold store has not been told. Those are small, and
nothing is added to them while the cold store is away.

On cancel everything is lost with the process: the owners, and what they find in their files,
decide. What it can't do: put one entry off and go on with the next; they are tried in order.
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
    """Something that must be recorded and could not be."""

    size: int
    again: Step
    """Raises StoreUnavailable as long as it cannot be done."""
    let_go: Step | None
    """What is done when there are too many: its items are delivered again. None: it must stay."""


class Failover:
    def __init__(self, entries_max: int = ENTRIES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._held: deque[Held] = deque()
        self._trying: Held | None = None
        self._turn = trio.Lock()
        self.bytes = 0
        self.let_go_total = 0

    def __len__(self) -> int:
        return len(self._held)

    async def hold(self, entry: Held) -> None:
        if not self._held:
            log.error("failover.holding", hint="a store takes no outcomes")
        self._held.append(entry)
        self.bytes += entry.size
        while (oldest := self._too_much()) is not None:
            self._remove(oldest)
            self.let_go_total += 1
            log.warning("failover.let_go", total=self.let_go_total)
            assert oldest.let_go is not None
            await oldest.let_go()

    def _too_much(self) -> Held | None:
        """The oldest that may go, if there is more than the bounds allow."""
        loose = [held for held in self._held if held.let_go is not None]
        is_over = len(loose) > self._entries_max or self.bytes > self._bytes_max
        return next((held for held in loose if held is not self._trying), None) if is_over else None

    def _remove(self, entry: Held) -> None:
        self._held.remove(entry)
        self.bytes -= entry.size

    async def run(self) -> None:
        while True:
            await trio.sleep(TRY_AGAIN_S)
            await self.try_again()

    async def try_again(self) -> None:
        """One round, oldest first; it ends at the first that still cannot be recorded."""
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
