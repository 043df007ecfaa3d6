"""How a delivery ended: what a handler reports, and the consequences for each slice's items."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from actors.model.masking import masked_address
from actors.model.secret_values import SECRET_VALUES
from actors.model.slices import HeldBy, Slice
from forebay.item import FailureReason


@dataclass(frozen=True, slots=True)
class Failure:
    """Why items were not accepted, and the consequences."""

    text: str
    """Shown in the log, in events, in notices and with dead letters. A destination may have written
    it, so secrets are masked here, before it goes anywhere."""
    status: int | None = None
    """An HTTP status, or a program's exit code."""
    retry_after_s: float | None = None
    """The pause that the destination asked for."""
    is_permanent: bool = False
    """A retry will not help: a dead letter at once, unless a rule says otherwise."""
    blames_destination: bool = True
    """Counts against the breaker. An answer that refuses an item is still an answer."""
    failure_reason: FailureReason = "application"
    """A business failure is permanent too, unless its reporter asks for a retry."""
    is_suspect: bool = False
    """The destination accepted the request, and its answer was not understood."""
    has_waited: bool = False
    """The items were out of sight for long enough: the queue's backoff is not added."""

    def __post_init__(self) -> None:
        text = SECRET_VALUES.masked(masked_address(self.text))
        if text is not self.text:
            object.__setattr__(self, "text", text)


@dataclass(frozen=True, slots=True)
class ItemsFailed:
    """Items of the batch's slice number `order` were not accepted."""

    order: int
    bits: int
    failure: Failure


class ItemResult(NamedTuple):
    """A result text of delivered items of the batch's slice number `order`."""

    order: int
    bits: int
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a batch: items that are not named here were delivered."""

    failures: tuple[ItemsFailed, ...] = ()
    is_suspect: bool = False
    """The destination's answer seems to report errors in a form that is not understood."""
    untried: tuple[tuple[int, int], ...] = ()
    """Items that were not sent at all, as a slice's number and bits: no attempt is spent."""
    results: tuple[ItemResult, ...] = ()
    """Only for people and the history."""


class HandlerUnusable(Exception):
    """A handler cannot be opened; the text says why."""


@dataclass(frozen=True, slots=True)
class Retry:
    delay_s: float


@dataclass(frozen=True, slots=True)
class Dead:
    reason: Literal["permanent", "rule", "retries_spent"]


class Conclusion(NamedTuple):
    """The outcome of one slice: `delivered`, `again` and `dead` are disjoint and complete."""

    delivered: int
    """Bits."""
    again: tuple[Slice, ...] = ()
    dead: tuple[Slice, ...] = ()
    holder: HeldBy | None = None
    """Which worker or consumer had the items; None: unknown."""
    results: tuple[tuple[int, str], ...] = ()
    """Result texts of delivered items: (bits, text). Only for people and the history."""
