"""What a Python function that delivers is given, and what it may say.

    def deliver(item: forebay.Item) -> None:
        if not item.json().get("email"):
            raise forebay.Reject("no e-mail address")
        ...

Returning None says that the item is delivered. docs/handlers.md has the rest.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    """Attempts that were made before, and failed."""
    headers: Mapping[str, str]
    """Shared by the items of a run: for reading."""
    enqueued_ms: int

    @property
    def text(self) -> str:
        """The payload as text; UnicodeDecodeError if it is not UTF-8."""
        return self.payload.decode()

    def json(self) -> Any:
        """The payload as JSON; ValueError if it is not JSON."""
        return json.loads(self.payload)


class Retry(Exception):
    """Not now. The item is tried again, after that many seconds where they are given.

    Says nothing against the destination: its breaker does not count it.
    """

    def __init__(self, message: str = "", after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class Reject(Exception):
    """Never: the item is a dead letter at once."""


class BusinessError(Reject):
    """Never, and for the item's own sake: what it asks for cannot be done. A dead letter at once,
    counted as a business failure and not as one of the application."""
