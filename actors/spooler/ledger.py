"""The ledger: the books of every chunk, which also decide when a chunk may be freed.

Each chunk keeps the totals of its accounts (actors/model/books.py). The books of the daemon are
the base (totals of chunks that are gone) plus the totals of all present chunks, kept as a running
sum. Staged items are outside the books until they are published, and items dropped with their stage
are never counted. A sealed chunk that holds no items may be freed. Plain data of the spooler.
"""

import sys
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from actors.model.books import (
    NO_STAGE,
    Account,
    Books,
    Totals,
    count_fate,
    parse_account,
    written_by,
)
from actors.model.runs import Fate, Place
from actors.ports.journal import RecoveredChunk
from actors.spooler.writes import Phase, Writes

PINNED_FACTOR: Final = 2
PINNED_SHARE: Final = 0.25
"""A chunk with at most this share of its items left is worth emptying."""
HEAD_BYTES_MAX: Final = 4096
"""More than the head of a chunk takes before its first run."""


@dataclass(slots=True)
class ChunkAccount:
    number: int
    used_bytes: int = 0
    held_items: int = 0
    is_sealed: bool = False
    doubts: int = 0
    """Hand-overs under way for which it is unknown what the cold store has."""
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
    def __init__(self, writes: Writes | None = None) -> None:
        self._writes = writes if writes is not None else Writes()
        self.base: Books = {}
        """Totals of chunks that are gone, by account."""
        self.books: Books = {}
        """Totals of base and chunks together, by queue."""
        self.receipts: dict[bytes, Totals] = {}
        """The same for published and moved-in items, by write."""
        self.moved: Counter[bytes] = Counter()
        """How many of these were ever moved here, by write."""
        self.staged: Counter[str] = Counter()
        """Items that are not visible yet, by queue."""
        self._accounts: dict[int, str] = {}
        """Account names of live runs that were staged, by position."""
        self.disk_bytes = 0
        """The size of all chunks, live or not."""
        self.live_runs = 0
        self.live_bytes = 0
        self.writer_offset = 0
        """The position after the newest run."""
        self._chunks: dict[int, ChunkAccount] = {}
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._chunks)

    def load(self, base: Books, chunks: list[RecoveredChunk]) -> None:
        """Takes over the books that recovery found."""
        for name, totals in base.items():
            kept = self._name_in_base(name)
            if kept is not None:
                self._add_to_base(self.base, kept, totals)
        for name, totals in self.base.items():
            self._enter(parse_account(name), totals)
        for found in chunks:
            self.start(found.number)
            account = self._chunks[found.number]
            account.is_sealed = True
            account.used_bytes = found.used_bytes
            account.totals = found.totals
            self.disk_bytes += found.used_bytes
            self.writer_offset = max(self.writer_offset, found.number + found.used_bytes)
            for name, totals in found.totals.items():
                account.held_items += self._enter(parse_account(name), totals)

    def _enter(self, account: Account, totals: Totals) -> int:
        """Counts totals that recovery found; returns how many of their items are held."""
        if not account.write:
            self.books.setdefault(account.queue, Totals()).add(totals)
            return totals.held
        match self._phase(account):
            case Phase.OPEN:
                self.staged[account.queue] += totals.held
            case Phase.PUBLISHED:
                self.books.setdefault(account.queue, Totals()).add(totals)
                self.receipts.setdefault(account.write, Totals()).add(totals)
                if account.is_moved:
                    self.moved[account.write] += totals.accepted
            case Phase.ABORTED:
                return 0
        return totals.held

    def _phase(self, account: Account) -> Phase:
        if not account.write or account.stage == NO_STAGE:
            # Pushed items are visible; of writes that are gone only published items are kept.
            return Phase.PUBLISHED
        return self._writes.phase(account.write, account.stage)

    def start(self, number: int) -> None:
        self._chunks[number] = ChunkAccount(number)
        insort(self._numbers, number)

    def seal(self, number: int) -> None:
        self._chunks[number].is_sealed = True

    def number_of(self, position: int) -> int:
        """The number of the chunk that holds a position."""
        return self._numbers[bisect_right(self._numbers, position) - 1]

    def numbers(self) -> list[int]:
        """The numbers of all chunks, newest first."""
        return self._numbers[::-1]

    def accept(self, position: int, size: int, queue: str, items: int) -> None:
        """Counts a stored run that was pushed."""
        self._keep(position, size, items)
        for totals in self._totals(position, queue):
            totals.accepted += items

    def stage(self, position: int, size: int, account: Account, items: int) -> None:
        """Counts a stored run that was staged."""
        chunk = self._keep(position, size, items)
        # One string object for all runs of a stage.
        name = sys.intern(account.name)
        self.note_account(position, name)
        chunk.totals.setdefault(name, Totals()).accepted += items
        self.staged[account.queue] += items

    def note_account(self, position: int, name: str) -> None:
        """Puts a live run into this account instead of its queue's."""
        self._accounts[position] = name

    def publish(self, write: bytes, queue: str, items: int) -> None:
        """Counts staged items as accepted."""
        self.staged[queue] -= items
        self.books.setdefault(queue, Totals()).accepted += items
        self.receipts.setdefault(write, Totals()).accepted += items

    def unstage(self, queue: str, place: Place) -> None:
        """Drops a staged run with its stage, as if it had never been stored."""
        self._accounts.pop(place.position, None)
        self._chunks[self.number_of(place.position)].held_items -= place.items
        self.live_runs -= 1
        self.live_bytes -= place.size
        self.staged[queue] -= place.items

    def _keep(self, position: int, size: int, items: int) -> ChunkAccount:
        chunk = self._chunks[self.number_of(position)]
        chunk.used_bytes += size
        chunk.held_items += items
        self.disk_bytes += size
        self.writer_offset = position + size
        self.add_live(size)
        return chunk

    def add_live(self, size: int) -> None:
        """Counts a run of this size as held, in whole or in part."""
        self.live_runs += 1
        self.live_bytes += size

    def finish(self, fact: "ItemsFinished") -> None:
        """Books the fate of items, once its mark is on disk."""
        if fact.fate is Fate.RETRY:
            return
        if fact.run_bytes:
            self.live_runs -= 1
            self.live_bytes -= fact.run_bytes
        self._chunks[self.number_of(fact.position)].held_items -= fact.items
        for totals in self._totals(fact.position, fact.queue):
            count_fate(totals, fact.fate, fact.items)
        if fact.run_bytes:
            self._accounts.pop(fact.position, None)

    def doubt(self, position: int, change: int) -> None:
        """Counts a hand-over from this position that begins (1) or is over (-1)."""
        account = self._chunks.get(self.number_of(position))
        if account is not None:
            account.doubts += change

    def count_duplicate(self, queue: str, items: int) -> None:
        """Duplicates belong to no chunk: they go straight to the base."""
        for books in (self.base, self.books):
            books.setdefault(queue, Totals()).duplicate += items

    def has_idle_chunk(self) -> bool:
        """Whether an unsealed chunk has taken runs and now holds no items."""
        return any(
            account.used_bytes and not account.is_sealed and not account.held_items
            for account in self._chunks.values()
        )

    def dead_chunks(self) -> list[int]:
        """Sealed chunks without held items or hand-overs in doubt."""
        return [
            account.number
            for account in self._chunks.values()
            if account.is_sealed and account.held_items == 0 and not account.doubts
        ]

    def pinned(self, disk_bytes_max: int) -> list[tuple[str, range]]:
        """Which queues' items keep old, almost empty chunks alive, and their positions.

        Empty while the chunks take little more than their live items. A chunk with staged items
        stays anyway, because those cannot be handed over.
        """
        surplus = self.disk_bytes - max(disk_bytes_max, PINNED_FACTOR * self.live_bytes)
        found: list[tuple[str, range]] = []
        for number in self._numbers:
            account = self._chunks[number]
            if surplus <= 0:
                break
            accepted = sum(totals.accepted for totals in account.totals.values())
            if account.is_sealed and 0 < account.held_items <= PINNED_SHARE * accepted:
                held = [
                    parse_account(name) for name, totals in account.totals.items() if totals.held
                ]
                phases = {entry: self._phase(entry) for entry in held}
                if Phase.OPEN in phases.values():
                    continue
                surplus -= account.used_bytes
                positions = range(number, number + account.used_bytes + HEAD_BYTES_MAX)
                queues = {entry.queue for entry in held if phases[entry] is Phase.PUBLISHED}
                found += [(queue, positions) for queue in sorted(queues)]
        return found

    def base_without(self, numbers: list[int]) -> Books:
        """The base as it will be once these chunks are gone. Changes nothing yet.

        The base names every write whose receipt is kept. Copying 60,000 of them (a batch every 10 s
        for a week) one by one took 685 ms; a shallow copy takes 2.
        """
        base = dict(self.base)
        for number in numbers:
            for name, totals in self._chunks[number].totals.items():
                kept = self._name_in_base(name)
                if kept is not None:
                    self._add_to_base(base, kept, totals)
        return base

    def _name_in_base(self, name: str) -> str | None:
        """Published items count for their write while the write is known, and for their queue
        afterwards; items dropped with their stage do not count."""
        account = parse_account(name)
        if not account.write:
            return name
        if self._phase(account) is not Phase.PUBLISHED:
            return None
        is_known = self._writes.is_known(account.write)
        return account.of_write.name if is_known else account.queue

    def _add_to_base(self, base: Books, name: str, totals: Totals) -> None:
        """Adds totals to a base without changing objects that another base shares."""
        added = Totals()
        added.add(base.get(name, added))
        added.add(totals)
        base[name] = added

    def forget_writes(self, writes: Sequence[bytes]) -> None:
        """Drops the receipts of these writes; their totals count for the queues from now on."""
        gone = {write.hex() for write in writes}
        for write in writes:
            self.receipts.pop(write, None)
            self.moved.pop(write, None)
        base = self.base.copy()
        for name, totals in self.base.items():
            if written_by(name) in gone:
                del base[name]
                self._add_to_base(base, parse_account(name).queue, totals)
        self.base = base

    def forget(self, numbers: list[int]) -> None:
        """Removes freed chunks; their totals are in the base from now on."""
        self.base = self.base_without(numbers)
        for number in numbers:
            account = self._chunks.pop(number)
            self._numbers.remove(number)
            self.disk_bytes -= account.used_bytes

    def writes_on_disk(self) -> frozenset[bytes]:
        """The writes that have runs in a chunk, live or not."""
        accounts = (parse_account(name) for chunk in self._chunks.values() for name in chunk.totals)
        return frozenset(account.write for account in accounts if account.write)

    def queues_of(self, write: bytes) -> set[str]:
        """The queues where a write has or had items. Looks at all accounts: for operators only."""
        books = [self.base, *(chunk.totals for chunk in self._chunks.values())]
        digits = write.hex()
        return {
            parse_account(name).queue
            for totals in books
            for name in totals
            if written_by(name) == digits
        }

    def held_items(self) -> int:
        return sum(account.held_items for account in self._chunks.values())

    def reader_offset(self) -> int:
        """The first chunk that holds items; the write position if none does."""
        held = (account.number for account in self._chunks.values() if account.held_items)
        return min(held, default=self.writer_offset)

    def _totals(self, position: int, queue: str) -> tuple[Totals, ...]:
        """All totals that count the run at `position`."""
        chunk = self._chunks[self.number_of(position)]
        name = self._accounts.get(position, queue)
        in_chunk = chunk.totals.get(name)
        if in_chunk is None:
            in_chunk = chunk.totals[name] = Totals()
        in_all = self.books.get(queue)
        if in_all is None:
            in_all = self.books[queue] = Totals()
        if name == queue:
            return in_chunk, in_all
        return in_chunk, in_all, self.receipts.setdefault(parse_account(name).write, Totals())
