"""Parts: tells the store that daemons share the outcomes of published items in this journal.

Once a second, in absolute numbers, so that repeating is harmless. A receipt adds up the parts of
all daemons. Runs only where other daemons may ask: a daemon that is alone reads its own journal.

Owns what it remembers of the store, and nothing durable. While the store is away nothing is told.
"""

from typing import Final

import trio

from actors.ports.writes import Decisions, WritePart
from actors.spooler.client import SpoolerClient
from actors.spooler.messages import AskParts
from actors.writes.attempts import attempt, repeat

NOTE_S: Final = 1.0
LAST_NOTE_S: Final = 5.0


class Parts:
    def __init__(self, spooler: SpoolerClient, decisions: Decisions) -> None:
        self._spooler = spooler
        self._decisions = decisions
        self._running = trio.CancelScope()
        self._unfinished: set[bytes] | None = None
        """Published writes of which this journal may hold items; None: not asked for yet."""
        self._noted: dict[bytes, WritePart] = {}
        """What the store knows of them."""
        self._moved: set[bytes] = set()
        """Published elsewhere: items of them were moved to this journal."""

    def expect(self, write: bytes) -> None:
        """Items of this write were published here."""
        if self._unfinished is not None:
            self._unfinished.add(write)

    async def run(self) -> None:
        """Returns after `close`."""
        with self._running:
            await repeat("note parts", self.note, NOTE_S)

    async def close(self) -> None:
        """The last word, after the last delivery."""
        self._running.cancel()
        with trio.move_on_after(LAST_NOTE_S):
            await attempt("note parts", self.note)

    async def note(self) -> None:
        """Tells what has changed."""
        if self._unfinished is None:
            self._unfinished = set(await self._decisions.unfinished())
        asked = tuple(self._unfinished)
        found = await self._spooler.ask(AskParts(asked, also_moved=True))
        # More of these may be moved here at any time: what was told of them is kept.
        self._moved = {part.write for part in found} - self._unfinished
        changed = [part for part in found if self._noted.get(part.write) != part]
        if changed:
            await self._decisions.note_parts(changed)
            self._noted.update((part.write, part) for part in changed)
        # What is not known here was on a disk that is gone: nobody can say more about it.
        over = set(asked) - {part.write for part in found if not part.is_over}
        self._unfinished -= over
        for write in self._noted.keys() - self._unfinished - self._moved:
            del self._noted[write]
