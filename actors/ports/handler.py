"""What delivers: a handler for each queue, and a sender for each of its workers.

A batch is slices of one queue, maybe of several runs. `prepare` turns it into what is sent, with
CPU alone; `send` sends it and says what became of it. Where the two are split, preparers and
senders are tasks of their own with a bounded channel between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from actors.model.outcomes import Failure, ItemsFailed, Report
from actors.model.slices import Slice


class DeliveryFailed(Exception):
    """Nothing of the batch was taken, as far as can be told."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


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
