"""The ids of the newest runs, so that a run that is pushed again is not stored again."""

from collections import OrderedDict


class RecentRuns:
    """Remembers the last `runs_max` ids, in the order in which they came."""

    def __init__(self, runs_max: int) -> None:
        self._runs_max = runs_max
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, run_id: bytes) -> bool:
        return run_id in self._known

    def ids(self) -> list[bytes]:
        """All of them, oldest first."""
        return list(self._known)

    def add(self, run_id: bytes) -> None:
        if self._runs_max:
            self._known[run_id] = None
            if len(self._known) > self._runs_max:
                self._known.popitem(last=False)

    def discard(self, run_id: bytes) -> None:
        """A run that was not stored after all."""
        self._known.pop(run_id, None)
