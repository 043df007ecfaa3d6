"""Borrows runs by position, whether they wait in the journal or are already lent.

Asks the spooler (actors/spooler/lending.py) and waits. On cancel lent runs stay lent, so only
callers that send them on in every case may use this.
"""

from collections.abc import Mapping
from typing import Final

import trio

from actors.ports.tiers import StoreUnavailable
from actors.spooler.messages import Borrow, Lease, SpoolerMessage

BORROW_MAX: Final = 256

Borrowed = dict[int, tuple[Lease, bool]]
"""Leases by position; the flag says that the run was not lent before."""


async def borrow(
    spooler: trio.MemorySendChannel[SpoolerMessage], queue: str, runs: Mapping[int, bytes]
) -> Borrowed:
    """Borrows runs by position and id; runs that are not live are missing from the answer."""
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
