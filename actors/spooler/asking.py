"""Sends messages to the spooler and waits for the answers.

It owns nothing and sets no deadline; the caller may. On cancel the answer is discarded; the request
may still be carried out.
"""

from collections.abc import Callable, Sequence
from typing import Any

import trio

from actors.ports.tiers import StoreUnavailable
from actors.spooler.messages import SpoolerMessage
from forebay.errors import Refused

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
