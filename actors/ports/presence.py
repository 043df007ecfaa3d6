"""Whether the cold store is reachable: one log line, one gauge and one counter for all actors.

Many actors use the store, and each discovers an outage separately. They report it here under the
name of the step: the store is away from the first failed step until all failed steps have succeeded
again. So a server that is read-only or has no room counts as away while any step is refused, even
if others succeed, and the number of log lines is the number of outages.

A step that failed and is no longer tried must not keep the store away: `QUIET_S` after its last
failure, the success of another step counts for it as well. Every step that waits for the store is
tried more often than that.

It owns what it was told, and knows nothing beyond the steps that were taken.

Actors use a watched store (`watched`) like any other: each call tells `Presence` whether the store
answered. Only the steps named there count: a search that an operator aborts must not make the store
look unavailable.
"""

from collections.abc import Awaitable, Callable, Collection
from functools import wraps
from typing import Any, Final, TypeVar, cast

import structlog
import trio

from actors.ports.tiers import StoreUnavailable

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


S = TypeVar("S")

COLD_STEPS: Final = (
    *(
        "store",
        "confirm",
        "forget",
        "acquire",
        "renew",
        "release",
        "settle",
        "totals",
        "offer",
    ),
)
"""What the daemon's own work needs of a ColdQueue."""


def watched(store: S, presence: Presence, steps: Collection[str]) -> S:
    """The same store; `presence` is told of every call of these steps."""
    return cast(S, _Watched(store, presence, steps))


class _Watched:
    def __init__(self, store: object, presence: Presence, steps: Collection[str]) -> None:
        self._store = store
        self._presence = presence
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        """Called for the first use of each member; a watched step is then kept."""
        found = getattr(self._store, name)
        if name not in self._steps:
            return found
        step = _watched_call(name, found, self._presence)
        setattr(self, name, step)
        return step


def _watched_call(
    step: str, call: Callable[..., Awaitable[Any]], presence: Presence
) -> Callable[..., Awaitable[Any]]:
    @wraps(call)
    async def watched_call(*args: Any, **kwargs: Any) -> Any:
        try:
            answer = await call(*args, **kwargs)
        except StoreUnavailable as problem:
            presence.lost(step, problem)
            raise
        presence.found(step)
        return answer

    return watched_call
