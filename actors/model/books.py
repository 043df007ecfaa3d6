"""The books: how many items of every queue came in, and their outcomes.

    accepted + moved_in = delivered + dead + dropped + deleted + lost + held + moved_out

holds at every moment and across restarts, because `held` is not counted but follows from the
others, and because each of the others is either in the fsynced base or derived from live blocks and
marks. The base takes over a chunk's totals when the chunk is freed; by then the chunk holds
nothing, so the equation holds for the base alone as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple, TypedDict, assert_never

from actors.model.runs import Fate
from forebay.limits import WRITE_ID_BYTES
from forebay.run import RunHead
from forebay.stage_frames import MOVED, write_of

NO_STAGE: Final = bytes(WRITE_ID_BYTES)
_MARK: Final = "\0"
_DIGITS: Final = 2 * WRITE_ID_BYTES


class Account(NamedTuple):
    """Accounts: the names under which the journal keeps its books.

    Most runs are in the account of their queue, which has the queue's name. A staged run is in the
    account of its stage, so that a stage can become visible or be dropped as a whole. When its
    chunk is freed, published totals move to the account of their write, for the receipt; when the
    receipt is forgotten, to the queue's.

        queue
        NUL write stage queue      write and stage in hexadecimal; the stage is all zeros for a
                                   whole write, and all ones for items published elsewhere and
                                   moved here
    """

    queue: str
    write: bytes = b""
    """Empty: the queue's own account."""
    stage: bytes = b""

    @property
    def name(self) -> str:
        if not self.write:
            return self.queue
        return f"{_MARK}{self.write.hex()}{self.stage.hex()}{self.queue}"

    @property
    def is_moved(self) -> bool:
        """Whether its items were accepted by another daemon and came here later."""
        return self.stage == MOVED

    @property
    def of_write(self) -> "Account":
        """Moved items stay separate: they are not part of what was published here."""
        return self if self.is_moved else Account(self.queue, self.write, NO_STAGE)


def account_of(head: RunHead, stage: bytes) -> Account:
    """The account of a run that was staged under `stage`, or pushed (empty)."""
    if not stage:
        return Account(head.queue)
    return Account(head.queue, write_of(head) or NO_STAGE, stage)


def written_by(name: str) -> str:
    """The write of an account, in hexadecimal; empty for a queue's own account."""
    return name[1 : 1 + _DIGITS] if name.startswith(_MARK) else ""


def parse_account(name: str) -> Account:
    if not name.startswith(_MARK):
        return Account(name)
    middle = 1 + _DIGITS
    end = middle + _DIGITS
    return Account(name[end:], bytes.fromhex(name[1:middle]), bytes.fromhex(name[middle:end]))


@dataclass(slots=True)
class Totals:
    """The counts of one queue, of one queue in one chunk, or of a whole daemon; in items."""

    accepted: int = 0
    delivered: int = 0
    dead: int = 0
    dropped: int = 0
    deleted: int = 0
    lost: int = 0
    """Destroyed by damage on disk."""
    duplicate: int = 0
    """Items of runs that were stored before. Outside the equation."""
    moved_in: int = 0
    moved_out: int = 0
    handed_over: int = 0
    """Only in the journal's books: items that the cold store owns now."""

    @property
    def finished(self) -> int:
        gone = self.delivered + self.dead + self.dropped + self.deleted + self.lost
        return gone + self.moved_out + self.handed_over

    @property
    def held(self) -> int:
        return self.accepted + self.moved_in - self.finished

    def add(self, other: "Totals") -> None:
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in COUNTS}


COUNTS = tuple(field.name for field in fields(Totals))

Books = dict[str, Totals]
"""Totals by queue."""


def merge(into: Books, other: Mapping[str, Totals]) -> None:
    for queue, totals in other.items():
        into.setdefault(queue, Totals()).add(totals)


def total(books: Mapping[str, Totals]) -> Totals:
    result = Totals()
    for totals in books.values():
        result.add(totals)
    return result


def count_fate(totals: Totals, fate: Fate, items: int) -> None:
    match fate:
        case Fate.DELIVERED:
            totals.delivered += items
        case Fate.DROPPED:
            totals.dropped += items
        case Fate.HANDED_OVER:
            totals.handed_over += items
        case Fate.DELETED:
            totals.deleted += items
        case Fate.MOVED:
            totals.moved_out += items
        case Fate.LOST:
            totals.lost += items
        case Fate.RETRY:
            pass
        case _:
            assert_never(fate)


def parse_books(content: Mapping[str, Any]) -> Books:
    """Reads books from JSON; raises ValueError if they are not valid."""
    books: Books = {}
    for queue, counts in content.items():
        if not isinstance(counts, dict):
            raise ValueError(f"the totals of {queue!r} are not an object")
        numbers = {name: counts.get(name, 0) for name in COUNTS}
        if not all(isinstance(number, int) and number >= 0 for number in numbers.values()):
            raise ValueError(f"the totals of {queue!r} are not counts")
        books[queue] = Totals(**numbers)
    return books


class ColdReceipt(NamedTuple):
    """The outcomes, in the cold store, of the items of one write."""

    delivered: int = 0
    dead: int = 0
    """Dead letters that are here now."""
    deleted: int = 0
    lost: int = 0
    """Items in rows that cannot be read and were set aside."""
    updated: int = 0
    """Items that took the key of another item, which was deleted."""
    ignored: int = 0
    """Deleted items whose key was taken when they became visible."""
    conflict: int = 0
    """The same for a queue that rejects them, or where the other item could not be replaced."""


class QueueReport(TypedDict):
    """The books of a queue, or of the daemon, in items, as STATS reports them.

    accepted = delivered + dead + dropped + deleted + lost + held, and `spooled` to `running` are
    the parts of `held`. A dictionary, because 500 of them are made each second while a page is
    open, and each is written as JSON.
    """

    accepted: int
    delivered: int
    dead: int
    dropped: int
    deleted: int
    lost: int
    duplicate: int
    moved_in: int
    moved_out: int
    held: int
    spooled: int
    scheduled: int
    warm: int
    cold: int
    running: int
    staged: int


class JournalEntry(QueueReport):
    """The same of the journal alone."""

    handed_over: int
    """Items ever handed over to cold."""


class SpoolReport(TypedDict):
    """The state of the spool."""

    runs: int
    bytes: int
    disk_bytes: int
    chunks: int
    reader_offset: int
    writer_offset: int
    memory_runs: int
    memory_bytes: int
    max_bytes: int
    free_bytes: int
    min_free_bytes: int
    spare_chunks: int
    quarantine_bytes: int


class JournalReport(TypedDict):
    """The spooler's part of a report."""

    daemon: JournalEntry
    queues: dict[str, JournalEntry]
    spool: SpoolReport
