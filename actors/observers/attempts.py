"""The attempts of each queue, across restarts and daemons: how many failed, how long they took.

The tallies count them in memory. Each second those that have changed are written to the cold store,
which has one row per queue and daemon. A row holds the sum of this life of the daemon and of all
earlier ones, and only its own daemon writes it: a write that is repeated counts nothing twice, and
daemons never wait for each other. So the cost is one small transaction per second in which anything
was tried, and a question reads one row per daemon, however many items there were.

Counts are kept for every queue, whether it has a history or not. They are about attempts, not items
that are still stored: an item that was sent three times counts three times, and its attempts stay
counted when it is forgotten.

A crash loses what was counted since the last write. While the cold store is away, or its disk is
nearly full, nothing is written and nothing is lost; answers then have what was last read of other
daemons. On `close` the rest is written. A damaged database that is replaced takes the attempts of
earlier lives with it.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import trio

from actors.model.attempts import Attempts
from actors.observers.tallies import QueueTally, Tallies
from actors.ports.tiers import ColdQueue, StoreUnavailable

FLUSH_S: Final = 1.0
WRITTEN_QUEUES: Final = 64
"""How many queues are written at once; where more have changed, the others follow a second later.
It costs 3 ms of processor time."""


class _Extent(NamedTuple):
    """How far a tally has come; it changes with every attempt."""

    application: int
    business: int
    processed: int


_NOWHERE: Final = _Extent(0, 0, 0)


class AttemptBook:
    def __init__(self, cold: ColdQueue, tallies: Tallies) -> None:
        self._cold = cold
        self._tallies = tallies
        self._before: dict[str, Attempts] = {}
        """Of this daemon's earlier lives. Read before this one writes anything."""
        self._written: dict[str, _Extent] = {}
        self._elsewhere: dict[str, Attempts] = {}
        """Of other daemons, as last read."""
        self._closing = trio.Event()
        self._closed = trio.Event()

    async def of(self, queue: str) -> Attempts:
        """All attempts of all daemons; of others, up to their last write."""
        with suppress(StoreUnavailable):
            stored = await self._cold.attempts(queue)
            self._before.setdefault(queue, stored.own)
            self._elsewhere[queue] = stored.others
        tally = self._tallies.queues.get(queue)
        here = Attempts() if tally is None else _attempts_of(tally)
        known = (self._before.get(queue), self._elsewhere.get(queue))
        return sum((one for one in known if one is not None), here)

    async def run(self) -> None:
        """Writes until `close`, and the rest then."""
        try:
            is_last = False
            while not is_last:
                await self._pause()
                is_last = self._closing.is_set()
                await self._write_changed()
        finally:
            self._closed.set()

    async def close(self) -> None:
        self._closing.set()
        await self._closed.wait()

    async def _pause(self) -> None:
        with trio.move_on_after(FLUSH_S):
            await self._closing.wait()

    async def _write_changed(self) -> None:
        changed = [
            queue
            for queue, tally in self._tallies.queues.items()
            if _extent(tally) != self._written.get(queue, _NOWHERE)
        ]
        with suppress(StoreUnavailable):
            for first in range(0, len(changed), WRITTEN_QUEUES):
                if first:
                    await self._pause()
                await self._write(changed[first : first + WRITTEN_QUEUES])

    async def _write(self, queues: Sequence[str]) -> None:
        unknown = [queue for queue in queues if queue not in self._before]
        if unknown:
            found = await self._cold.own_attempts(unknown)
            for queue in unknown:
                self._before.setdefault(queue, found.get(queue, Attempts()))
        tallies = {queue: self._tallies.queues[queue] for queue in queues}
        extents = {queue: _extent(tally) for queue, tally in tallies.items()}
        await self._cold.note_attempts(
            {queue: self._before[queue] + _attempts_of(tally) for queue, tally in tallies.items()}
        )
        self._written.update(extents)


def _extent(tally: QueueTally) -> _Extent:
    failed = tally.failed
    return _Extent(failed["application"], failed["business"], tally.processing.items)


def _attempts_of(tally: QueueTally) -> Attempts:
    failed = tally.failed
    return Attempts(failed["application"], failed["business"], tally.processing.frozen())
