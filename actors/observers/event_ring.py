"""The latest rare events, in memory, for pages and clients that watch.

It holds events of breakers, stores, the daemon and queues that get workers: those that the event
log also writes, if it is on. Bounded: a watcher that is too slow misses the oldest events and
notices it by their numbers. Nothing is durable.
"""

from collections import deque
from typing import Any, Final, NamedTuple

import trio

from actors.model.masking import masked
from actors.observers.events import Event

EVENTS_KEPT: Final = 1000


class Numbered(NamedTuple):
    number: int
    """From 1, in the order of noting."""
    row: dict[str, Any]


class EventRing:
    def __init__(self, kept: int = EVENTS_KEPT) -> None:
        self._events: deque[Numbered] = deque(maxlen=kept)
        self._latest = 0
        self._noted = trio.Event()

    @property
    def latest(self) -> int:
        """The number of the latest event; 0 if there was none."""
        return self._latest

    def note(self, event: Event) -> None:
        self._latest += 1
        self._events.append(Numbered(self._latest, masked(event.row())))
        self._noted.set()
        self._noted = trio.Event()

    def after(self, number: int) -> list[Numbered]:
        """The kept events with a higher number, oldest first."""
        return [event for event in self._events if event.number > number]

    async def wait_after(self, number: int) -> None:
        """Returns when there is an event with a higher number."""
        while self._latest <= number:
            await self._noted.wait()
