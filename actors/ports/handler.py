"""What delivers: one handler per queue, and one sender per worker.

A batch is slices of one queue, possibly of several runs. `prepare` turns it into what is sent,
using only CPU; `send` sends it and reports the outcome. With `pipeline_split`, preparers and
senders are separate tasks with a bounded channel between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from actors.model.outcomes import Failure, ItemsFailed, Report
from actors.model.slices import Slice


class DeliveryFailed(Exception):
    """No item of the batch was accepted, as far as is known."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A batch that is ready to be sent."""

    batch: Sequence[Slice]
    content: Any
    """Private to the handler."""
    rejected: tuple[ItemsFailed, ...] = field(default=())
    """Items that could not be unpacked and are not part of `content`."""


@dataclass(frozen=True, slots=True)
class TriedRequest:
    """A request as it goes out, with secrets masked, and its answer if it was sent."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes
    item_ids: tuple[str, ...]
    status: int | None = None
    answer: str | None = None
    """The beginning of the answer's text."""


@dataclass(frozen=True, slots=True)
class TriedItem:
    id: str
    outcome: Literal["ready", "delivered", "refused", "retry"]
    """ready: it would be sent."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    requests: tuple[TriedRequest, ...]
    items: tuple[TriedItem, ...]


@runtime_checkable
class Triable(Protocol):
    """A handler that can show what it would send."""

    async def try_out(self, batch: Sequence[Slice], *, is_sent: bool) -> Trial:
        """Sends each request once if `is_sent`, and settles nothing."""


class Pace(Protocol):
    """How fast a sender may make requests.

    The worker waits for the first request of a batch before it calls `send`. Only a sender that
    makes further requests for the same batch asks for each of them.
    """

    async def request(self) -> None:
        """Returns when one more request for the batch may go. The batch stays leased meanwhile, and
        the time does not count against the handler's deadline. It is not always a checkpoint."""


class NoPace:
    """Requests without a limit."""

    async def request(self) -> None:
        """Returns at once."""


class Sender(Protocol):
    """Sends for one worker, over its own connection."""

    async def send(self, prepared: Prepared) -> Report:
        """Sends a batch, within the handler's own deadline.

        Raises `DeliveryFailed` and nothing else. The report names `prepared.rejected` as well.
        May be cancelled at any await: nothing is settled then, and the batch is sent again.
        """

    async def aclose(self) -> None:
        """Closes files and connections without waiting for the other side."""


class Handler(Protocol):
    """Where the items of a queue go. Opening one does no I/O."""

    @property
    def destination(self) -> str:
        """What the breaker and the limits apply to; handlers of several queues may share it. A
        handler without a real destination gives its type."""

    @property
    def batch_items(self) -> int: ...

    @property
    def batch_bytes(self) -> int: ...

    @property
    def timeout_s(self) -> float:
        """No `send` takes longer, apart from waiting for its pace."""

    def prepare(self, batch: Sequence[Slice]) -> Prepared:
        """Never raises for a bad item: it reports it in `rejected`, as a permanent failure."""

    def open_sender(self, pace: Pace) -> Sender: ...

    async def aclose(self) -> None:
        """Called after its senders are closed: releases what they share."""
