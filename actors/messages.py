"""What the actors say to each other. Requests are imperative, facts are past tense."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from forebay.errors import Refused
from forebay.run import RunHead
from forebay.wire import Outcome


class Answers(Protocol):
    """Where a connection takes the answers to its pushes.

    `put` never blocks: a connection has no more requests in flight than its window allows, so
    that its answers are bounded as well. `flush` is called once after a batch of answers.
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


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A committed run and where its owner keeps it."""

    position: int
    size: int
    """What it takes on disk, frame and all."""
    head: RunHead
    data: bytes


class Place(NamedTuple):
    """Where a run lies, and as much of it as must be known without reading it."""

    position: int
    size: int
    items: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A run that was lent to a worker. Outcomes come back with the token."""

    token: int
    run: StoredRun
    done: int
    """A bit for each item that was settled before."""


@dataclass(frozen=True, slots=True)
class Take:
    """Lend the next runs of a queue, in order; `answer` gets at least one, when there is one."""

    queue: str
    runs_max: int
    bytes_max: int
    answer: Callable[[list[Lease]], None]


class Fate(IntEnum):
    """What became of items. The numbers stand in mark files: never reuse one."""

    DELIVERED = 1
    DROPPED = 2


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
class Settle:
    """What a worker reports, many at a time."""

    outcomes: tuple[Settled, ...]


@dataclass(frozen=True, slots=True)
class GiveBack:
    """These leases end without an outcome; the runs are the next of their queue again."""

    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class Inquire:
    """Answer with the books and the state of the spool."""

    answer: Callable[[dict[str, Any]], None]


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


SpoolerMessage = Append | Take | Settle | GiveBack | Inquire | Tick | Drain | Finish
