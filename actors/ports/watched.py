"""Watches the calls to a store: each tells `Presence` whether the store answered.

Actors use a watched store like any other and need not report outages themselves. Only the steps
named here count: a search that an operator aborts must not make the store look unavailable.
"""

from collections.abc import Awaitable, Callable, Collection
from functools import wraps
from typing import Any, Final, TypeVar, cast

from actors.ports.presence import Presence
from actors.ports.tiers import StoreUnavailable

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
        "started",
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
