"""Whether the cold store is reachable: one log line, one gauge and one counter for all actors.

Many actors use the store, and each discovers an outage separately. They report it here under the
name of the step: the store is away from the first failed step until all failed steps have succeeded
again. So a server that is read-only or has no room counts as away while any step is refused, even
if others succeed, and the number of log lines is the number of outages.

A step that failed and is no longer tried must not keep the store away: `QUIET_S` after its last
failure, the success of another step counts for it as well. Every step that waits for the store is
tried more often than that.

It owns what it was told, and knows nothing beyond the steps that were taken.
"""

from typing import Final

import structlog
import trio

log = structlog.get_logger()

QUIET_S: Final = 10.0


class Presence:
    def __init__(self) -> None:
        self._failing: dict[str, float] = {}
        """The time of the last failure of each step that has not succeeded since."""
        self._since = 0.0
        self.away_total = 0
        """How many times the store went away."""

    @property
    def is_away(self) -> bool:
        return bool(self._failing)

    def lost(self, step: str, problem: Exception) -> None:
        """A step has failed because the store was unavailable."""
        now = trio.current_time()
        if not self._failing:
            self.away_total += 1
            self._since = now
            log.error("cold.away", step=step, error=str(problem))
        self._failing[step] = now

    def found(self, step: str) -> None:
        """A step has succeeded: the store has answered."""
        if self._failing:
            self._see(still_failing(self._failing, step, trio.current_time()))

    def _see(self, failing: dict[str, float]) -> None:
        self._failing = failing
        if not failing:
            log.info("cold.back", seconds=round(trio.current_time() - self._since, 3))


def still_failing(failing: dict[str, float], found: str, now: float) -> dict[str, float]:
    return {step: at for step, at in failing.items() if step != found and now < at + QUIET_S}
