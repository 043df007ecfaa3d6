"""Leasing: where workers and consumers get their items, whichever way those of a queue take.

Most queues are leased from warm. Some are leased from the cold store on demand
(actors/tiers/fetch.py); `TierStates.is_fetched` says which. A queue may change between the two ways
while items of it are leased or wait, so what waits in warm always comes first, and a lease is ended
where it was taken, which its token tells.

It owns nothing: it is the warm tier that all other actors see.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import trio

from actors.model.slices import Slice
from actors.ports.tiers import (
    Ending,
    Entered,
    Fill,
    Leased,
    Limits,
    WarmFlow,
    WarmTier,
    Whereabouts,
)
from actors.tiers.fetch import Fetch


async def first_of(*waits: Callable[[], Awaitable[None]]) -> None:
    """Returns when one of these does."""
    async with trio.open_nursery() as nursery:

        async def first(wait: Callable[[], Awaitable[None]]) -> None:
            await wait()
            nursery.cancel_scope.cancel()

        for wait in waits:
            nursery.start_soon(first, wait)


class FetchedQueues(Protocol):
    def is_fetched(self, queue: str) -> bool:
        """Whether items of the queue are leased from cold on demand."""


class Leasing:
    def __init__(self, warm: WarmTier, fetch: Fetch, queues: FetchedQueues) -> None:
        self._warm = warm
        self._fetch = fetch
        self._queues = queues

    @property
    def is_away(self) -> bool:
        return self._warm.is_away

    @property
    def away_total(self) -> int:
        return self._warm.away_total

    def wake(self, queue: str) -> None:
        """The cold store may have something due."""
        self._fetch.wake(queue)

    async def recorded(self, queue: str, tokens: Sequence[int]) -> None:
        await self._warm.recorded(queue, tokens)

    def unrecorded(self, tokens: Sequence[int]) -> None:
        self._warm.unrecorded(tokens)

    async def enter(self, queue: str, slices: Sequence[Slice], limits: Limits) -> Entered:
        return await self._warm.enter(queue, slices, limits)

    async def lease(
        self,
        queue: str,
        items_max: int,
        bytes_max: int,
        lease_s: float,
        except_flows: frozenset[str] = frozenset(),
    ) -> list[Leased]:
        wanted = (queue, items_max, bytes_max, lease_s, except_flows)
        leased = await self._warm.lease(*wanted)
        if not leased and self._queues.is_fetched(queue):
            return await self._fetch.lease(*wanted)
        return leased

    async def wait(self, queue: str) -> None:
        if not self._queues.is_fetched(queue):
            await self._warm.wait(queue)
            return
        await first_of(partial(self._warm.wait, queue), partial(self._fetch.wait, queue))

    async def wait_change(self, queue: str) -> None:
        await self._warm.wait_change(queue)

    async def end(self, queue: str, endings: Sequence[Ending]) -> list[bool]:
        if not self._fetch.is_used(queue):
            return await self._warm.end(queue, endings)
        fetched = [ending for ending in endings if self._fetch.has(queue, ending.token)]
        stored = [ending for ending in endings if not self._fetch.has(queue, ending.token)]
        answers = _by_token(stored, await self._warm.end(queue, stored) if stored else [])
        if fetched:
            answers |= _by_token(fetched, await self._fetch.end(queue, fetched))
        return [answers[ending.token] for ending in endings]

    async def extend(self, queue: str, tokens: Sequence[int], lease_s: float) -> list[bool]:
        if not self._fetch.is_used(queue):
            return await self._warm.extend(queue, tokens, lease_s)
        fetched = [token for token in tokens if self._fetch.has(queue, token)]
        stored = [token for token in tokens if not self._fetch.has(queue, token)]
        kept = await self._warm.extend(queue, stored, lease_s) if stored else []
        answers = dict(zip(stored, kept, strict=True))
        if fetched:
            kept = await self._fetch.extend(queue, fetched, lease_s)
            answers |= dict(zip(fetched, kept, strict=True))
        return [answers[token] for token in tokens]

    async def expire(self) -> dict[str, int]:
        return await self._warm.expire() | await self._fetch.expire()

    async def withdraw(
        self,
        queue: str,
        flow: str | None = None,
        positions: range | None = None,
        run_id: bytes | None = None,
    ) -> list[Slice]:
        return await self._warm.withdraw(queue, flow, positions, run_id)

    async def locate(self, queue: str, run_ids: frozenset[bytes]) -> Mapping[bytes, Whereabouts]:
        found = dict(await self._warm.locate(queue, run_ids))
        for run_id, fetched in self._fetch.locate(queue, run_ids).items():
            there = found.get(run_id, Whereabouts())
            found[run_id] = there._replace(leased=there.leased | fetched.leased)
        return found

    async def waiting(self, queue: str) -> int:
        """About how many items wait for workers."""
        return (await self._warm.fill(queue)).waiting + self._fetch.waiting(queue)

    async def fill(self, queue: str) -> Fill:
        if not self._fetch.is_used(queue):
            return await self._warm.fill(queue)
        return total(await self._warm.fill(queue), self._fetch.fill(queue))

    async def fills(self) -> Mapping[str, Fill]:
        found = dict(await self._warm.fills())
        for queue, fill in self._fetch.fills().items():
            found[queue] = total(found.get(queue, Fill()), fill)
        return found

    async def flows(self) -> Sequence[WarmFlow]:
        fetched = {flow[:3]: flow for flow in self._fetch.flows()}
        found: list[WarmFlow] = []
        for flow in await self._warm.flows():
            also = fetched.pop(flow[:3], None)
            more = 0 if also is None else also.from_cold
            found.append(flow._replace(from_cold=flow.from_cold + more))
        return [*found, *fetched.values()]


def total(one: Fill, other: Fill) -> Fill:
    return Fill(
        one.items + other.items,
        one.bytes + other.bytes,
        one.scheduled + other.scheduled,
        one.leased + other.leased,
        one.cold_items + other.cold_items,
    )


def _by_token(endings: Sequence[Ending], answers: Sequence[bool]) -> dict[int, bool]:
    return {ending.token: answer for ending, answer in zip(endings, answers, strict=True)}
