"""Answers that are made of a snapshot: each once, in a thread, however many ask for it.

Owns what was made of the latest snapshot that anybody asked about. Whoever comes while it is made
waits for it. On cancel the thread goes on, and what it makes is thrown away.
"""

from collections.abc import Callable

import trio

from actors.metrics.snapshot import Snapshot


class Rendered:
    def __init__(self) -> None:
        self._turn = trio.Lock()
        self._of: Snapshot | None = None
        self._answers: dict[str, bytes] = {}

    async def answer(self, snapshot: Snapshot, key: str, render: Callable[[], bytes]) -> bytes:
        """What `render` makes of the snapshot; `key` names the kind of answer."""
        async with self._turn:
            if self._of is not snapshot:
                self._of, self._answers = snapshot, {}
            if key not in self._answers:
                self._answers[key] = await trio.to_thread.run_sync(render)
            return self._answers[key]
