"""Adopting: what a daemon that never returns has left in the shared warm queue becomes this one's.

Three things are there of it: slices that nobody has in hand, posts in its mailbox that say what
became of others, and in them the items that were to be tried much later or are dead, which nobody
else has. Slices and such items are stored in this journal first, under their own ids and in their
writes; slices are taken out of the queue when that is durable. What posts say was delivered is
noted in the receipts of the writes (actors/ports/writes.py), in absolute numbers.

Owns nothing. A kill leaves things in both places; the same step, repeated, finds the runs stored
before (DUPLICATE). Mail is never removed: if its daemon returns after all, it reads it, and what
was noted of it here is forgotten. How far its items are stored is noted beside it, so that who
adopts the daemon once more, on whatever host, does not store them again.

What it can't do: know what the lost daemon had recorded and not told: deliveries of its own workers
in its last second stay pending in receipts. Posts that it had recorded, and was killed before it
removed them, count twice: milliseconds lie between the two. A dead letter that only its mailbox had
is tried once more here, and dies here then.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import structlog
import trio

from actors.fleet.mailbox import readable
from actors.model.slices import Slice
from actors.ports.tiers import StoreUnavailable
from actors.ports.writes import WritePart
from actors.spooler.client import SpoolerClient
from actors.spooler.messages import Append
from actors.spooler.moved_runs import moved_run
from forebay.errors import BadRun, Refused
from forebay.run import read_head
from forebay.stage_frames import MOVED, write_of
from forebay.wire import Outcome

log = structlog.get_logger()

STORE_S: Final = 40.0
"""For one page of runs to be stored; longer than a push may wait for room."""
CLAIM_S: Final = 120.0
"""So long nobody else adopts the same daemon; renewed with each page."""


class OwnerInQueue(NamedTuple):
    """A daemon, and what its journal has lent through one queue."""

    queue: str
    daemon: bytes
    valid_until_ms: int
    """On the server's clock; 0: it has not been heard of for a day."""
    items: int
    leased: int


class LeftThere(NamedTuple):
    """A page of what a lapsed daemon has in a queue, and nobody has in hand."""

    is_valid: bool
    """It is back: there is nothing to adopt."""
    slices: list[Slice]
    tokens: list[int]
    cursor: bytes
    """Where the next page begins; empty: this was the last."""


class MailLeft(NamedTuple):
    """A page of a lapsed daemon's mail."""

    known: list[bytes]
    """Posts of which somebody has stored what they alone have."""
    new: list[bytes]
    mark: tuple[bytes, int]
    """Where the page ends."""


class LostOwnersPort(Protocol):
    """Every method raises StoreUnavailable as those of a warm queue do."""

    async def owners(self) -> tuple[int, list[OwnerInQueue]]:
        """The server's time, and every daemon in every queue."""

    async def claim(self, daemon: bytes, for_s: float) -> bool:
        """Nobody else adopts it for so long; False: somebody else does."""

    async def disclaim(self, daemon: bytes) -> None:
        """Others may adopt it."""

    async def left(self, queue: str, daemon: bytes, cursor: bytes) -> LeftThere:
        """A page of what waits; nothing is changed."""

    async def take(self, queue: str, daemon: bytes, tokens: Sequence[int]) -> int | None:
        """Takes these slices out, as far as they are as they were; how many items. None: the
        daemon is valid again, and nothing was taken."""

    async def mail_left(self, queue: str, daemon: bytes, first: int) -> MailLeft:
        """Posts for the daemon, from the one with this number on; they stay. None: no more."""

    async def mail_stored(self, queue: str, daemon: bytes, mark: tuple[bytes, int]) -> None:
        """What these posts, and all before them, alone have is durable in a journal: whoever adopts
        the daemon once more leaves it alone."""


class MailBook(Protocol):
    """Where receipts learn of what only a mailbox says."""

    async def note_mail(self, daemon: bytes, parts: Sequence[WritePart]) -> None:
        """What a lost daemon's mail says of writes, all of it, until that daemon is back."""


class Adopted(NamedTuple):
    runs: int
    items: int
    is_over: bool


class Adopting:
    def __init__(
        self,
        owners: LostOwnersPort,
        spooler: SpoolerClient,
        book: MailBook | None,
        now: Callable[[], float],
    ) -> None:
        self._owners = owners
        self._spooler = spooler
        self._book = book
        self._now = now

    async def adopt(self, daemon: bytes, queues: Sequence[str], until: float) -> Adopted:
        """As far as it comes until then. Refused: the daemon is back, or this one takes nothing."""
        runs = items = 0
        for queue in queues:
            cursor = b""
            while True:
                page = await self._owners.left(queue, daemon, cursor)
                items += await self._adopt_page(queue, daemon, page)
                runs, cursor = runs + len(page.slices), page.cursor
                if not cursor:
                    break
                if self._now() >= until:
                    return Adopted(runs, items, False)
                await self._owners.claim(daemon, CLAIM_S)
        left = await self._adopt_mail(daemon, queues)
        return Adopted(runs, items + left, True)

    async def _adopt_page(self, queue: str, daemon: bytes, page: LeftThere) -> int:
        """Stores the page, then takes it out; how many items."""
        if page.is_valid:
            raise returned(daemon)
        if not page.slices:
            return 0
        try:
            made = [moved_run(slice_) for slice_ in page.slices]
        except BadRun as problem:
            raise Refused("BAD_RUN", f"what is there is no run: {problem}") from problem
        await self._store(made)
        if await self._owners.take(queue, daemon, page.tokens) is None:
            raise returned(daemon)
        return sum(slice_.items for slice_ in page.slices)

    async def _adopt_mail(self, daemon: bytes, queues: Sequence[str]) -> int:
        """Stores what only the mail has, and notes what it says; how many items are new here."""
        delivered: Counter[bytes] = Counter()
        items = 0
        for queue in queues:
            first = 0
            while True:
                page = await self._owners.mail_left(queue, daemon, first)
                if not (page.known or page.new):
                    break
                first += len(page.known) + len(page.new)
                known, new = readable(page.known), readable(page.new)
                items += await self._store([run for post in new for run in post.left])
                if page.new:
                    await self._owners.mail_stored(queue, daemon, page.mark)
                for post in (*known, *new):
                    if post.write:
                        delivered[post.write] += post.delivered.bit_count()
                await self._owners.claim(daemon, CLAIM_S)
        if delivered and self._book is not None:
            parts = [WritePart(write, count) for write, count in delivered.items()]
            await self._book.note_mail(daemon, parts)
        return items

    async def _store(self, runs: Sequence[bytes]) -> int:
        """In the journal, durable: how many items are new there. Refused: nothing is to be taken
        out for it."""
        answers = _Answers(len(runs))
        with trio.move_on_after(STORE_S):
            for sequence, data in enumerate(runs):
                await self._spooler.send(append_of(data, answers, sequence))
            if runs:
                await answers.complete.wait()
        if answers.refused is not None:
            raise answers.refused
        if runs and not answers.complete.is_set():
            raise StoreUnavailable(f"the journal has not stored it within {STORE_S:.0f} s")
        return sum(read_head(runs[sequence]).count for sequence in answers.stored)


class _Answers:
    """What the spooler says of the runs of one page."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self.stored: list[int] = []
        self.refused: Refused | None = None
        self.complete = trio.Event()

    def put(self, sequence: int, answer: Outcome | Refused) -> None:
        if isinstance(answer, Refused):
            self.refused = answer
        elif answer is Outcome.STORED:
            self.stored.append(sequence)
        self._left -= 1

    def flush(self) -> None:
        if not self._left:
            self.complete.set()


def append_of(data: bytes, answers: _Answers, sequence: int) -> Append:
    """A run of a write stays in it: its receipt goes on here."""
    head = read_head(data)
    write = write_of(head)
    if write is None:
        return Append(head, data, answers, sequence)
    return Append(head, data, answers, sequence, write, MOVED)


def returned(daemon: bytes) -> Refused:
    return Refused(
        "CONFLICT", f"the daemon {daemon.hex()} has come back: what was not adopted yet is its own"
    )
