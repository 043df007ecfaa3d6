"""The messages between actors and the spooler. Requests are imperative, facts are past tense."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from actors.model.failures import Portions, RetryNote
from actors.model.runs import Fate, StoredRun
from actors.ports.tiers import Look
from actors.ports.writes import OpenWrite, Part, Verdict, WriteView
from forebay.errors import Refused
from forebay.run import RunHead
from forebay.wire import Outcome


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
    """Not empty: the run is staged and invisible until its write is published; or, if `stage` is
    MOVED, it was published elsewhere and comes from there."""
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
class Lease:
    """A run that was lent to a worker. Outcomes come back with the token."""

    token: int
    run: StoredRun
    done: int
    """Items that were settled before, as bits."""
    portions: Portions = ()
    """Items that failed before, and when they are due again."""


@dataclass(frozen=True, slots=True)
class Take:
    """Lend the next runs of a queue, in order; `answer` gets at least one, once there is one."""

    queue: str
    runs_max: int
    bytes_max: Callable[[], int]
    """Called when there are runs to lend; 0: not now, call again later."""
    answer: Callable[[list[Lease], bool], None]
    """Also told whether more of the queue waits on disk, which is read back only in its turn."""
    items_max: int = sys.maxsize


@dataclass(frozen=True, slots=True)
class Borrow:
    """Lend the runs of a queue at these positions with these ids, out of turn; runs that are lent
    already keep their lease. `answer` gets a lease for each live run, by position, and whether it
    was lent just now. OSError: the disk cannot be read for now."""

    queue: str
    runs: dict[int, bytes]
    answer: Callable[[dict[int, tuple[Lease, bool]] | OSError], None]


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

    `recorded`, if given, is called when all of them are durable, with one entry per outcome: False
    if the token was stale or an item had met its fate before, and nothing was changed.
    """

    outcomes: tuple[Settled | Retried | HandedOver | Voided, ...]
    recorded: Callable[[list[bool]], None] | None = None


@dataclass(frozen=True, slots=True)
class GiveBack:
    """End these leases without an outcome; the runs are first in their queue again or, with
    `not_before_ms`, join it at that time."""

    leases: tuple[Lease, ...]
    not_before_ms: int = 0


@dataclass(frozen=True, slots=True)
class Doubt:
    """From now on (or, if `is_over`, no longer) it is unknown whether the cold store has taken
    items of the runs at these positions. Their chunks are kept meanwhile."""

    positions: tuple[int, ...]
    is_over: bool


@dataclass(frozen=True, slots=True)
class Seal:
    """Seal a stage if it has this many runs and items. Answered when that is durable."""

    write: bytes
    stage: bytes
    runs: int
    items: int
    answer: Callable[[dict[str, Any] | Refused], None]


@dataclass(frozen=True, slots=True)
class Publish:
    """Make these stages of a write visible and drop its others, in one step."""

    write: bytes
    stages: tuple[bytes, ...]
    app: str | None
    version: int | None
    answer: Callable[[dict[str, Any] | Refused], None]


@dataclass(frozen=True, slots=True)
class AbortWrite:
    """Drop all stages of a write, unless it is published."""

    write: bytes
    answer: Callable[[dict[str, Any] | Refused], None]


@dataclass(frozen=True, slots=True)
class DropStage:
    """Drop everything that this stage has or may still get: its task has failed."""

    write: bytes
    stage: bytes
    answer: Callable[[dict[str, Any] | Refused], None]
    also_sealed: bool = True
    """False: leave a sealed stage as it is, because other daemons know it; `is_sealed` says so."""


@dataclass(frozen=True, slots=True)
class FollowPublish:
    """Make visible what was published elsewhere, as far as it is here, and drop the rest."""

    verdict: Verdict
    answer: Callable[[dict[str, Any] | Refused], None]
    """Told how many of its items are `missing` here."""

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
    answer: Callable[[WriteView | Refused], None]


@dataclass(frozen=True, slots=True)
class AskOpenWrites:
    """Answer with all writes that are neither published nor aborted."""

    answer: Callable[[list[OpenWrite]], None]


@dataclass(frozen=True, slots=True)
class AskParts:
    """Answer with the outcomes here of these writes, if they were published here or items of them
    were moved here."""

    writes: tuple[bytes, ...]
    answer: Callable[[list[Part]], None]
    also_moved: bool = False
    """Also of all other writes with items that were moved here."""


@dataclass(frozen=True, slots=True)
class ListWrites:
    """Answer with `writes`, one object per write, the last heard of first, and how many `more`
    there are: open writes, with `all` also those that are over, or a single one."""

    all: bool
    write: bytes | None
    limit: int
    answer: Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class AskReceipt:
    """Answer with what the journal knows about a published write; None if nothing."""

    write: bytes
    answer: Callable[[dict[str, Any] | None], None]


@dataclass(frozen=True, slots=True)
class ForgetWrites:
    """Forget writes that ended before then and that nothing on disk needs; answer which."""

    before_ms: int
    answer: Callable[[list[bytes]], None]


WriteRequest = Seal | Publish | AbortWrite | DropStage | FollowPublish
WriteQuestion = AskReceipt | ListWrites | AskWrite | AskOpenWrites | AskParts


@dataclass(frozen=True, slots=True)
class Peek:
    """Answer with runs of a queue behind a position, as they are; changes nothing."""

    queue: str
    after_position: int
    rows_max: int
    bytes_max: int
    answer: Callable[[Look | OSError | Refused], None]
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
    answer: Callable[[list[JournalRun] | OSError | Refused], None]


@dataclass(frozen=True, slots=True)
class ScanRuns:
    """As `Peek`, but with everything the spooler knows about each run."""

    queue: str
    after_position: int
    rows_max: int
    bytes_max: int
    answer: Callable[[tuple[list[JournalRun], int | None] | OSError | Refused], None]
    """The runs, and the position behind which the next ones lie; None: there are no more."""


@dataclass(frozen=True, slots=True)
class Inquire:
    """Answer with the books and the state of the spool."""

    answer: Callable[[dict[str, Any]], None]
    refuse: Callable[[Refused], None] = lambda _: None
    """Called instead if the report cannot be made."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The daemon is stopping: pushes that wait for room are refused."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Handle earlier messages, seal the journal, and end."""


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """The spooler holds, or has held, runs of this queue."""

    queue: str


@dataclass(frozen=True, slots=True)
class Pinned:
    """A few items of this queue, at these positions, keep an old chunk on disk."""

    queue: str
    positions: range


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
