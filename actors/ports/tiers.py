"""The tiers as interfaces: a warm queue to dispatch from, a cold store, and dead letters.

Warm is never the only copy: whatever it forgets, the owners enter again. Cold is an owner: it
durably owns every row it has confirmed until that row is settled, and its books account for it.

Every method is one step: it happens as a whole or not at all. Under cancellation:

- a method of `WarmQueue` may be cancelled before it takes effect, never halfway; a cancelled caller
  does not know whether it happened, and a lease that was never received expires.
- a method of `ColdQueue` and `DeadLetters` that has begun is completed (the store waits for it,
  shielded, within its own deadline), so that nothing is committed without the caller learning of
  it.

A store that is unreachable, too slow or refuses raises `StoreUnavailable`; then it is unknown
whether the step was taken, and repeating it is harmless. Times are milliseconds since 1970.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from actors.config.queue import QueueSettings
from actors.model.attempts import Attempts
from actors.model.books import ColdReceipt
from actors.model.finished import FinishedRow, Keeps, Past
from actors.model.keys import Holder, KeyRules, Offer
from actors.model.slices import HeldBy, ItemError, Slice
from actors.ports.ticks import TickStore
from actors.ports.trigger_jobs import TriggerStore
from actors.ports.writes import Decisions
from forebay.item import FailureReason
from forebay.run import RunHead


class StoreUnavailable(Exception):
    """The store did not answer in time. The step is retried; the operator must look."""


class StoreRefused(StoreUnavailable):
    """The store answered that it has not taken the step."""


class StoreCorrupt(Exception):
    """The store returned invalid data: it is set aside, and the operator must look."""


class WrongClaim(Exception):
    """The reader of a stream names a claim that the store does not expect; nothing was changed."""


# Warm.


class Limits(NamedTuple):
    """How much of a queue may be warm: waiting, scheduled and leased together."""

    items: int
    bytes: int


def limits_of(settings: QueueSettings) -> Limits:
    return Limits(settings.warm_max_items, settings.warm_max_bytes)


@dataclass(frozen=True, slots=True)
class Fill:
    """What a warm queue holds. `items` and `bytes` are exact, and never above the limits."""

    items: int = 0
    """Waiting + scheduled + leased."""
    bytes: int = 0
    scheduled: int = 0
    """Items that are not due yet."""
    leased: int = 0
    """Items leased to workers and consumers."""
    cold_items: int = 0
    """Items owned by the cold store."""

    @property
    def waiting(self) -> int:
        return self.items - self.scheduled - self.leased


class WarmFlow(NamedTuple):
    """What a warm queue holds of one flow and action."""

    queue: str
    flow: str
    action: str
    waiting: int
    """Items that are not leased, due or not."""
    from_cold: int
    """Items owned by the cold store, leased or not."""
    oldest_ms: int | None
    """When the oldest waiting item was enqueued; None: none waits."""


class Whereabouts(NamedTuple):
    """What a warm queue has of one run: each item is a bit in one of the three."""

    waiting: int = 0
    scheduled: int = 0
    leased: int = 0


class Entered(NamedTuple):
    rest: list[Slice]
    """Slices that did not fit, in order; the first may be the rest of one that was cut."""
    fill: Fill


@dataclass(frozen=True, slots=True, eq=False)
class Leased:
    """A slice that is leased to a worker until `until_ms`. The token is never used again."""

    token: int
    slice: Slice
    until_ms: int


class Ending(NamedTuple):
    """The end of a lease: `again` goes back to waiting (or scheduled), the rest leaves."""

    token: int
    again: tuple[Slice, ...] = ()


class WarmQueue(Protocol):
    async def enter(self, queue: str, slices: Sequence[Slice], limits: Limits) -> Entered:
        """Enters slices in the order given, as far as the limits allow, cutting the last one."""

    async def lease(
        self,
        queue: str,
        items_max: int,
        bytes_max: int,
        lease_s: float,
        except_flows: frozenset[str] = frozenset(),
    ) -> list[Leased]:
        """Leases the next due items, in order, within both limits; at least one if there is one.

        A slice that is too long is cut; the rest of it stays. Empty if nothing is due.
        """

    async def wait(self, queue: str) -> None:
        """Returns when `lease` may find something that it did not find before."""

    async def wait_change(self, queue: str) -> None:
        """Returns when there may be more room for the queue than at the call."""

    async def end(self, queue: str, endings: Sequence[Ending]) -> list[bool]:
        """Ends leases, each as a whole. False: the lease had expired or ended, nothing changed."""

    async def extend(self, queue: str, tokens: Sequence[int], lease_s: float) -> list[bool]:
        """Extends leases to `lease_s` from now. False: the lease had expired or ended."""

    async def expire(self) -> dict[str, int]:
        """Puts items with expired leases back at their old place; returns how many, by queue."""

    async def withdraw(
        self,
        queue: str,
        flow: str | None = None,
        positions: range | None = None,
        run_id: bytes | None = None,
    ) -> list[Slice]:
        """Takes out, in one step, all slices that are not leased: those of this flow, of runs at
        these positions of the journal, or of the run with this id, if given."""

    async def locate(self, queue: str, run_ids: frozenset[bytes]) -> Mapping[bytes, Whereabouts]:
        """Where items of these runs are; runs that are not here are left out. For operators who
        look for an item: it may look at everything the queue has."""

    async def fill(self, queue: str) -> Fill: ...

    async def fills(self) -> Mapping[str, Fill]:
        """All queues that are not empty."""

    async def flows(self) -> Sequence[WarmFlow]:
        """Counts per flow, for the metrics: from maintained counters, or at most 5 s old. Raises
        `StoreUnavailable` like the others."""


class WarmTier(WarmQueue, Protocol):
    """Warm as the tiers use it: it works on while its server, if it has one, does not answer."""

    @property
    def is_away(self) -> bool:
        """Whether the server does not answer."""

    @property
    def away_total(self) -> int:
        """How many times that happened."""

    async def recorded(self, queue: str, tokens: Sequence[int]) -> None:
        """The cold store has recorded the outcomes of leases that were ended."""

    def unrecorded(self, tokens: Sequence[int]) -> None:
        """The outcomes of these leases will never be recorded."""


# Cold.


@dataclass(frozen=True, slots=True, eq=False)
class NewRow:
    """Items that change their owner, or their state within the cold store.

    Several rows may share a body: a body is stored once and deleted with its last row.
    """

    row: bytes
    """The row's id, 16 bytes: storing it twice stores it once."""
    head: RunHead
    """The head of the body; its run id is the body's id."""
    data: bytes
    bits: int
    attempt: int = 0
    due_ms: int = 0
    """Not acquired before this time; 0: at once."""
    errors: tuple[ItemError, ...] = ()
    is_dead: bool = False
    """A dead letter: exactly one item."""
    origin: bytes = b""
    """Where it came from, in the encoding of its former owner; empty: from this store itself."""
    changed_ms: int = 0
    """When an operator changed it last; 0: never."""


@dataclass(frozen=True, slots=True, eq=False)
class ColdRow:
    """A row that was acquired under a lock."""

    row: bytes
    head: RunHead
    data: bytes
    bits: int
    attempt: int
    due_ms: int
    errors: tuple[ItemError, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RowOutcome:
    """The outcome of items of an acquired row. Items that are not named stay as they are.

    A row whose items are all named is deleted. `moved` rows are stored and visible in the same
    step; they share the row's body unless they bring another.
    """

    row: bytes
    lock: bytes
    delivered: int = 0
    moved: tuple[NewRow, ...] = ()
    moved_bits: int = 0
    """The row's items that `moved` replaces."""
    holder: HeldBy | None = None
    """Which worker or consumer had the items, for the history."""
    results: tuple[tuple[int, str], ...] = ()
    """Result texts of delivered items, for the history: (bits, text)."""


class Outlook(NamedTuple):
    """What a queue has in cold, for the promoter."""

    has_due: bool
    """Whether something can be acquired now."""
    next_due_ms: int | None
    """When the next row that is scheduled or leased comes due."""


@dataclass(slots=True)
class ColdTotals:
    """The cold store's books of one queue: `taken` + `accepted` = delivered + dead + deleted +
    lost + held, always."""

    taken: int = 0
    """Items ever handed over and confirmed here."""
    delivered: int = 0
    dead: int = 0
    """Dead letters that are here now."""
    deleted: int = 0
    held: int = 0
    runs: int = 0
    """Rows that are held."""
    lost: int = 0
    """Items that can no longer be read."""
    accepted: int = 0
    """Items that came here first and became visible here: those of keyed queues."""
    duplicate: int = 0
    """The same for items of runs that were answered before. Outside the equation."""
    taken_from_here: int = field(default=0, compare=False)
    """The part of `taken` that this daemon handed over; all of it if the store is not shared."""


class FlowCount(NamedTuple):
    queue: str
    flow: str
    action: str
    items: int
    dead: int


class Unconfirmed(NamedTuple):
    row: bytes
    origin: bytes
    queue: str
    items: int


class Stream(NamedTuple):
    """The position of a consumer in a queue."""

    acknowledged: int = 0
    """The number of the last acknowledged claim."""
    claim: int | None = None
    """The number of the open claim."""
    rows: int = 0
    items: int = 0
    bytes: int = 0
    """Of the open claim; the bytes count the body of each row."""
    waiting: int = 0
    """Items of the queue that are held here and not claimed by any consumer."""
    taken: int = 0
    """As in `ColdTotals`, at the same moment as `waiting`."""


class SeenRow(NamedTuple):
    """A row that was read without changing it."""

    number: int
    """Its number in the claim, from 0; 0 if it was not read as part of one."""
    due_ms: int
    attempt: int
    bits: int
    """0: all items of the run."""
    data: bytes


class SeenRows(NamedTuple):
    """Some rows of a claim."""

    rows: list[SeenRow]
    next: int | None
    """The number of the next row; None: these were the last."""


class Look(NamedTuple):
    """Some of the waiting rows."""

    rows: list[SeenRow]
    cursor: str | None
    """Where the next look begins; None: these were the last."""


class StoredAttempts(NamedTuple):
    """The attempts of a queue."""

    own: Attempts
    """Of this daemon."""
    others: Attempts
    """Of all other daemons that share the store."""


class ColdQueue(Protocol):
    @property
    def items(self) -> "ColdItems": ...

    @property
    def dead_letters(self) -> "DeadLetters": ...

    @property
    def ticks(self) -> "TickStore": ...

    @property
    def triggers(self) -> "TriggerStore": ...

    @property
    def decisions(self) -> Decisions: ...

    async def open(self) -> None:
        """Connects and migrates. Called once, before anything else."""

    async def store(self, rows: Sequence[NewRow]) -> None:
        """Stores rows: durable on return, but neither acquired nor counted until confirmed."""

    async def confirm(self, rows: Sequence[bytes]) -> None:
        """Makes rows visible and counted, after the former owner has let go of them."""

    async def unconfirmed(self) -> list[Unconfirmed]:
        """Rows that a crash left between `store` and `confirm`."""

    async def forget(self, rows: Sequence[bytes]) -> None:
        """Removes rows that were stored and never confirmed."""

    async def acquire(
        self,
        queue: str,
        lock: bytes,
        items_max: int,
        bytes_max: int,
        lease_s: float,
        except_flows: frozenset[str] = frozenset(),
        *,
        cuts: bool = False,
    ) -> list[ColdRow]:
        """Leases the next due rows, in order, within both limits; at least one if there is one.

        `cuts`: never leases more than `items_max` items. If the last row has more, it is cut, and
        its other items stay free at their place, as a row of their own.
        A row whose lease has expired is due again, at its old place.
        """

    async def renew(self, locks: Sequence[bytes], lease_s: float) -> list[int]:
        """Renews the leases of rows under these locks; returns the number of rows per lock."""

    async def release(self, lock: bytes, rows: Sequence[bytes]) -> None:
        """Gives back rows that were not tried; they are due again at once."""

    async def settle(
        self, outcomes: Sequence[RowOutcome], *, is_durable: bool = False
    ) -> list[bool]:
        """Records outcomes, all in one transaction. False: the lock had moved on, nothing changed.

        Outcomes that move items, and all if `is_durable`, are durable on return. A power loss
        within a second may undo the others, which only delivers again.
        """

    async def sync(self) -> None:
        """Makes all earlier settlements durable."""

    async def outlook(self, queue: str, except_flows: frozenset[str] = frozenset()) -> Outlook: ...

    async def put_off_anew(self) -> None:
        """After the wall clock was set back: no retry waits longer than its pause."""

    async def totals(self) -> Mapping[str, ColdTotals]: ...

    async def write_off(self, missing: Mapping[str, int]) -> bool:
        """Reports items per queue that the journal has handed over and that the totals lack. True:
        the store was found damaged at this start and counts them as taken and lost."""

    async def flows(self) -> Sequence[FlowCount]:
        """From maintained counters, without counting rows."""

    async def oldest(self) -> Mapping[tuple[str, str, str], int]:
        """By queue, flow and action: when the oldest held item was enqueued, including acquired
        ones. For the metrics: found through an index, or at most 5 s old."""

    async def receipt(self, write: bytes) -> ColdReceipt:
        """All 0 for a write without items here."""

    async def forget_receipts(self, writes: Sequence[bytes]) -> None:
        """Drops receipts that will not be asked for again; their rows are no longer counted."""

    async def claim(
        self,
        queue: str,
        consumer: str,
        after: int,
        items_max: int,
        except_flows: frozenset[str] = frozenset(),
    ) -> Stream:
        """Acknowledges the claim `after` if it is open: its rows are delivered. Then returns the
        open claim, or a new one of the due rows, in order, at least one if there is one. Durable on
        return. `items_max` 0: no new claim.

        Claimed rows are held for the consumer alone: they are not acquired, and neither the end of
        a lease nor a restart releases them, until the claim is acknowledged or the stream is
        dropped. Raises WrongClaim if `after` is neither the open claim nor the one before it.
        """

    async def stream(self, queue: str, consumer: str) -> Stream:
        """An unknown consumer gets the state before its first claim."""

    async def streams(self) -> list[tuple[str, str]]:
        """Every consumer, as (queue, consumer)."""

    async def drop_stream(self, queue: str, consumer: str) -> int:
        """Forgets a consumer; returns how many claimed items are due again at their old place."""

    async def fetch(
        self, queue: str, consumer: str, claim: int, first: int, rows_max: int, bytes_max: int
    ) -> SeenRows:
        """Rows of the open claim from the number `first` on, within both limits; at least one if
        there is one. The same each time. Raises WrongClaim if that claim is not open."""

    async def peek(self, queue: str, cursor: str, rows_max: int, bytes_max: int) -> Look:
        """Held rows, including leased and claimed ones, in the order in which they came here.

        Raises ValueError if the cursor (at first "") did not come from an earlier look."""

    def keep_keys(self, rules: KeyRules) -> None:
        """From now on keys are unique as `rules` says (actors/model/keys.py). Before the call no
        queue has unique keys; held keys are always released when their items end.

        `confirm` arbitrates as well, for untried items of a write in a queue with a policy. Items
        that lose are counted as taken and deleted at once."""

    async def offer(self, offers: Sequence[Offer]) -> list[bytes]:
        """Decides on runs of keyed queues, in order, and stores the items that may be stored:
        visible, counted as accepted, durable on return, all in one transaction. Returns one byte
        (`KeyOutcome`) per item of each run, and no bytes for a run whose id belongs to another run,
        of which nothing is stored.

        A run that is offered again, also after a restart, gets the same answer and changes nothing,
        as long as it is remembered (the last tens of thousands are).
        """

    async def key(self, queue: str, key: bytes) -> Holder | None:
        """The holder of a key; None: the key is free."""

    async def drop_key(self, queue: str, key: bytes) -> Holder | None:
        """Releases a key and returns its holder. A waiting item is deleted; an item that is done or
        unreadable loses its key; an item that has started or is dead is not changed."""

    async def forget_keys(self) -> int:
        """Forgets some keys that are free again, and some runs that were offered long ago; returns
        how many of both, 0 if there are no more."""

    def keep_history(self, keeps: Keeps) -> None:
        """From now on items that finish here go to the history, as `keeps` says, in the transaction
        that finishes them. Before the call none do."""

    async def note_history(self, rows: Sequence[FinishedRow]) -> None:
        """Adds items that finished elsewhere. On disk within a second; noted twice, shown twice."""

    async def history(self, queue: str, cursor: str, rows_max: int, bytes_max: int) -> Past:
        """Finished items, newest first, within both limits; at least one if there is one.

        A chain of pages ends with what was there when it began. Raises ValueError as `peek`
        does."""

    async def attempts(self, queue: str) -> StoredAttempts: ...

    async def own_attempts(self, queues: Sequence[str]) -> Mapping[str, Attempts]:
        """What `note_attempts` of this daemon said last, also before a restart. Queues of which it
        said nothing are left out."""

    async def note_attempts(self, figures: Mapping[str, Attempts]) -> None:
        """Replaces what this daemon said of these queues. On disk within a second."""

    async def history_queues(self) -> list[str]:
        """The queues that have a history."""

    async def forget_history(self, queue: str, before_ms: int) -> int:
        """Deletes some rows that finished before then, oldest first; returns how many, 0 if there
        are no more."""

    async def close(self) -> None: ...


# Single items.


@dataclass(frozen=True, slots=True, eq=False)
class ColdSight:
    """Items of one row in its present state, or of a row of the history."""

    state: Literal["COLD_QUEUED", "CLAIMED", "FAILED", "delivered", "deleted"]
    head: RunHead
    data: bytes
    bits: int
    attempt: int
    due_ms: int
    errors: tuple[ItemError, ...]
    row: bytes = b""
    """Empty for the history."""
    lock: bytes | None = None
    """The lock under which it is acquired."""
    ended_ms: int | None = None
    """When it died or finished."""
    place: int = 0
    """In a scan: the position to continue behind this row."""
    holder: HeldBy | None = None
    """In the history: which worker or consumer had the items last."""
    result: str = ""
    job: str = ""
    """The job that has, or had, claimed the items."""
    is_spent: bool = False
    """A dead job of a trigger whose items were given back: it is not retried."""
    changed_ms: int = 0
    """When an operator last changed or retried it; 0: never."""
    first_due_ms: int = 0
    """When it was first due; 0: as its run says."""


class ColdScan(NamedTuple):
    rows: list[ColdSight]
    after: int | None
    """Where the next scan begins; None: these were the last."""


class ColdPart(NamedTuple):
    """Items of a row; `lock` is the one it was acquired under, None if it was not."""

    row: bytes
    bits: int
    lock: bytes | None


class ColdItems(Protocol):
    """Single items of the cold store, for operators and tools; not for delivery."""

    async def find(self, run_id: bytes, index: int) -> list[ColdSight]:
        """Everything known about one item: at most one held row, its dead letter and its history,
        newest first. `bits` name this item alone."""

    async def scan(self, queue: str | None, after: int, rows_max: int, bytes_max: int) -> ColdScan:
        """Held rows of a queue, or of all, in the order in which they came here, from 0 on."""

    async def scan_history(
        self, queue: str | None, after: int, rows_max: int, bytes_max: int
    ) -> ColdScan:
        """Rows of the history, the last noted first, from 0 on."""

    async def delete(self, row: bytes, bits: int, lock: bytes | None) -> bool:
        """Deletes items of a row and counts them as deleted; the history keeps them if the queue
        has one. Durable on return. False: the row lacks some of them, is acquired under another
        lock, or is claimed; nothing has changed."""

    async def delete_all(self, parts: Sequence[ColdPart]) -> list[bool]:
        """As `delete`, for many rows in one step, without keeping them in the history."""

    async def purge(self, queue: str, rows_max: int) -> int:
        """Deletes rows of a queue that are neither acquired nor claimed, due or not, and counts
        them as deleted; returns how many items, 0 if there are no more. The history does not keep
        them. Durable on return."""

    async def change(self, row: bytes, bits: int, lock: bytes | None, new: NewRow) -> bool:
        """As `delete`, but the items move to `new`: another row of the same queue, waiting or a
        dead letter."""


# Dead letters.


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Selects dead letters; None matches all. `ids` are item ids as text."""

    queue: str | None = None
    flow: str | None = None
    action: str | None = None
    error: str | None = None
    """Part of the text of the last error, ignoring case."""
    died_before_ms: int | None = None
    died_after_ms: int | None = None
    ids: tuple[str, ...] = ()
    failure_reason: FailureReason | None = None
    """Of the last error."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    row: bytes
    id: str
    """The item's id."""
    queue: str
    flow: str
    action: str
    key: str | None
    priority: int
    attempt: int
    enqueued_ms: int
    died_ms: int
    errors: tuple[ItemError, ...]
    headers: Mapping[str, str] = field(default_factory=dict)
    payload: bytes | None = None
    """Only if it was asked for."""
    changed_ms: int = 0
    """When its payload was last changed; 0: never."""


class DeadPage(NamedTuple):
    letters: list[DeadLetter]
    cursor: bytes | None
    """Where the next page begins; None: this was the last."""


class DeadChange(NamedTuple):
    """The result of one step over many dead letters."""

    done: int
    queues: frozenset[str]
    """The queues of these items: their promoters may have work."""
    cursor: bytes | None
    """Where the next step begins; None: all matching letters are done."""
    spent: int = 0
    """How many of them are jobs of triggers that must not be retried, because their items were
    given back (actors/ports/trigger_jobs.py)."""


class DeadLetters(Protocol):
    async def find(
        self, which: DeadFilter, limit: int, cursor: bytes | None = None, *, payloads: bool = False
    ) -> DeadPage:
        """Dead letters, oldest first."""

    async def count(self, which: DeadFilter, stop_at: int) -> int:
        """How many match, counted up to `stop_at`."""

    async def retry(self, which: DeadFilter, limit: int, cursor: bytes | None = None) -> DeadChange:
        """Makes them due at once, with attempts from 0; the error history is kept."""

    async def remove(
        self, which: DeadFilter, limit: int, cursor: bytes | None = None
    ) -> DeadChange:
        """Deletes them and counts them as deleted. A queue's history still shows what it keeps."""

    async def edit(self, item_id: str, payload: bytes) -> bool:
        """Replaces the payload of one dead letter; the id stays. False: no such dead letter."""
