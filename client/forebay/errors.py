"""What can go wrong, split by who must act.

`BadRun` and `BadFrame`: the bytes are not what they claim to be. `Refused`: the daemon said no,
with a code that tells whether a retry may help. `LeaseLost`: the lease is over, and another
consumer may have the items. `Unreachable`: no daemon answered.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, get_args

if TYPE_CHECKING:
    from forebay.item import Item

Code = Literal[
    "BAD_FRAME",
    "BAD_RUN",
    "TOO_LARGE",
    "BAD_REQUEST",
    "NOT_FOUND",
    "CONFLICT",
    "LEASE_LOST",
    "STAGE_OVER",
    "UNAVAILABLE",
    "UNKNOWN_QUEUE",
    "QUEUE_FULL",
    "DISK_FULL",
    "DISK_ERROR",
    "DRAINING",
    "DENIED",
    "VERSION",
    "BUSY",
    "TIMEOUT",
    "INTERNAL",
]
CODES: Final[frozenset[str]] = frozenset(get_args(Code))
RETRYABLE: Final[frozenset[Code]] = frozenset(
    {"QUEUE_FULL", "DISK_FULL", "DISK_ERROR", "UNAVAILABLE", "DRAINING", "BUSY", "TIMEOUT"}
)
"""Codes of conditions that pass: the same request may succeed later."""


class ForebayError(Exception):
    """The root of everything this package raises on purpose."""


class BadRun(ForebayError):
    """The bytes are not a run that this version can read."""


class BadFrame(ForebayError):
    """The bytes are not a frame of the wire protocol."""


class Unreachable(ForebayError):
    """No daemon answered in time; what was not acknowledged may or may not be stored."""


class Refused(ForebayError):
    """The daemon refused, and says why."""

    def __init__(
        self, code: Code, text: str, *, retry_after_ms: int = 0, fatal: bool = False
    ) -> None:
        super().__init__(f"{code}: {text}")
        self.code: Code = code
        self.text = text
        self.retry_after_ms = retry_after_ms
        self.fatal = fatal
        """The daemon closes the connection after saying so."""

    @property
    def retryable(self) -> bool:
        return self.code in RETRYABLE


class LeaseLost(Refused):
    """The outcome of these items was reported too late: the lease had run out, and other consumers
    may have the items. The report changed nothing."""

    def __init__(self, items: "Sequence[Item]") -> None:
        super().__init__("LEASE_LOST", f"the lease on {len(items)} items is lost")
        self.items = list(items)
