"""Asking the spooler: a question goes into its inbox with where the answer is to be put.

Owns nothing, and has no deadline of its own: whoever asks has one. On cancel the answer is made and
thrown away.
"""

from collections.abc import Callable
from typing import TypeVar

import trio

from actors.messages import SpoolerMessage
from actors.tiers import StoreUnavailable

T = TypeVar("T")


async def ask(
    spooler: trio.MemorySendChannel[SpoolerMessage],
    question: Callable[[Callable[[T | OSError], None]], SpoolerMessage],
) -> T:
    """What the spooler answers. StoreUnavailable if the journal cannot be read."""
    found: list[T | OSError] = []
    there = trio.Event()

    def answer(value: T | OSError) -> None:
        found.append(value)
        there.set()

    await spooler.send(question(answer))
    await there.wait()
    if isinstance(found[0], OSError):
        raise StoreUnavailable(f"the journal cannot be read: {found[0].strerror}")
    return found[0]
