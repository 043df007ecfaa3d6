"""The messages between actors and the spooler. Requests are imperative, facts are past tense.

A message that is answered carries a `Reply`. Send it with `SpoolerClient.ask`
(actors/spooler/client.py).
"""

import sys
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import trio

from actors.model.books import JournalReport
from actors.model.failures import Portions, RetryNote
from actors.model.runs import Fate, StoredRun
from actors.ports.tiers import Look
from actors.ports.writes import (
    OpenWrite,
    Receipt,
    SealedStage,
    Verdict,
    WritePart,
    WriteView,
)
from forebay.errors import Refused
from forebay.run import RunHead
from forebay.wire import Outcome

T = TypeVar("T")


class Reply(Generic[T]):
    """The answer to one message. The spooler puts it; the task that asked waits for it."""

    __slots__ = ("_answer", "_problem", "_there")

    def __init__(self) -> None:
        self._there = trio.Event()
        self._answer: T
        self._problem: Exception | None = None

    def put(self, answer: T) -> None:
        self._answer = answer
        self._there.set()

    def refuse(self, problem: Exception) -> None:
        """Makes `wait` raise this problem."""
        self._problem = problem
        self._there.set()

    @property
    def has_come(self) -> bool:
        return self._there.is_set()

    async def wait(self) -> T:
        """The answer, as often as it is asked for; at once if it has come."""
        if not self._there.is_set():
            await self._there.wait()
        if self._problem is not None:
            raise self._problem
        return self._answer


class Answers(Protocol):
    """Where a connection takes the answers to its pushes.

    `put` never blocks: a connection has at most as many requests in flight as its window allows, so
    its answers are bounded too. `flush` is called once after a batch of answers. Neither raises,
    even if the connection is broken: the caller works for other connections as well.
    """

    def put(self, sequence: int, answer: Outcome | Refused) -> None: ...

    def flush(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Append:
    """Store this run, then answer."""

    head: RunHead
    data: bytes
    answers: Answers
    sequence: int
    write: bytes = b""
    """Not empty: the run is staged and invisible until its write is published."""
    stage: bytes = b""


class EncodedAnswers(Protocol):
    """Where a connection takes answers that are already encoded. Otherwise as `Answers`."""

    def answer(self, sequence: int, data: bytes) -> None: ...

    def refuse(self, sequence: int, refused: Refused) -> None: ...

    def flush(self) -> None: ...


@dataclass(frozen=True, slots=True)
class OfferRun:
    """Store the items of this run of a keyed queue that get their keys, then answer."""

    head: RunHead
    data: bytes
    answers: EncodedAnswers
    sequence: int


@dataclass(frozen=True, slots=True)
class RunLoan:
    """A run that was lent to a worker. Outcomes come back with the token."""

    token: int
    run: StoredRun
    done: int
    """Items that were settled before, as bits."""
    portions: Portions = ()
    """Items that failed before, and when they are due again."""


class TakeBudget(Protocol):
    """How much a taker may take. The spooler asks when it has runs to lend, so that takers of many
    queues can share one limit."""

    def bytes_max(self) -> int:
        """0: nothing for now, ask again later."""

    def spend(self, size: int) -> None:
        """Runs of this size were lent."""


class Taken(NamedTuple):
    """The runs that the spooler lends in one answer."""

    leases: list[RunLoan]
    is_spilled: bool = False
    """More runs of the queue wait on disk, which is read back only in its turn."""

    @property
    def bytes(self) -> int:
        return sum(len(lease.run.data) for lease in self.leases)


@dataclass(frozen=True, slots=True)
class Take:
    """Lend the next runs of a queue, in order: at least one, once there is one."""

    queue: str
    runs_max: int
    budget: "TakeBudget"
    items_max: int = sys.maxsize
    reply: Reply[Taken] = field(default_factory=Reply, compare=False)


@dataclass(frozen=True, slots=True)
class Borrow:
    """Lend the runs of a queue at these positions with these ids, out of turn; runs that are lent
    already keep their lease. Answered with a lease for each live run, by position, and whether it
    was lent just now. OSError: the disk cannot be read for now."""

    queue: str
    runs: dict[int, bytes]
    reply: Reply[dict[int, tuple[RunLoan, bool]]] = field(default_factory=Reply, compare=False)


@dataclass(frozen=True, slots=True)
class Settled:
    """The items `first` to `last` (exclusive) of a leased run have met their fate."""

    token: int
    position: int
    run_id: bytes
    first: int
    last: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class Retried:
    """The items `first` to `last` (exclusive) of a leased run failed. They stay leased."""

    token: int
    position: int
    run_id: bytes
    first: int
    last: int
    note: RetryNote


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The cold store has stored these items (as bits) of a leased run: all of them, or none."""

    token: int
    position: int
    run_id: bytes
    bits: int


@dataclass(frozen=True, slots=True)
class Voided:
    """These items (as bits) of a run that waits in the journal and is not lent are deleted, or the
    cold store has stored them: all of them, or none. `items`: of the whole run."""

    position: int
    size: int
    items: int
    queue: str
    priority: int
    run_id: bytes
    bits: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class Settle:
    """Outcomes of leased items, many at a time.

    `reply`, if given, comes when all of them are durable, with one entry per outcome: False if the
    token was stale or an item had met its fate before, and nothing was changed.
    """

    outcomes: tuple[Settled | Retried | HandedOver | Voided, ...]
    reply: Reply[list[bool]] | None = None


@dataclass(frozen=True, slots=True)
class GiveBack:
    """End these leases without an outcome; the runs are first in their queue again or, with
    `not_before_ms`, join it at that time."""

    leases: tuple[RunLoan, ...]
    not_before_ms: int = 0


@dataclass(frozen=True, slots=True)
class Doubt:
    """From now on (or, if `is_over`, no longer) it is unknown whether the cold store has taken
    items of the runs at these positions. Their chunks are kept meanwhile."""

    positions: tuple[int, ...]
    is_over: bool


@dataclass(frozen=True, slots=True)
class Seal:
    """Seal a stage if it has this many runs and items. Answered when that is durable; None: its
    write is published already."""

    write: bytes
    stage: bytes
    runs: int
    items: int
    reply: Reply[SealedStage | None] = field(default_factory=Reply, compare=False)


@dataclass(frozen=True, slots=True)
class DropStage:
    """Drop everything that this stage has or may still get: its task has failed. Answer with the
    number of items; None: it is sealed, and `also_sealed` is false, so it stays."""

    write: bytes
    stage: bytes
    also_sealed: bool
    reply: Reply[int | None] = field(default_factory=Reply, compare=False)


@dataclass(frozen=True, slots=True)
class Apply:
    """Carry out the decision about a write: make the stages visible that are published, as far as
    they are here, and drop all others. Answered when that is durable, with the number of published
    items that are missing here."""

    verdict: Verdict
    reply: Reply[int] = field(default_factory=Reply, compare=False)

    @property
    def write(self) -> bytes:
        return self.verdict.write


@dataclass(frozen=True, slots=True)
class AskWrite:
    """Answer with what the journal knows about a write, these stages of it, and an application.
    Refused: one of the stages is damaged."""

    write: bytes
    stages: tuple[bytes, ...]
    app: str | None
    reply: Reply[WriteView] = field(default_factory=Reply, compare=False)


@dataclass(frozen=True, slots=True)
class AskOpenWrites:
    """Answer with all writes that are neither published nor aborted."""

    reply: Reply[list[OpenWrite]] = field(default_factory=Reply, compare=False)


@dataclass(frozen=True, slots=True)
class AskParts:
    """Answer with the outcomes here of these writes, if they were published here or items of them
    were moved here."""

    writes: tuple[bytes, ...]
    also_moved: bool = False
    """Also of all other writes with items that were moved here."""
    reply: Reply[list[WritePart]] = field(default_factory=Reply, compare=False)


@dataclass(frozen=True, slots=True)
class ListWrites:
    """Answer with `writes`, one object per write, the last heard of first, and how many `more`
    there are: open writes, with `all` also those that are over, or a single one."""

    all: bool
    write: bytes | None
    limit: int
    reply: Reply[dict[str, Any]] = field(default_factory=Reply, compare=False)


@dataclass(frozen=True, slots=True)
class AskReceipt:
    """Answer with what the journal alone knows about a published write; None if nothing."""

    write: bytes
    reply: Reply[Receipt | None] = field(default_factory=Reply, compare=False)


@dataclass(frozen=True, slots=True)
class ForgetWrites:
    """Forget writes that ended before then and that nothing on disk needs; answer which."""

    before_ms: int
    reply: Reply[list[bytes]] = field(default_factory=Reply, compare=False)


WriteRequest = Seal | DropStage | Apply
WriteQuestion = AskReceipt | ListWrites | AskWrite | AskOpenWrites | AskParts


@dataclass(frozen=True, slots=True)
class Peek:
    """Answer with runs of a queue behind a position, as they are; changes nothing."""

    queue: str
    after_position: int
    rows_max: int
    bytes_max: int
    reply: Reply[Look] = field(default_factory=Reply, compare=False)
    """The look's cursor is a position. OSError: the disk cannot be read for now."""


class JournalRun(NamedTuple):
    """A run as the spooler has it when it is asked."""

    run: StoredRun
    done: int
    """Settled items, as bits."""
    portions: Portions
    is_lent: bool


@dataclass(frozen=True, slots=True)
class FindRun:
    """Answer with the run of this id, if items of it are held; several if it came twice."""

    run_id: bytes
    reply: Reply[list[JournalRun]] = field(default_factory=Reply, compare=False)


@dataclass(frozen=True, slots=True)
class ScanRuns:
    """As `Peek`, but with everything the spooler knows about each run."""

    queue: str
    after_position: int
    rows_max: int
    bytes_max: int
    reply: Reply[tuple[list[JournalRun], int | None]] = field(default_factory=Reply, compare=False)
    """The runs, and the position behind which the next ones lie; None: there are no more."""


@dataclass(frozen=True, slots=True)
class Inquire:
    """Answer with the books and the state of the spool."""

    reply: Reply[JournalReport] = field(default_factory=Reply, compare=False)


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The daemon is stopping: pushes that wait for room are refused."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Handle earlier messages, seal the journal, and end."""


SpoolerMessage = (
    Append
    | Take
    | Borrow
    | Settle
    | GiveBack
    | Doubt
    | WriteRequest
    | WriteQuestion
    | ForgetWrites
    | Inquire
    | Peek
    | FindRun
    | ScanRuns
    | Tick
    | Drain
    | Finish
)
