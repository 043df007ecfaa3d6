"""Read-only questions to the spooler about a queue: its counts in the journal, and its runs.

It owns nothing and changes nothing. On cancel the answer is discarded.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from actors.model.cursors import read_number
from actors.ports.tiers import Look
from actors.spooler.asking import Spooler, ask, readable
from actors.spooler.messages import Inquire, Peek
from forebay.errors import Refused
from forebay.fetch_frames import FetchWish


class Journaled(NamedTuple):
    """How many items of a queue the journal has."""

    held: int = 0
    to_come: int = 0
    """Held items that do not wait for a time of their own."""
    handed_over: int = 0
    """Items ever handed over to cold."""


async def ask_journal(spooler: Spooler, queue: str) -> Journaled:
    report: dict[str, Any] = await ask(spooler, Inquire)
    entry: dict[str, int] | None = report["queues"].get(queue)
    if entry is None:
        return Journaled()
    return Journaled(entry["held"], entry["held"] - entry["scheduled"], entry["handed_over"])


async def look_at_journal(spooler: Spooler, wish: FetchWish) -> Look:
    """Raises ValueError if the cursor is not a valid position."""
    after = read_number(wish.cursor) if wish.cursor else -1

    def peek(answer: Callable[[Look | OSError | Refused], None]) -> Peek:
        return Peek(wish.queue, after, wish.rows, wish.bytes, answer)

    look: Look = readable(await ask(spooler, peek))
    return look
