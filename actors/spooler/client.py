"""Sends messages to the spooler and waits for the answers.

It owns nothing and sets no deadline; the caller may. On cancel the answer is discarded; the request
may still be carried out.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import trio

from actors.model.cursors import read_number
from actors.ports.tiers import Look, StoreUnavailable
from actors.spooler.messages import Borrow, Inquire, Lease, Peek, SpoolerMessage
from forebay.errors import Refused
from forebay.fetch_frames import FetchWish

BORROW_MAX: Final = 256

Borrowed = dict[int, tuple[Lease, bool]]
"""Leases by position; the flag says that the run was not lent before."""


Spooler = trio.MemorySendChannel[SpoolerMessage]
Make = Callable[[Callable[[Any], None]], SpoolerMessage]
"""Makes the message, given the callback for the answer."""


async def ask(spooler: Spooler, make: Make) -> Any:
    """The answer, of any kind. Raises StoreUnavailable if the spooler has stopped."""
    (found,) = await ask_all(spooler, [make])
    return found


async def ask_all(spooler: Spooler, makes: Sequence[Make]) -> list[Any]:
    """The answers, in order. Messages sent together may share a commit."""
    answers: dict[int, Any] = {}
    there = trio.Event()

    def answerer(number: int) -> Callable[[Any], None]:
        def answer(what: Any) -> None:
            answers[number] = what
            if len(answers) == len(makes):
                there.set()

        return answer

    try:
        for number, make in enumerate(makes):
            await spooler.send(make(answerer(number)))
    except trio.BrokenResourceError:
        raise StoreUnavailable("the spooler has stopped") from None
    if makes:
        await there.wait()
    return [answers[number] for number in range(len(makes))]


async def request(spooler: Spooler, make: Make) -> dict[str, Any]:
    """The answer; raises it if it is a refusal."""
    answer: dict[str, Any] | Refused = await ask(spooler, make)
    if isinstance(answer, Refused):
        raise answer
    return answer


def readable(answer: Any) -> Any:
    """The answer; raises StoreUnavailable if it says that the journal cannot be read."""
    if isinstance(answer, Refused):
        raise answer
    if isinstance(answer, OSError):
        raise StoreUnavailable(f"the journal cannot be read: {answer.strerror}") from answer
    return answer


async def borrow(spooler: Spooler, queue: str, runs: Mapping[int, bytes]) -> Borrowed:
    """Borrows runs by position and id, whether they wait in the journal or are already lent; runs
    that are not live are missing from the answer. On cancel lent runs stay lent, so only callers
    that send them on in every case may use this."""
    found: Borrowed = {}
    positions = list(runs)
    for start in range(0, len(positions), BORROW_MAX):
        some = {at: runs[at] for at in positions[start : start + BORROW_MAX]}
        found |= readable(await ask(spooler, partial(Borrow, queue, some)))
    return found


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
