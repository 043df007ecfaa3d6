"""What delivers: a handler for each queue, and a sender for each of its workers.

A batch is slices of one queue, maybe of several runs. `prepare` turns it into what is sent, with
CPU alone; `send` sends it and says what became of it. Where the two are split, preparers and
senders are tasks of their own with a bounded channel between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from actors.model.masking import masked_address
from actors.model.slices import Slice
from forebay.failure_reason import FailureReason


@dataclass(frozen=True, slots=True)
class Failure:
    """Why items were not taken, and what follows from it."""

    text: str
    """Shown in the log, in events, in notices and with dead letters. A destination may have written
    it: secrets in addresses are masked here, before it goes anywhere."""
    status: int | None = None
    """An HTTP status, or a program's exit code."""
    retry_after_s: float | None = None
    """The destination asked for that pause."""
    is_permanent: bool = False
    """Trying again will not help: a dead letter at once, unless a rule says otherwise."""
    blames_destination: bool = True
    """Counts against the breaker. An answer that refuses an item is still an answer."""
    failure_reason: FailureReason = "application"
    """A business failure is permanent too, unless whoever says so asks for another try."""
    has_waited: bool = False
    """The items were out of sight for long enough: the queue's backoff does not follow."""

    def __post_init__(self) -> None:
        if "://" in self.text:
            object.__setattr__(self, "text", masked_address(self.text))


@dataclass(frozen=True, slots=True)
class ItemsFailed:
    """Items of the batch's slice number `order` were not taken."""

    order: int
    bits: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a batch: whatever is not named here was delivered."""

    failures: tuple[ItemsFailed, ...] = ()


class DeliveryFailed(Exception):
    """Nothing of the batch was taken, as far as can be told."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class HandlerUnusable(Exception):
    """A handler cannot be opened; the text says what is in the way."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A batch that is ready to be sent."""

    batch: Sequence[Slice]
    content: Any
    """The handler's own."""
    rejected: tuple[ItemsFailed, ...] = field(default=())
    """What could not be unpacked, and is not part of `content`."""


class Sender(Protocol):
    """Sends for one worker; a connection is its own."""

    async def send(self, prepared: Prepared) -> Report:
        """Sends a batch, within the handler's own deadline.

        Raises `DeliveryFailed` and nothing else. The report names `prepared.rejected` as well.
        May be cancelled at any await: nothing is settled then, and the batch is sent again.
        """

    async def aclose(self) -> None:
        """Lets go of files and connections; does not wait for the other side."""


class Handler(Protocol):
    """Where the items of a queue go. Opening one does no I/O."""

    @property
    def destination(self) -> str:
        """What the breaker and the limits are about; handlers of several queues may share it."""

    @property
    def batch_items(self) -> int: ...

    @property
    def batch_bytes(self) -> int: ...

    @property
    def timeout_s(self) -> float:
        """No `send` takes longer."""

    def prepare(self, batch: Sequence[Slice]) -> Prepared:
        """Never raises for what is wrong with an item: that is `rejected`, permanently."""

    def open_sender(self) -> Sender: ...

    async def aclose(self) -> None:
        """After its senders: lets go of what they share."""
