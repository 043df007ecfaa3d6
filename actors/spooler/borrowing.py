"""Borrowing: runs that wait in the journal, or are lent already, by their position.

Asks the spooler (actors/spooler/lending.py) and waits. On cancel what was lent stays lent: only
those ask who send it on, whatever happens.
"""

from collections.abc import Mapping
from typing import Final

import trio

from actors.ports.tiers import StoreUnavailable
from actors.spooler.messages import Borrow, Lease, SpoolerMessage

BORROW_MAX: Final = 256

Borrowed = dict[int, tuple[Lease, bool]]
"""By position; the flag says that it was not lent before."""


async def borrow(
    spooler: trio.MemorySendChannel[SpoolerMessage], queue: str, runs: Mapping[int, bytes]
) -> Borrowed:
    """Runs by position and id; what is not live is not in the answer."""
    found: Borrowed = {}
    positions = list(runs)
    for start in range(0, len(positions), BORROW_MAX):
        some = {at: runs[at] for at in positions[start : start + BORROW_MAX]}
        answers: list[Borrowed | OSError] = []
        there = trio.Event()

        def answer(
            leases: Borrowed | OSError,
            answers: list[Borrowed | OSError] = answers,
            there: trio.Event = there,
        ) -> None:
            answers.append(leases)
            there.set()

        await spooler.send(Borrow(queue, some, answer))
        await there.wait()
        if isinstance(answers[0], OSError):
            raise StoreUnavailable(f"the journal cannot be read: {answers[0]}")
        found |= answers[0]
    return found
