"""The gate of a queue: open while the queue may deliver, except for its paused flows.

Plain state that dispatch sets and the queue's workers read; waiting for it costs nothing.
"""

import trio


class Gate:
    def __init__(self) -> None:
        self._open = trio.Event()
        self.except_flows: frozenset[str] = frozenset()

    def set(self, *, is_open: bool, except_flows: frozenset[str]) -> None:
        self.except_flows = except_flows
        if is_open:
            self._open.set()
        elif self._open.is_set():
            self._open = trio.Event()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    async def wait(self) -> None:
        await self._open.wait()
