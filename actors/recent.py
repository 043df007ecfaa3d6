"""The ids of the newest runs, so that a run that is pushed again is not stored again."""

from collections import deque


class RecentRuns:
    """Remembers the last `runs_max` ids, in the order in which they came."""

    def __init__(self, runs_max: int) -> None:
        self._runs_max = runs_max
        self._order: deque[bytes] = deque()
        self._known: set[bytes] = set()

    def __contains__(self, run_id: bytes) -> bool:
        return run_id in self._known

    def add(self, run_id: bytes) -> None:
        if not self._runs_max or run_id in self._known:
            return
        self._known.add(run_id)
        self._order.append(run_id)
        if len(self._order) > self._runs_max:
            self._known.discard(self._order.popleft())

    def discard(self, run_id: bytes) -> None:
        """A run that was not stored after all."""
        if run_id in self._known:
            self._known.remove(run_id)
            self._order.remove(run_id)
