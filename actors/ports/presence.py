"""Whether the cold store is there: one line in the log, one gauge and one counter, for everybody.

Many actors use the store, and each finds out by itself that it is away. They say so here, each
step by its name: the store is away from the first step that fails until all that have failed have
succeeded again. So a server that is only read, or has no room for what is new, is away as long as
something is refused, however well other steps go; who counts lines counts outages.

A step that has failed and is not tried any more, since nobody needs it, must not keep the store
away: `QUIET_S` after its last failure another's success speaks for it, too. Everything that waits
for the store tries more often than that.

Owns what it was told. What it can't do: know more than the steps that were taken.
"""

from typing import Final

import structlog
import trio

log = structlog.get_logger()

QUIET_S: Final = 10.0


class Presence:
    def __init__(self) -> None:
        self._failing: dict[str, float] = {}
        """When each step has failed last, of those that have not succeeded since."""
        self._since = 0.0
        self.away_total = 0
        """How often it went away."""

    @property
    def is_away(self) -> bool:
        return bool(self._failing)

    def lost(self, step: str, problem: Exception) -> None:
        """A step has failed for want of the store."""
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

    def passed(self, step: str) -> None:
        """A step has succeeded, and perhaps did not need the store: it speaks for itself alone."""
        if step in self._failing:
            self._see({name: at for name, at in self._failing.items() if name != step})

    def _see(self, failing: dict[str, float]) -> None:
        self._failing = failing
        if not failing:
            log.info("cold.back", seconds=round(trio.current_time() - self._since, 3))


def still_failing(failing: dict[str, float], found: str, now: float) -> dict[str, float]:
    return {step: at for step, at in failing.items() if step != found and now < at + QUIET_S}
