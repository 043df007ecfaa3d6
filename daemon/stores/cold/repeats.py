"""Remembers the queues whose offered keys are often taken already.

For all other queues a step takes keys without a lookup first; the lookup would cost an eighth of
the step if all keys are new. If a key turns out to be taken, the step is repeated, and its queue is
remembered here for a while. This is a guess, in memory: it affects only the cost of a step, never
its result.
"""

from typing import Final

STEPS_AFTER_REPEAT: Final = 16


class Repeats:
    def __init__(self, *, are_expected: bool = False) -> None:
        """`are_expected`: everywhere, always."""
        self._are_expected = are_expected
        self._left: dict[str, int] = {}
        """Steps without a repeat until a queue is no longer one."""

    def are_likely(self, queue: str) -> bool:
        return self._are_expected or queue in self._left

    def found(self, queue: str, keys: int) -> None:
        """Notes how many keys of a step were taken."""
        left = STEPS_AFTER_REPEAT if keys else self._left.get(queue, 0) - 1
        if left > 0:
            self._left[queue] = left
        else:
            self._left.pop(queue, None)
