"""Counts the slices of the queues in Valkey by flow and action, and finds where a run is.

No counters are maintained for it: slices are read on request, one page at a time, and the figures
of flows are cached for some seconds. Pages are read at different times: the result is approximate.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import trio

from actors.ports.tiers import WarmFlow, Whereabouts
from daemon.stores.valkey import keys
from daemon.stores.valkey.entries import read_names, unpack_bits
from daemon.stores.valkey.server import Argument, Script

PAGE: Final = 500


class Run(Protocol):
    async def __call__(
        self, script: Script, queue: str, *args: Argument, shield: bool = False
    ) -> list[Any]: ...


async def locate(run: Run, queue: str, run_ids: frozenset[bytes]) -> dict[bytes, Whereabouts]:
    """Looks at every slice of the queue; a slice that moves meanwhile may be missed."""
    places: dict[bytes, Whereabouts] = {}
    start = b"-"
    while True:
        _, found, last = await run(keys.LOCATE, queue, start, PAGE, b"".join(run_ids))
        for packed in found:
            run_id, where, bits = packed[:16], packed[16:17], unpack_bits(packed[17:])
            waiting, scheduled, leased = places.get(run_id, Whereabouts())
            places[run_id] = Whereabouts(
                waiting | (bits if where == b"w" else 0),
                scheduled | (bits if where == b"s" else 0),
                leased | (bits if where == b"l" else 0),
            )
        if not last:
            return places
        start = b"(" + last


class FlowCounts:
    def __init__(self, run: Run, age_s: float) -> None:
        self._run = run
        self._age_s = age_s
        self._found: list[WarmFlow] = []
        self._stale_at: float | None = None

    async def found(self, queues: Callable[[], Awaitable[list[str]]]) -> list[WarmFlow]:
        now = trio.current_time()
        if self._stale_at is None or now >= self._stale_at:
            counted: list[WarmFlow] = []
            for queue in await queues():
                counted += await self._count(queue)
            self._found, self._stale_at = counted, now + self._age_s
        return self._found

    async def _count(self, queue: str) -> list[WarmFlow]:
        flows: dict[bytes, WarmFlow] = {}
        start = b"-"
        while True:
            _, counted, last = await self._run(keys.FLOWS, queue, start, PAGE)
            for names, waiting, from_cold, oldest_ms in counted:
                flow, action = read_names(names)
                before = flows.get(names, WarmFlow(queue, flow, action, 0, 0, None))
                ages = [age for age in (before.oldest_ms, oldest_ms) if age]
                flows[names] = before._replace(
                    waiting=before.waiting + waiting,
                    from_cold=before.from_cold + from_cold,
                    oldest_ms=min(ages, default=None),
                )
            if not last:
                return list(flows.values())
            start = b"(" + last
