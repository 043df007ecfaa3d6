"""How long a demonstration waits: until nothing has changed for a while.

A slow machine takes longer; one that is stuck changes nothing.
"""

import time
from typing import Final

IDLE_S: Final = 180.0
"""Longer than Spark takes to start, or than a backoff or a lease lasts, on a busy machine."""


class Failed(Exception):
    """The demonstration did not reach its end."""


class Patience:
    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._seen: object = None
        self._since = time.monotonic()

    def look(self, seen: object) -> None:
        """Takes what a look at the progress has found. Failed if it has been the same too long."""
        now = time.monotonic()
        if seen != self._seen:
            self._seen, self._since = seen, now
        elif now - self._since > self._idle_s:
            raise Failed(f"no progress for {self._idle_s:.0f} s; the last look: {seen}")
