"""The cold store of this process, which can be taken away and brought back."""

from collections.abc import Awaitable, Callable
from typing import Any

from actors.ports.tiers import ColdQueue, StoreUnavailable
from daemon.stores.sqlite.store import SqliteCold


class FragileCold:
    """A SqliteCold whose steps fail while it is broken; what has begun is carried through."""

    def __init__(self, cold: SqliteCold) -> None:
        self._cold = cold
        self._broken: frozenset[str] | None = frozenset()
        self.calls: list[str] = []
        """The steps that were asked for while it was broken."""
        self.loses_answers: set[str] = set()
        """These steps are taken, and then said to have failed."""
        self.after: dict[str, Callable[[], Awaitable[None]]] = {}
        """What else happens before the answer to a step arrives; once."""

    def break_down(self, *steps: str) -> None:
        """These steps fail from now on; without names, all of them."""
        self._broken = frozenset(steps) or None

    def mend(self) -> None:
        self._broken = frozenset()
        self.loses_answers.clear()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cold, name)
        if name in ("open", "close", "keep_history", "keep_keys") or not callable(found):
            return found
        return self._guarded(name, found)

    def _guarded(self, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            if self._broken is None or name in self._broken:
                self.calls.append(name)
                raise StoreUnavailable(f"{name}: told to be away")
            result = await step(*args, **kwargs)
            if name in self.after:
                await self.after.pop(name)()
            if name in self.loses_answers:
                raise StoreUnavailable(f"{name}: the answer was lost")
            return result

        return guarded


def as_port(cold: FragileCold) -> ColdQueue:
    port: Any = cold
    found: ColdQueue = port
    return found
