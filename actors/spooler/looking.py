"""Questions about a queue that the spooler answers: what the journal holds of it, and its runs.

Nothing is owned and nothing changes. On cancel the answer goes nowhere.
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
    """What the journal has of a queue, in items."""

    held: int = 0
    to_come: int = 0
    """Of those held: what does not wait for a time of its own."""
    handed_over: int = 0
    """To cold, ever."""


async def ask_journal(spooler: Spooler, queue: str) -> Journaled:
    report: dict[str, Any] = await ask(spooler, Inquire)
    entry: dict[str, int] | None = report["queues"].get(queue)
    if entry is None:
        return Journaled()
    return Journaled(entry["held"], entry["held"] - entry["scheduled"], entry["handed_over"])


async def look_at_journal(spooler: Spooler, wish: FetchWish) -> Look:
    """ValueError if the cursor is no position."""
    after = read_number(wish.cursor) if wish.cursor else -1

    def peek(answer: Callable[[Look | OSError | Refused], None]) -> Peek:
        return Peek(wish.queue, after, wish.rows, wish.bytes, answer)

    look: Look = readable(await ask(spooler, peek))
    return look
