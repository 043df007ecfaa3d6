"""The null handler: everything is delivered, to nobody. For measuring, and for drills."""

import trio

from actors.messages import StoredRun


class NullDelivery:
    async def deliver(self, run: StoredRun, done: int) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
