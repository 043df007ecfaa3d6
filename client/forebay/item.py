"""An item, as handlers and consumers get it, and the ways in which it can fail.

    def deliver(item: forebay.Item) -> None:
        if not item.json().get("email"):
            raise forebay.Reject("no e-mail address")
        ...

The item is delivered when the function returns None or a value, which is kept as its result.
docs/handlers.md has the rest.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

FailureReason = Literal["application", "business"]
"""Why an attempt failed.

`application` (the default): the destination was unreachable or failed; a retry may help.
`business`: the worker or consumer found that the item's request cannot be carried out; the item is
not retried unless the report asks for it.
"""
FAILURE_REASONS: Final[tuple[FailureReason, ...]] = get_args(FailureReason)


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a queue. The id stays the same however often the item is delivered."""

    id: str
    queue: str
    key: str | None
    payload: bytes
    priority: int
    flow: str
    action: str
    attempt: int
    """How many attempts have failed so far."""
    headers: Mapping[str, str]
    """Shared by the items of a run: do not change them."""
    enqueued_ms: int

    @property
    def text(self) -> str:
        """The payload as text; UnicodeDecodeError if it is not UTF-8."""
        return self.payload.decode()

    def json(self) -> Any:
        """The payload as JSON; ValueError if it is not JSON."""
        return json.loads(self.payload)


class Retry(Exception):
    """The item cannot be delivered now. It is retried, after `after_s` seconds if that is given.

    The destination's breaker does not count this as a failure.
    """

    def __init__(self, message: str = "", after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class Reject(Exception):
    """The item can never be delivered. It becomes a dead letter at once."""


class BusinessError(Reject):
    """The item's request cannot be carried out. It becomes a dead letter at once and counts as a
    business failure, not as one of the application."""


def check_reason(reason: str) -> None:
    """Raises ValueError if it is not one of FAILURE_REASONS."""
    if reason not in FAILURE_REASONS:
        raise ValueError(f"a reason is one of {', '.join(FAILURE_REASONS)}, not {reason!r}")


def read_failure_reason(said: object) -> FailureReason | None:
    """The reason in a report, in upper or lower case; None if it is not one of FAILURE_REASONS."""
    word = said.lower() if isinstance(said, str) else ""
    return next((reason for reason in FAILURE_REASONS if reason == word), None)
