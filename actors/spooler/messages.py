"""What the actors say to each other. Requests are imperative, facts are past tense."""

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

    `put` never blocks: a connection has no more requests in flight than its window allows, so
    that its answers are bounded as well. `flush` is called once after a batch of answers. Neither
    raises an exception, whatever is wrong with the connection: the caller works for others too.
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
    """Not empty: it is staged, and invisible until its write is published; or it was published
    elsewhere, and comes from there: then `stage` is MOVED."""
    stage: bytes = b""


class EncodedAnswers(Protocol):
    """Where a connection takes answers that are encoded already. As `Answers`, otherwise."""

    def answer(self, sequence: int, data: bytes) -> None: ...

    def refuse(self, sequence: int, refused: Refused) -> None: ...

    def flush(self) -> None: ...


@dataclass(frozen=True, slots=True)
class OfferRun:
    """Store those items of this run, of a keyed queue, that get their keys, then answer."""

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
    """A bit for each item that was settled before."""
    portions: Portions = ()
    """Items that have failed before, and when they are to be tried again."""


@dataclass(frozen=True, slots=True)
class Take:
    """Lend the next runs of a queue, in order; `answer` gets at least one, when there is one."""

    queue: str
    runs_max: int
    bytes_max: Callable[[], int]
    """Asked when there is something to lend; 0: not now, and asked again later."""
    answer: Callable[[list[Lease], bool], None]
    """Also told whether more of the queue waits on disk, read back only when its turn comes."""
    items_max: int = sys.maxsize


@dataclass(frozen=True, slots=True)
class Borrow:
    """Lend the runs of a queue that lie at these positions and have these ids, out of their turn;
    what is lent already stays so, under its lease. `answer` gets a lease for each that is live, by
    position, and whether it was lent just now. OSError: the disk cannot be read for now."""

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
    """The cold store has stored these items (a bit each) of a leased run: all of them, or none."""

    token: int
    position: int
    run_id: bytes
    bits: int


@dataclass(frozen=True, slots=True)
class Voided:
    """These items (a bit each) of a run that waits in the journal, and that nobody was lent, are
    deleted, or the cold store has stored them: all of them, or none. `items`: of the whole run."""

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
    """What became of leased items, many at a time.

    `recorded`, where given, is called when all of it is durable, with an entry for each outcome:
    False where the token was stale or an item had met its fate before, and nothing was changed.
    """

    outcomes: tuple[Settled | Retried | HandedOver | Voided, ...]
    recorded: Callable[[list[bool]], None] | None = None


@dataclass(frozen=True, slots=True)
class GiveBack:
    """These leases end without an outcome; the runs are the next of their queue again, or, with
    `not_before_ms`, join it then."""

    leases: tuple[Lease, ...]
    not_before_ms: int = 0


@dataclass(frozen=True, slots=True)
class Doubt:
    """Whether the cold store has taken something of the runs at these positions is open, or is not
    any more. Their chunks are kept meanwhile."""

    positions: tuple[int, ...]
    is_over: bool


@dataclass(frozen=True, slots=True)
class Seal:
    """A stage is complete, if it has so many runs and items. Answered when that is durable."""

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
    """What this stage of a write has, and may still get, is dropped: its task has failed."""

    write: bytes
    stage: bytes
    answer: Callable[[dict[str, Any] | Refused], None]
    also_sealed: bool = True
    """False: one that is sealed is left as it is, since others know of it; `is_sealed` says so."""


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
    """Answer with what the journal knows of a write, of these stages of it, and of an application.
    Refused: one of them is damaged."""

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
    """Answer with what has become of these writes here, as far as they are published here, or
    items of them were moved here."""

    writes: tuple[bytes, ...]
    answer: Callable[[list[Part]], None]
    also_moved: bool = False
    """And of all others of which items were moved here."""


@dataclass(frozen=True, slots=True)
class ListWrites:
    """Answer with `writes`, an object each, those first that were heard of last, and how many
    `more` there are: of open writes, if `all` also of those that are over; or of one alone."""

    all: bool
    write: bytes | None
    limit: int
    answer: Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class AskReceipt:
    """Answer with what the journal knows of a write that was published; None if nothing."""

    write: bytes
    answer: Callable[[dict[str, Any] | None], None]


@dataclass(frozen=True, slots=True)
class ForgetWrites:
    """Forget writes that ended before then, as far as nothing on disk needs them; which."""

    before_ms: int
    answer: Callable[[list[bytes]], None]


WriteRequest = Seal | Publish | AbortWrite | DropStage | FollowPublish
WriteQuestion = AskReceipt | ListWrites | AskWrite | AskOpenWrites | AskParts


@dataclass(frozen=True, slots=True)
class Peek:
    """Answer with runs of a queue that lie behind a position, as they are; nothing changes."""

    queue: str
    after_position: int
    rows_max: int
    bytes_max: int
    answer: Callable[[Look | OSError | Refused], None]
    """The look's cursor is a position. OSError: the disk cannot be read for now."""


class JournalRun(NamedTuple):
    """A run as the spooler has it, at the moment it was asked."""

    run: StoredRun
    done: int
    """A bit for each item that is settled."""
    portions: Portions
    is_lent: bool


@dataclass(frozen=True, slots=True)
class FindRun:
    """Answer with the run of this id, if some of it is held; more than one if it came twice."""

    run_id: bytes
    answer: Callable[[list[JournalRun] | OSError | Refused], None]


@dataclass(frozen=True, slots=True)
class ScanRuns:
    """As `Peek`, but with all that the spooler knows of each run."""

    queue: str
    after_position: int
    rows_max: int
    bytes_max: int
    answer: Callable[[tuple[list[JournalRun], int | None] | OSError | Refused], None]
    """The runs, and the position behind which the next ones lie; None: there are none."""


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
    """The daemon is stopping: nobody waits for room any more."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Handle what came before this, seal the journal, and end."""


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
