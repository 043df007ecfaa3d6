"""Kills its own process at a named point, the n-th time that the point is reached."""

import os
import signal


class Killer:
    def __init__(self, plan: str, points: tuple[str, ...]) -> None:
        """`plan` is `point:n`, or nothing: then nobody is killed."""
        self._point, _, count = plan.partition(":")
        if self._point and self._point not in points:
            raise ValueError(f"{self._point!r} is no point to be killed at")
        self._left = int(count or 1)

    def arrives(self, point: str) -> bool:
        """Whether this is the time and the place."""
        if point != self._point:
            return False
        self._left -= 1
        return self._left == 0

    def reach(self, point: str) -> None:
        if self.arrives(point):
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
