"""The tiers as interfaces: a warm queue to dispatch from, a cold one that stores, dead letters.

Warm is never the only copy: whatever it forgets, the owners enter again. Cold is an owner: what
it has confirmed is its own, durable, until it is settled, and its books say so.

Every method is one step: it has happened as a whole or not at all. Under cancellation:

- a method of `WarmQueue` may be cancelled before it takes effect, never in the middle; a caller
  that is cancelled does not know whether it happened, and a lease that nobody knows of runs out.
- a method of `ColdQueue` and `DeadLetters` that has begun is carried through (a store waits for
  it, shielded, within its own deadline), so that nothing is committed behind the caller's back
  without the caller being there to hear of it.

A store that cannot be reached, is too slow or refuses raises `StoreUnavailable`; whether the step
was taken is unknown then, and repeating it is harmless. Times are milliseconds since 1970.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from actors.config.queue import QueueSettings
from actors.model.finished import FinishedRow, Keeps, Past
from actors.model.keys import Holder, KeyRules, Offer
from actors.model.slices import HeldBy, ItemError, Slice
from forebay.failure_reason import FailureReason
from forebay.run import RunHead


class StoreUnavailable(Exception):
    """The store did not answer, or not in time. It is tried again; the operator must look."""


class StoreCorrupt(Exception):
    """What the store gave back makes no sense: it is set aside, and somebody must look."""


class WrongClaim(Exception):
    """A stream's reader names a claim that is not where the store is; nothing was changed."""


# Warm.


class Limits(NamedTuple):
    """How much of a queue may be warm, in all: waiting, scheduled and leased."""

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
    """Items in the hands of workers."""
    cold_items: int = 0
    """Those of `items` that belong to the cold store."""

    @property
    def waiting(self) -> int:
        return self.items - self.scheduled - self.leased


class WarmFlow(NamedTuple):
    """What a warm queue holds of one flow and action."""

    queue: str
    flow: str
    action: str
    waiting: int
    """Items that nobody has leased, due or not."""
    from_cold: int
    """Items that belong to the cold store, leased or not."""
    oldest_ms: int | None
    """When the oldest of those that wait was enqueued; None: none waits."""


class Whereabouts(NamedTuple):
    """What a warm queue has of one run: a bit for each item, in one of the three."""

    waiting: int = 0
    scheduled: int = 0
    leased: int = 0


class Entered(NamedTuple):
    rest: list[Slice]
    """What did not fit, in order; its first slice may be the end of one that was cut."""
    fill: Fill


@dataclass(frozen=True, slots=True, eq=False)
class Leased:
    """A slice in a worker's hands until `until_ms`. The token is never used again."""

    token: int
    slice: Slice
    until_ms: int


class Ending(NamedTuple):
    """The end of a lease: `again` goes back to waiting (or scheduled), the rest leaves."""

    token: int
    again: tuple[Slice, ...] = ()
    post: bytes = b""
    """For the owner, where the run is another daemon's: what became of the items. It is in the
    owner's mailbox in the same step in which the lease ends."""


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
        """Ends leases, each as a whole. False: the lease had run out or ended, nothing changed."""

    async def extend(self, queue: str, tokens: Sequence[int], lease_s: float) -> list[bool]:
        """Leases last `lease_s` from now. False: the lease had run out or ended."""

    async def expire(self) -> dict[str, int]:
        """Puts back what was leased for too long, at its old place; how many items, by queue."""

    async def withdraw(
        self,
        queue: str,
        flow: str | None = None,
        positions: range | None = None,
        run_id: bytes | None = None,
    ) -> list[Slice]:
        """Takes out, in one step, all that is not leased: of this flow, of runs that lie in the
        journal at these positions, of the run of this id, where given."""

    async def locate(self, queue: str, run_ids: frozenset[bytes]) -> Mapping[bytes, Whereabouts]:
        """Where items of these runs are; runs that are not here are left out. For people who look
        for an item: it may look at all that the queue has."""

    async def fill(self, queue: str) -> Fill: ...

    async def fills(self) -> Mapping[str, Fill]:
        """All queues that hold anything."""

    async def flows(self) -> Sequence[WarmFlow]:
        """All that is held, by flow, for the metrics: from maintained counters, or not older than
        5 s. `StoreUnavailable` as with the others."""


# Cold.


@dataclass(frozen=True, slots=True, eq=False)
class NewRow:
    """Items that change their owner, or their state within the cold store.

    Several rows may share a body: a body is stored once, and goes with its last row.
    """

    row: bytes
    """16 bytes, the row's id: storing it twice stores it once."""
    head: RunHead
    """Of the body; its run id is the body's id."""
    data: bytes
    bits: int
    attempt: int = 0
    due_ms: int = 0
    """Not to be acquired before; 0: at once."""
    errors: tuple[ItemError, ...] = ()
    is_dead: bool = False
    """A dead letter: exactly one item."""
    origin: bytes = b""
    """Where it came from, in the words of its former owner; empty: from this store itself."""
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
    """What became of items of an acquired row. Items that are named nowhere stay as they are.

    When all of the row's items are named, the row is gone. `moved` rows are stored and visible in
    the same step; their body is the row's own, unless they bring another.
    """

    row: bytes
    lock: bytes
    delivered: int = 0
    moved: tuple[NewRow, ...] = ()
    moved_bits: int = 0
    """The row's items that `moved` stands for."""
    holder: HeldBy | None = None
    """Who had the items: for history."""
    results: tuple[tuple[int, str], ...] = ()
    """What was said of items that are delivered, likewise: bits and text."""


class Outlook(NamedTuple):
    """What a queue has in cold for the promoter."""

    has_due: bool
    """Something can be acquired now."""
    next_due_ms: int | None
    """When the next row that is not due yet (or leased) comes due."""


@dataclass(slots=True)
class ColdTotals:
    """The cold store's books of one queue: `taken` + `accepted` = delivered + dead + deleted +
    lost + held, always."""

    taken: int = 0
    """Items that were handed over and confirmed here, ever."""
    delivered: int = 0
    dead: int = 0
    """Dead letters that are here now."""
    deleted: int = 0
    held: int = 0
    runs: int = 0
    """Rows that are held."""
    lost: int = 0
    """Items that cannot be read any more."""
    accepted: int = 0
    """Items that came here first, and became visible here: those of keyed queues."""
    duplicate: int = 0
    """Of the same, items of runs that were answered before. Outside the equation."""
    taken_from_here: int = field(default=0, compare=False)
    """Of `taken`, what this daemon has had confirmed; all of it, where the store is its own."""


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


class ColdReceipt(NamedTuple):
    """What became, in the cold store, of the items of one write."""

    delivered: int = 0
    dead: int = 0
    """Dead letters that are here now."""
    deleted: int = 0
    lost: int = 0
    """In rows that cannot be read, and were set aside."""
    updated: int = 0
    """Items that took the key of another, which was deleted."""
    ignored: int = 0
    """Of those that are deleted: items whose key was taken when they became visible."""
    conflict: int = 0
    """The same, of a queue that rejects them, or where the other could not be replaced."""


class Stream(NamedTuple):
    """Where a consumer of a queue stands."""

    acknowledged: int = 0
    """The number of the last claim that was acknowledged."""
    claim: int | None = None
    """The number of the open claim."""
    rows: int = 0
    items: int = 0
    bytes: int = 0
    """Of the open claim; the bytes are those of the bodies, each row's counted."""
    waiting: int = 0
    """Items of the queue that are held here and that no consumer has claimed."""
    taken: int = 0
    """As in `ColdTotals`, at the same moment as `waiting`."""


class SeenRow(NamedTuple):
    """A row that was read, and not changed."""

    number: int
    """In its claim, from 0; 0 where it was not read as part of one."""
    due_ms: int
    attempt: int
    bits: int
    """0: all items of the run."""
    data: bytes


class Seen(NamedTuple):
    """Some rows of a claim."""

    rows: list[SeenRow]
    next: int | None
    """The number of the next row; None: these were the last."""


class Look(NamedTuple):
    """Some of the rows that wait."""

    rows: list[SeenRow]
    cursor: str | None
    """Where the next look begins; None: these were the last."""


class ColdQueue(Protocol):
    async def open(self) -> None:
        """Connects and migrates. Before anything else, once."""

    async def store(self, rows: Sequence[NewRow]) -> None:
        """Durable on return, and invisible until confirmed: not acquired, not counted."""

    async def confirm(self, rows: Sequence[bytes]) -> None:
        """The former owner has let go: these are visible and counted from now on."""

    async def unconfirmed(self) -> list[Unconfirmed]:
        """What a crash left between `store` and `confirm`."""

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
    ) -> list[ColdRow]:
        """Leases the next due rows, in order, within both limits; at least one if there is one.

        A row whose lease has run out is due again, at its old place.
        """

    async def renew(self, locks: Sequence[bytes], lease_s: float) -> list[int]:
        """Rows under these locks are leased for `lease_s` from now; how many rows each has."""

    async def release(self, lock: bytes, rows: Sequence[bytes]) -> None:
        """Gives rows back that were not tried; they are due again at once."""

    async def settle(self, outcomes: Sequence[RowOutcome]) -> list[bool]:
        """Records outcomes, all in one transaction. False: the lock had moved on, nothing changed.

        Delivered items may come again after a power loss within a second; nothing else may.
        """

    async def sync(self) -> None:
        """What was settled before is durable on return."""

    async def outlook(self, queue: str, except_flows: frozenset[str] = frozenset()) -> Outlook: ...

    async def put_off_anew(self) -> None:
        """The wall clock was set back: retries wait for their pause, and no longer."""

    async def totals(self) -> Mapping[str, ColdTotals]: ...

    async def write_off(self, missing: Mapping[str, int]) -> bool:
        """The journal has handed over so many items of these queues that are not in the totals.
        True: the store was found damaged at this start, and counts them as taken and lost."""

    async def flows(self) -> Sequence[FlowCount]:
        """Maintained counters, not a count of rows."""

    async def oldest(self) -> Mapping[tuple[str, str, str], int]:
        """By queue, flow and action: when the oldest item was enqueued that is held here, acquired
        ones too. For the metrics: found through an index, or not older than 5 s."""

    async def receipt(self, write: bytes) -> ColdReceipt:
        """Of a write that nothing here belongs to, all 0."""

    async def forget_receipts(self, writes: Sequence[bytes]) -> None:
        """Nobody will ask for these again; what comes of their rows is not counted any more."""

    async def claim(
        self,
        queue: str,
        consumer: str,
        after: int,
        items_max: int,
        except_flows: frozenset[str] = frozenset(),
    ) -> Stream:
        """Acknowledges the claim `after`, if it is the open one: its rows are delivered. Then the
        open claim, or else a new one of the rows that are due, in order, at least one if there is
        one. Durable on return. `items_max` 0: no new claim.

        Claimed rows are held, and nobody's but the consumer's: not acquired, not released by the
        end of a lease or of a life, until the claim is acknowledged or the stream is dropped.
        WrongClaim if `after` is neither the open claim nor the one before it.
        """

    async def stream(self, queue: str, consumer: str) -> Stream:
        """Of a consumer that was never here, as before its first claim."""

    async def streams(self) -> list[tuple[str, str]]:
        """Every queue that has a consumer, and the consumer."""

    async def drop_stream(self, queue: str, consumer: str) -> int:
        """Forgets a consumer; what it had claimed is due again at its old place: how many items."""

    async def fetch(
        self, queue: str, consumer: str, claim: int, first: int, rows_max: int, bytes_max: int
    ) -> Seen:
        """Rows of the open claim from the number `first` on, within both limits; at least one if
        there is one. The same each time. WrongClaim if that claim is not open."""

    async def peek(self, queue: str, cursor: str, rows_max: int, bytes_max: int) -> Look:
        """Rows that are held, leased and claimed ones too, in the order in which they came here.

        ValueError if the cursor (at first "") is none of its own."""

    def keep_keys(self, rules: KeyRules) -> None:
        """From now on keys are unique as far as `rules` says so (actors/model/keys.py). Before,
        every queue is without; keys that are held are let go as their items end in any case.

        `confirm` arbitrates as well: items of rows that belong to a write, that nobody has tried,
        of a queue that has a policy. Those that lose are counted as taken, and deleted at once."""

    async def offer(self, offers: Sequence[Offer]) -> list[bytes]:
        """Decides on runs of keyed queues, in order, and stores what may be stored: visible,
        counted as accepted, durable on return, all in one transaction. A byte (`KeyOutcome`) for
        each item of each run; none at all for a run whose id another run has, of which nothing is
        stored.

        A run that is offered again, also in another life, has the same answer and changes nothing,
        as long as it is remembered (the last tens of thousands are).
        """

    async def key(self, queue: str, key: bytes) -> Holder | None:
        """Who has a key; None: nobody."""

    async def started(self, queue: str, wanted: Sequence[bytes]) -> Mapping[bytes, int]:
        """Of the items that have these keys, those whose row is leased: bits, by the run that they
        are in. Keys are not empty."""

    async def drop_key(self, queue: str, key: bytes) -> Holder | None:
        """Who had it. An item that waited is deleted; one that is done or unreadable has lost its
        key; of one that has started or is dead nothing is changed."""

    async def forget_keys(self) -> int:
        """Forgets keys that are free again, some of them: how many; 0: there are no more."""

    def keep_history(self, keeps: Keeps) -> None:
        """From now on items that are finished here go to history, as far as `keeps` says so, in
        the transaction that finishes them. Nothing does before."""

    async def note_history(self, rows: Sequence[FinishedRow]) -> None:
        """Items that were finished elsewhere. On disk within a second; noted twice, shown twice."""

    async def history(self, queue: str, cursor: str, rows_max: int, bytes_max: int) -> Past:
        """What was finished, newest first, within both limits; at least one if there is one.

        A chain of pages ends with what was there when it began. ValueError as with `peek`."""

    async def history_queues(self) -> list[str]:
        """The queues that have any."""

    async def forget_history(self, queue: str, before_ms: int) -> int:
        """Forgets some of what was finished before then, oldest first: how many rows; 0: there
        are no more."""

    async def close(self) -> None: ...


# Single items.


@dataclass(frozen=True, slots=True, eq=False)
class ColdSight:
    """Items of one row, as it is now; or of a row of history."""

    state: Literal["COLD_QUEUED", "CLAIMED", "FAILED", "delivered", "deleted"]
    head: RunHead
    data: bytes
    bits: int
    attempt: int
    due_ms: int
    errors: tuple[ItemError, ...]
    row: bytes = b""
    """Not of history."""
    lock: bytes | None = None
    """It is acquired, under this lock."""
    ended_ms: int | None = None
    """When it died, or was finished."""
    place: int = 0
    """Of a scan: where it goes on behind this row."""
    holder: HeldBy | None = None
    """Of history: who had the items last."""
    result: str = ""
    job: str = ""
    """The job that has claimed the items, or had."""
    is_spent: bool = False
    """The dead job of a trigger, whose items were given back: it is not tried again."""
    changed_ms: int = 0
    """When an operator changed or retried it last; 0: never."""
    first_due_ms: int = 0
    """When it was due at first; 0: as its run says."""


class ColdScan(NamedTuple):
    rows: list[ColdSight]
    after: int | None
    """Where the next scan begins; None: these were the last."""


class ColdPart(NamedTuple):
    """Items of a row; `lock`: under which the row was acquired, None: it was not."""

    row: bytes
    bits: int
    lock: bytes | None


class ColdItems(Protocol):
    """The cold store's items one by one, for people and their tools; not for delivery."""

    async def find(self, run_id: bytes, index: int) -> list[ColdSight]:
        """Everything that is known of one item: at most one row that is held, its dead letter, and
        its history, newest first. `bits` name this item alone."""

    async def scan(self, queue: str | None, after: int, rows_max: int, bytes_max: int) -> ColdScan:
        """Rows that are held, of a queue or of all, in the order in which they came here, from 0
        on."""

    async def scan_history(
        self, queue: str | None, after: int, rows_max: int, bytes_max: int
    ) -> ColdScan:
        """Rows of history, the last noted first, from 0 on."""

    async def delete(self, row: bytes, bits: int, lock: bytes | None) -> bool:
        """These items of a row are deleted and counted so; history keeps them, if the queue has
        one. Durable on return. False: the row has not all of them, or is acquired under another
        lock, or claimed; nothing has changed."""

    async def delete_all(self, parts: Sequence[ColdPart]) -> list[bool]:
        """As `delete`, many in one step, and nothing of them is in the history."""

    async def purge(self, queue: str, rows_max: int) -> int:
        """Deletes rows of a queue that nobody has acquired or claimed, whenever they are due, and
        counts them so: how many items; 0: there are no more. None of it is in the history.
        Durable on return."""

    async def change(self, row: bytes, bits: int, lock: bytes | None, new: NewRow) -> bool:
        """As `delete`, but the items are in `new` from now on: another row of the same queue,
        due or a dead letter, as it says."""


# Dead letters.


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead letters; what is None does not matter. `ids` are item ids as text."""

    queue: str | None = None
    flow: str | None = None
    action: str | None = None
    error: str | None = None
    """Part of the text of the last error, upper and lower case alike."""
    died_before_ms: int | None = None
    died_after_ms: int | None = None
    ids: tuple[str, ...] = ()
    failure_reason: FailureReason | None = None
    """Of the last error."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    row: bytes
    id: str
    """The item's."""
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
    """Only where it was asked for."""
    changed_ms: int = 0
    """When its payload was changed last; 0: never."""


class DeadPage(NamedTuple):
    letters: list[DeadLetter]
    cursor: bytes | None
    """Where the next page begins; None: this was the last."""


class DeadChange(NamedTuple):
    """One step over many dead letters."""

    done: int
    queues: frozenset[str]
    """Whose items these were: their promoters may have something to do."""
    cursor: bytes | None
    """Where the next step begins; None: all that match are done."""
    spent: int = 0
    """Of those to be tried again: jobs of triggers that must not be, since their items were given
    back (actors/ports/trigger_jobs.py)."""


class DeadLetters(Protocol):
    async def find(
        self, which: DeadFilter, limit: int, cursor: bytes | None = None, *, payloads: bool = False
    ) -> DeadPage:
        """Dead letters, oldest first."""

    async def count(self, which: DeadFilter, stop_at: int) -> int:
        """How many match, counted up to `stop_at`."""

    async def retry(self, which: DeadFilter, limit: int, cursor: bytes | None = None) -> DeadChange:
        """Back to work: due at once, attempts from 0, the error history kept."""

    async def remove(
        self, which: DeadFilter, limit: int, cursor: bytes | None = None
    ) -> DeadChange:
        """Deleted, and counted as deleted. What the queue's history keeps is still seen there."""

    async def edit(self, item_id: str, payload: bytes) -> bool:
        """Another payload for one dead letter, the id kept. False: there is no such."""
