"""The ledger: the books of every chunk, and with them when a chunk may go.

Each chunk keeps the totals of its queues. The books of the daemon are the base (what was in
chunks that are gone) plus those of all chunks that are here, kept up to date as a running sum.
A sealed chunk in which nothing is held may be freed. Plain data, touched by the spooler alone.
"""

from bisect import bisect_right, insort
from dataclasses import dataclass, field
from typing import Final

from actors.books import Books, Totals, count_fate, merge
from actors.messages import Fate
from actors.ports import RecoveredChunk

PINNED_FACTOR: Final = 2
PINNED_SHARE: Final = 0.25
"""A chunk of which so little is left is worth emptying."""
HEAD_BYTES_MAX: Final = 4096
"""More than a chunk's own head takes, before its first run."""


@dataclass(slots=True)
class ChunkAccount:
    number: int
    used_bytes: int = 0
    held_items: int = 0
    is_sealed: bool = False
    doubts: int = 0
    """Hand-overs under way of which it is not known what the cold store has."""
    totals: Books = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ItemsFinished:
    """Items of the run at `position` have met their fate."""

    position: int
    queue: str
    items: int
    fate: Fate
    run_bytes: int
    """The run's size, if these were its last items; 0 otherwise."""


class Ledger:
    def __init__(self) -> None:
        self.base: Books = {}
        self.books: Books = {}
        """Base and chunks together."""
        self.disk_bytes = 0
        """What the chunks take, live or not."""
        self.live_runs = 0
        self.live_bytes = 0
        self.writer_offset = 0
        """The position after the newest run."""
        self._chunks: dict[int, ChunkAccount] = {}
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._chunks)

    def load(self, base: Books, chunks: list[RecoveredChunk]) -> None:
        """Takes over what recovery found."""
        self.base = base
        merge(self.books, base)
        for found in chunks:
            self.start(found.number)
            account = self._chunks[found.number]
            account.is_sealed = True
            account.used_bytes = found.used_bytes
            account.totals = found.totals
            account.held_items = sum(totals.held for totals in found.totals.values())
            self.disk_bytes += found.used_bytes
            self.writer_offset = max(self.writer_offset, found.number + found.used_bytes)
            merge(self.books, found.totals)

    def start(self, number: int) -> None:
        self._chunks[number] = ChunkAccount(number)
        insort(self._numbers, number)

    def seal(self, number: int) -> None:
        self._chunks[number].is_sealed = True

    def number_of(self, position: int) -> int:
        """The chunk that holds a position."""
        return self._numbers[bisect_right(self._numbers, position) - 1]

    def accept(self, position: int, size: int, queue: str, items: int) -> None:
        account = self._chunks[self.number_of(position)]
        account.used_bytes += size
        account.held_items += items
        self.disk_bytes += size
        self.writer_offset = position + size
        self.add_live(size)
        for totals in self._totals(account, queue):
            totals.accepted += items

    def add_live(self, size: int) -> None:
        """A run of this size is held, in whole or in part."""
        self.live_runs += 1
        self.live_bytes += size

    def finish(self, fact: "ItemsFinished") -> None:
        """Enters what became of items, once that is on disk."""
        if fact.fate is Fate.RETRY:
            return
        if fact.run_bytes:
            self.live_runs -= 1
            self.live_bytes -= fact.run_bytes
        account = self._chunks[self.number_of(fact.position)]
        account.held_items -= fact.items
        for totals in self._totals(account, fact.queue):
            count_fate(totals, fact.fate, fact.items)

    def doubt(self, position: int, change: int) -> None:
        """A hand-over from this position begins (1) or is over (-1)."""
        account = self._chunks.get(self.number_of(position))
        if account is not None:
            account.doubts += change

    def count_duplicate(self, queue: str, items: int) -> None:
        """Not tied to any chunk: it goes straight to the base."""
        for books in (self.base, self.books):
            books.setdefault(queue, Totals()).duplicate += items

    def dead_chunks(self) -> list[int]:
        """Chunks that hold nothing and take nothing more."""
        return [
            account.number
            for account in self._chunks.values()
            if account.is_sealed and account.held_items == 0 and not account.doubts
        ]

    def pinned(self, disk_bytes_max: int) -> list[tuple[str, range]]:
        """Which queues' items keep old chunks alive that hold little else, and where they lie.

        None, as long as the chunks take little more than what is live in them.
        """
        surplus = self.disk_bytes - max(disk_bytes_max, PINNED_FACTOR * self.live_bytes)
        found: list[tuple[str, range]] = []
        for number in self._numbers:
            account = self._chunks[number]
            if surplus <= 0:
                break
            accepted = sum(totals.accepted for totals in account.totals.values())
            if account.is_sealed and 0 < account.held_items <= PINNED_SHARE * accepted:
                surplus -= account.used_bytes
                positions = range(number, number + account.used_bytes + HEAD_BYTES_MAX)
                found += [
                    (queue, positions) for queue, totals in account.totals.items() if totals.held
                ]
        return found

    def base_without(self, numbers: list[int]) -> Books:
        """The base as it is once these chunks are gone. Nothing changes yet."""
        base: Books = {}
        merge(base, self.base)
        for number in numbers:
            merge(base, self._chunks[number].totals)
        return base

    def forget(self, numbers: list[int]) -> None:
        """These chunks are gone; their totals are in the base from now on."""
        for number in numbers:
            account = self._chunks.pop(number)
            self._numbers.remove(number)
            self.disk_bytes -= account.used_bytes
            merge(self.base, account.totals)

    def held_items(self) -> int:
        return sum(account.held_items for account in self._chunks.values())

    def reader_offset(self) -> int:
        """The first chunk that holds anything; where writing stands, if none does."""
        held = (account.number for account in self._chunks.values() if account.held_items)
        return min(held, default=self.writer_offset)

    def _totals(self, account: ChunkAccount, queue: str) -> tuple[Totals, Totals]:
        in_chunk = account.totals.get(queue)
        if in_chunk is None:
            in_chunk = account.totals[queue] = Totals()
        in_all = self.books.get(queue)
        if in_all is None:
            in_all = self.books[queue] = Totals()
        return in_chunk, in_all
