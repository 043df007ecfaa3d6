"""Arrivals: tells dispatch which queues have items, so that it starts what delivers them.

It owns the channel to dispatch. Nothing is durable: after a restart the spooler and the cold store
report their queues again.
"""

from contextlib import suppress
from dataclasses import dataclass

import trio

from actors.config.catalogue import Catalogue
from actors.spooler.intake import QUEUES_MAX


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """A store holds, or has held, items of this queue."""

    queue: str


@dataclass(frozen=True, slots=True)
class Pinned:
    """A few items of this queue, at these positions, keep an old chunk of the journal on disk."""

    queue: str
    positions: range


class Arrivals:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._sender, self.inbox = trio.open_memory_channel[QueueSeen | Pinned](QUEUES_MAX)

    async def see(self, queue: str) -> None:
        """Waits while dispatch is busy."""
        await self._sender.send(QueueSeen(queue))

    def see_nowait(self, queue: str) -> bool:
        """False: dispatch is busy, tell it later."""
        try:
            self._sender.send_nowait(QueueSeen(queue))
        except trio.WouldBlock:
            return False
        return True

    def see_shared(self, queue: str) -> None:
        """A store that daemons share has items of this queue. A queue that is not defined on this
        host is left to other hosts. If dispatch is busy, the next look at the store repeats it."""
        if self._catalogue.queue(queue) is not None:
            self.see_nowait(queue)

    def pin(self, queue: str, positions: range) -> None:
        """If dispatch is busy, the spooler repeats it."""
        with suppress(trio.WouldBlock):
            self._sender.send_nowait(Pinned(queue, positions))
