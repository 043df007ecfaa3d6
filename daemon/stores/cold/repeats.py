"""Queues where somebody may well have a key already that is offered.

In all others nobody is asked before keys are taken, which costs an eighth of the whole step where
all of them are new. One that was taken already is noticed then: the step is taken again, and its
queue is one of these for a while. A guess, in memory: it decides what a step costs, never how it
ends.
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
        """So many keys of a step were somebody's."""
        left = STEPS_AFTER_REPEAT if keys else self._left.get(queue, 0) - 1
        if left > 0:
            self._left[queue] = left
        else:
            self._left.pop(queue, None)
