"""Asks the spooler: sends messages to it and waits for the answers.

It owns nothing but its end of the spooler's inbox, and sets no deadline; the caller may. On cancel
the answer is discarded; the request may still be carried out.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

import trio

from actors.model.cursors import read_number
from actors.ports.tiers import Look, StoreUnavailable
from actors.spooler.messages import Borrow, Inquire, Peek, Reply, RunLoan, SpoolerMessage
from forebay.errors import Refused
from forebay.fetch_frames import FetchWish

BORROW_MAX: Final = 256

Borrowed = dict[int, tuple[RunLoan, bool]]
"""Leases by position; the flag says that the run was not lent before."""

T = TypeVar("T")


class Question(Protocol[T]):
    """A message of the spooler that it answers with a T."""

    @property
    def reply(self) -> Reply[T]: ...


class Journaled(NamedTuple):
    """How many items of a queue the journal has."""

    held: int = 0
    to_come: int = 0
    """Held items that do not wait for a time of their own."""
    handed_over: int = 0
    """Items ever handed over to cold."""


class SpoolerClient:
    def __init__(self, inbox: trio.MemorySendChannel[SpoolerMessage]) -> None:
        self._inbox = inbox

    async def send(self, message: SpoolerMessage) -> None:
        """Waits while the inbox is full. Raises trio.BrokenResourceError at the spooler's end."""
        await self._inbox.send(message)

    def send_nowait(self, message: SpoolerMessage) -> None:
        """As `send`; raises trio.WouldBlock instead of waiting."""
        self._inbox.send_nowait(message)

    async def ask(self, question: Question[T]) -> T:
        """The answer. Raises Refused if the spooler refuses, and StoreUnavailable if the journal
        cannot be read or the spooler has stopped."""
        await self._put(question)
        return await answered(question)

    async def ask_all(self, questions: Sequence[Question[T]]) -> list[T | Refused]:
        """The answers, in order. Messages sent together may share a commit."""
        for question in questions:
            await self._put(question)
        answers: list[T | Refused] = []
        for question in questions:
            try:
                answer: T = await answered(question)
                answers.append(answer)
            except Refused as refused:
                answers.append(refused)
        return answers

    async def _put(self, question: Question[T]) -> None:
        try:
            await self._inbox.send(question)  # type: ignore[arg-type]
        except trio.BrokenResourceError:
            raise StoreUnavailable("the spooler has stopped") from None

    # What several actors ask for.

    async def borrow(self, queue: str, runs: Mapping[int, bytes]) -> Borrowed:
        """Borrows runs by position and id, whether they wait in the journal or are already lent;
        runs that are not live are missing from the answer. On cancel lent runs stay lent, so only
        callers that send them on in every case may use this."""
        found: Borrowed = {}
        positions = list(runs)
        for start in range(0, len(positions), BORROW_MAX):
            some = {at: runs[at] for at in positions[start : start + BORROW_MAX]}
            lent: Borrowed = await self.ask(Borrow(queue, some))
            found |= lent
        return found

    async def journaled(self, queue: str) -> Journaled:
        entry = (await self.ask(Inquire()))["queues"].get(queue)
        if entry is None:
            return Journaled()
        return Journaled(entry["held"], entry["held"] - entry["scheduled"], entry["handed_over"])

    async def look(self, wish: FetchWish) -> Look:
        """Raises ValueError if the cursor is not a valid position."""
        after = read_number(wish.cursor) if wish.cursor else -1
        return await self.ask(Peek(wish.queue, after, wish.rows, wish.bytes))


async def answered(question: Question[T]) -> T:
    try:
        return await question.reply.wait()
    except OSError as problem:
        raise StoreUnavailable(f"the journal cannot be read: {problem.strerror}") from problem
