"""How a delivery ended: what a handler reports, and what follows for the items of each slice."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from actors.model.masking import masked_address
from actors.model.slices import HeldBy, Slice
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


class HandlerUnusable(Exception):
    """A handler cannot be opened; the text says what is in the way."""


@dataclass(frozen=True, slots=True)
class Retry:
    delay_s: float


@dataclass(frozen=True, slots=True)
class Dead:
    reason: Literal["permanent", "rule", "retries_spent"]


class Conclusion(NamedTuple):
    """What became of one slice: `delivered`, `again` and `dead` are all of it, and disjoint."""

    delivered: int
    """Bits."""
    again: tuple[Slice, ...] = ()
    dead: tuple[Slice, ...] = ()
    holder: HeldBy | None = None
    """Who had the items; None: nobody who is known."""
    results: tuple[tuple[int, str], ...] = ()
    """What was said of items that were delivered: bits and text. For people, and history alone."""
