"""Questions about a queue that the spooler answers: what the journal holds of it, and its runs.

Nothing is owned and nothing changes. On cancel the answer goes nowhere.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import trio

from actors.cursors import read_number
from actors.messages import Inquire, Peek, SpoolerMessage
from actors.tiers import Look, StoreUnavailable
from forebay.errors import Refused
from forebay.fetch_frames import FetchWish

T = TypeVar("T")


class Journaled(NamedTuple):
    """What the journal has of a queue, in items."""

    held: int = 0
    to_come: int = 0
    """Of those held: what does not wait for a time of its own."""
    handed_over: int = 0
    """To cold, ever."""


async def ask_journal(spooler: trio.MemorySendChannel[SpoolerMessage], queue: str) -> Journaled:
    report: dict[str, Any] = await _ask(spooler, Inquire)
    entry: dict[str, int] | None = report["queues"].get(queue)
    if entry is None:
        return Journaled()
    return Journaled(entry["held"], entry["held"] - entry["scheduled"], entry["handed_over"])


async def look_at_journal(spooler: trio.MemorySendChannel[SpoolerMessage], wish: FetchWish) -> Look:
    """ValueError if the cursor is no position."""
    after = read_number(wish.cursor) if wish.cursor else -1

    def peek(answer: Callable[[Look | OSError | Refused], None]) -> Peek:
        return Peek(wish.queue, after, wish.rows, wish.bytes, answer)

    look = await _ask(spooler, peek)
    if isinstance(look, Refused):
        raise look
    if isinstance(look, OSError):
        raise StoreUnavailable(f"the journal cannot be read: {look}")
    return look


async def _ask(
    spooler: trio.MemorySendChannel[SpoolerMessage],
    question: Callable[[Callable[[T], None]], SpoolerMessage],
) -> T:
    found: list[T] = []
    there = trio.Event()

    def answer(value: T) -> None:
        found.append(value)
        there.set()

    await spooler.send(question(answer))
    await there.wait()
    return found[0]
