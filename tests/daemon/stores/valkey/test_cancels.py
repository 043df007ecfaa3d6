"""Callers that are cancelled at any moment: nothing is lost, nothing is done unheard."""

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.model.slices import Slice
from actors.ports.tiers import Ending, Fill, Leased
from daemon.stores.valkey.warm import ValkeyWarm
from tests.conformance.warm_rig import PLENTY, make_row, whole
from tests.daemon.stores.valkey.fleet import all_of, fleet, items_of
from tests.servers.valkey import valkey_server

T = TypeVar("T")
CANCELS = 200


async def cancelled(work: Callable[[], Awaitable[T]], checkpoints: int) -> tuple[bool, T | None]:
    """Does it, and cancels it after so many turns of the loop: whether it ended by itself."""
    found: list[T] = []
    async with trio.open_nursery() as nursery:

        async def do() -> None:
            found.append(await work())
            nursery.cancel_scope.cancel()

        nursery.start_soon(do)
        for _ in range(checkpoints):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    return bool(found), found[0] if found else None


class Caller:
    """Knows what it did, and nothing else."""

    def __init__(self, warm: ValkeyWarm, seed: int) -> None:
        self._warm = warm
        self._rng = random.Random(seed)
        self._outside: list[Slice] = []
        self._leased: list[Leased] = []
        self._runs = 0
        self.inside: set[tuple[bytes, int]] = set()
        self.cancels = 0

    async def one(self) -> None:
        await self._rng.choice([self.enter, self.lease, self.lease, self.end, self.withdraw])()

    async def _do(self, work: Callable[[], Awaitable[T]]) -> tuple[bool, T | None]:
        answer = await cancelled(work, self._rng.choice([0, 1, 2, 5, 20, 60, 150]))
        self.cancels += not answer[0]
        return answer

    async def enter(self) -> None:
        if not self._outside:
            self._runs += 1
            self._outside = [whole(make_row(self._runs, self._rng.randrange(1, 30)))]
        is_done, _ = await self._do(lambda: self._warm.enter("q", self._outside, PLENTY))
        if is_done:
            self.inside |= set(items_of(self._outside))
            self._outside = []

    async def lease(self) -> None:
        _, leased = await self._do(lambda: self._warm.lease("q", 20, 10**9, 1.0))
        self._leased += leased or ()

    async def end(self) -> None:
        endings = [Ending(leased.token) for leased in self._leased]
        is_done, answers = await self._do(lambda: self._warm.end("q", endings))
        if is_done:
            assert answers == [True] * len(endings)
            self.inside -= set(items_of(self._leased))
            self._leased = []

    async def withdraw(self) -> None:
        if not self._outside:
            _, taken = await self._do(lambda: self._warm.withdraw("q"))
            self._outside = taken or []
            self.inside -= set(items_of(self._outside))


@pytest.mark.parametrize("seed", [1, 2])
async def test_random_cancels_lose_nothing(seed: int) -> None:
    async with fleet(1) as (found, (one,)):
        caller = Caller(one, seed)
        while caller.cancels < CANCELS / 2:
            await caller.one()
        # What was leased by those who were cancelled runs out, and so does what is in hand.
        found.time_ms += 10_000
        await one.expire()
        leased = await all_of(one)
        items = items_of(leased)
        assert len(items) == len(set(items))
        assert set(items) == caller.inside
        await one.end("q", [Ending(each.token) for each in leased])
        assert await one.fill("q") == Fill()
        assert found.keys() == []


@pytest.mark.parametrize("name", ["enter", "end", "withdraw"])
async def test_step_that_has_begun_is_heard_of(name: str) -> None:
    with valkey_server() as server:
        async with fleet(1, server) as (_, (one,)):
            await one.enter("q", [whole(make_row(1, 2)), whole(make_row(2, 2))], PLENTY)
            [leased] = await one.lease("q", 2, 10**9, 30.0)
            steps: dict[str, Callable[[], Awaitable[object]]] = {
                "enter": lambda: one.enter("q", [whole(make_row(3, 2))], PLENTY),
                "end": lambda: one.end("q", [Ending(leased.token)]),
                "withdraw": lambda: one.withdraw("q"),
            }
            answers: list[object] = []

            async def do() -> None:
                answers.append(await steps[name]())

            async with trio.open_nursery() as nursery:
                server.pause()
                nursery.start_soon(do)
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    # Long enough for a cancel to be passed on, if it were.
                    await wait_all_tasks_blocked(0.05)
                server.resume()
            assert len(answers) == 1
            assert (await one.fill("q")).items == (6 if name == "enter" else 2)
