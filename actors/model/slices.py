"""Slices: items of one run that share their attempt, their errors and their due time.

A slice is what warm holds, what a worker leases, and what an outcome refers to. It owns nothing:
the run belongs to the journal or to a row of the cold store, and a slice is a reference with the
token under which the run was lent. Items are named by bits: bit `i` stands for item `i` of the run,
so that any set of a run's items is one number.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from forebay.errors import BadRun
from forebay.ids import format_item_id
from forebay.item import FailureReason, read_failure_reason
from forebay.run import IDS, Run, RunHead

ERROR_TEXT_MAX: Final = 2000
"""How many characters of an error are kept."""
ERRORS_MAX: Final = 20
"""How many errors of an item are remembered: the first, and the newest."""

SortKey = tuple[int, int, bytes, int]


@dataclass(frozen=True, slots=True)
class InJournal:
    """Lent by the journal."""

    token: int
    position: int


@dataclass(frozen=True, slots=True)
class InCold:
    """Lent by a row of the cold store, under the lock it was acquired with."""

    row: bytes
    lock: bytes


@dataclass(frozen=True, slots=True, eq=False)
class LentRun:
    """A run in memory, and its owner."""

    head: RunHead
    data: bytes
    owner: InJournal | InCold

    @property
    def item_bytes(self) -> int:
        """The bytes that each item counts against limits, never 0.

        The same for all items of a run, and rounded up: so shares add up, however often a run is
        cut, and a whole run counts at least its bytes, and at most one byte per item more.
        """
        return 1 + len(self.data) // self.head.count


class HeldBy(NamedTuple):
    """Which worker or consumer has, or had, items."""

    by: str
    """`host/queue/` and a worker's number or a consumer's name; for a claim, the name alone."""
    since_ms: int


class ItemError(NamedTuple):
    """One failed attempt."""

    attempt: int
    at_ms: int
    text: str
    failure_reason: FailureReason = "application"
    locked_by: str = ""
    """Which worker or consumer had the item; empty if unknown."""
    locked_ms: int = 0
    """Since when it had the item."""

    @property
    def holder(self) -> HeldBy | None:
        return HeldBy(self.locked_by, self.locked_ms) if self.locked_by else None


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    run: LentRun
    bits: int
    attempt: int = 0
    """Failed attempts since the push, or since it was retried as a dead letter."""
    due_ms: int = 0
    """Not delivered before this time; 0: at once."""
    errors: tuple[ItemError, ...] = ()

    @property
    def items(self) -> int:
        return self.bits.bit_count()

    @property
    def bytes(self) -> int:
        """Its share of the run's bytes, never 0: what it counts against limits."""
        return self.run.item_bytes * self.bits.bit_count()

    @property
    def sort_key(self) -> SortKey:
        """The order of delivery everywhere: priority, first due time, run id, first item."""
        return sort_key(self.run.head, self.bits)

    def split(self, items: int) -> tuple["Slice", "Slice | None"]:
        """The first `items` items, and the rest, if there is one."""
        if items < 1:
            raise ValueError(f"a slice of {items} items")
        first = first_bits(self.bits, items)
        rest = self.bits & ~first
        if not rest:
            return self, None
        return (
            Slice(self.run, first, self.attempt, self.due_ms, self.errors),
            Slice(self.run, rest, self.attempt, self.due_ms, self.errors),
        )


def sort_key(head: RunHead, bits: int) -> SortKey:
    return (head.priority, head.due_ms or head.enqueued_ms, head.run_id, lowest_bit(bits))


def remember(errors: tuple[ItemError, ...], error: ItemError) -> tuple[ItemError, ...]:
    """The history with one more failure; past the bound the first and the newest are kept."""
    kept = (*errors, error._replace(text=cut_text(error.text)))
    return kept if len(kept) <= ERRORS_MAX else (kept[0], *kept[-(ERRORS_MAX - 1) :])


def cut_text(text: str, characters_max: int = ERROR_TEXT_MAX) -> str:
    """At most this many characters; an ellipsis marks a cut."""
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def error_rows(errors: Iterable[ItemError]) -> list[tuple[Any, ...]]:
    """Errors as stored in JSON: lists, without trailing default values."""
    return [
        tuple(error) if error.locked_by else error[: 3 if error[3] == "application" else 4]
        for error in errors
    ]


def read_error(row: Sequence[Any]) -> ItemError:
    """Raises ValueError or TypeError if it is invalid. Members of a later version are ignored."""
    attempt, at_ms, text = row[:3]
    error = ItemError(int(attempt), int(at_ms), str(text))
    if len(row) > 3:
        error = error._replace(failure_reason=read_failure_reason(row[3]) or "application")
    if len(row) > 5:
        error = error._replace(locked_by=str(row[4]), locked_ms=int(row[5]))
    return error


def item_bits(first: int, last: int) -> int:
    """A bit for each item from `first` to `last` (exclusive)."""
    return (1 << last) - (1 << first) if first < last else 0


def lowest_bit(bits: int) -> int:
    """The index of the first item."""
    return (bits & -bits).bit_length() - 1


def first_bits(bits: int, items: int) -> int:
    """The bits of the first `items` items."""
    if bits.bit_count() <= items:
        return bits
    first = lowest_bit(bits)
    straight = bits & item_bits(first, first + items)
    if straight.bit_count() == items:
        return straight
    # Binary search, because gaps may be anywhere: it takes a few steps of 1 µs each; item by
    # item it took up to 1.5 ms.
    low, high = first + items, bits.bit_length()
    while low < high:
        middle = (low + high) // 2
        if (bits & ((1 << middle) - 1)).bit_count() < items:
            low = middle + 1
        else:
            high = middle
    return bits & ((1 << low) - 1)


def ranges(bits: int) -> Iterator[tuple[int, int]]:
    """The ranges of neighbouring items, as (first, last exclusive)."""
    if not bits:
        return
    first = lowest_bit(bits)
    last = bits.bit_length()
    if last - first == bits.bit_count():
        yield first, last
        return
    # Searching text is three times as fast as shifting numbers of 4,096 bits.
    text = bin(bits)[:1:-1]
    while first >= 0:
        last = text.find("0", first)
        if last < 0:
            last = len(text)
        yield first, last
        first = text.find("1", last)


def indexes(bits: int) -> Iterator[int]:
    """The index of each item."""
    for first, last in ranges(bits):
        yield from range(first, last)


def holder(host: str, queue: str, worker: str, since_ms: int) -> HeldBy:
    """The holder of items, as it is recorded with their outcome."""
    return HeldBy("/".join(part for part in (host, queue, worker) if part), since_ms)


def first_item_id(slice_: Slice) -> str:
    """The id of a slice's first item. May unpack the run: use a thread for many."""
    head, index = slice_.run.head, lowest_bit(slice_.bits)
    if head.flags & IDS:
        try:
            return Run(head, slice_.run.data).item_ids(index, index + 1)[0]
        except BadRun:
            pass
    return format_item_id(head.run_id, index)
