"""Renders each kind of answer once per snapshot, in a thread, for any number of requests.

Owns the answers made from the latest requested snapshot. A request that arrives while an answer is
being made waits for it. On cancel the thread finishes and its answer is discarded.
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
        """The answer that `render` makes from the snapshot; `key` names the kind of answer."""
        async with self._turn:
            if self._of is not snapshot:
                self._of, self._answers = snapshot, {}
            if key not in self._answers:
                self._answers[key] = await trio.to_thread.run_sync(render)
            return self._answers[key]
