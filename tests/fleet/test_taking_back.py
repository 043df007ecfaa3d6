"""`replace`: what is in warm, or in line for it, and nobody has leased, can still be replaced."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.keys.take_back import RUNS_ONE_BY_ONE, TakingBack
from actors.model.keys import KeyRule, Offer
from actors.model.slices import Slice
from actors.ports.tiers import StoreUnavailable
from actors.tiers.line import Promotion
from actors.workers.settlement import NO_LIMITS
from forebay.keyed import KeyOutcome
from forebay.run import Run, encode_run, read_head
from tests.conformance.cold_stores import PLENTY
from tests.fleet.sides import Side, two_sides
from tests.rig.fragile_cold import FragileCold

CREATED, UPDATED, IGNORED, CONFLICT = KeyOutcome


def offered(*keys: bytes, payload: bytes = b"new") -> Offer:
    data = encode_run([payload] * len(keys), queue="q", keys=keys)
    return Offer(Run(read_head(data), data))


class World:
    """Items `a`, `b` and `c` of one run are acquired, and nowhere yet. `other` lends nothing."""

    def __init__(self, lender: Side, other: Side, cold: FragileCold) -> None:
        self.lender, self.other, self.cold = lender, other, cold
        self.line = lender.tiers.states.of("q").line = Promotion()

    async def begin(self, *runs: Offer) -> list[Slice]:
        await self.lender.cold.offer(runs or [offered(b"a", b"b", b"c", payload=b"old")])
        return await self.lender.acquire()

    async def offer(self, *keys: bytes, by: Side | None = None) -> list[KeyOutcome]:
        side = by or self.lender
        new = [offered(key) for key in keys]
        await TakingBack(side.tiers, rule).make_way(new)
        return [KeyOutcome(outcomes[0]) for outcomes in await side.cold.offer(new)]

    async def payloads(self) -> list[tuple[bytes, bytes]]:
        """What anybody can still deliver: of warm, of the line, of the cold store."""
        leased = await self.lender.shared.lease("q", PLENTY, PLENTY, 60)
        rows = await self.lender.acquire()
        found: list[tuple[bytes, bytes]] = []
        for slice_ in (*(one.slice for one in leased), *self.line.withdraw(), *rows):
            run = Run(slice_.run.head, slice_.run.data)
            pairs = list(zip(run.keys(), run.payloads(), strict=True))
            found += [pair for at, pair in enumerate(pairs) if slice_.bits >> at & 1]
        return sorted(found)


def rule(_: str) -> KeyRule:
    return KeyRule("replace")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with two_sides(tmp_path, rule) as (lender, other, cold):
        yield World(lender, other, cold)


WITHOUT_B = [(b"a", b"old"), (b"b", b"new"), (b"c", b"old")]


@pytest.mark.parametrize("is_ours", [True, False], ids=["here", "by another host"])
async def test_what_is_in_warm_is_replaced_and_the_rest_stays(world: World, is_ours: bool) -> None:
    await world.lender.shared.enter("q", await world.begin(), NO_LIMITS)
    by = world.lender if is_ours else world.other
    assert await world.offer(b"b", by=by) == [UPDATED]
    totals = (await world.lender.cold.totals())["q"]
    assert (totals.accepted, totals.deleted, totals.held) == (4, 1, 3)
    assert (await by.shared.fill("q")).items == 2
    assert await world.payloads() == WITHOUT_B


async def test_what_is_in_line_for_warm_is_replaced(world: World) -> None:
    world.line.join(await world.begin())
    assert await world.offer(b"b") == [UPDATED]
    assert world.line.items == 2
    assert await world.payloads() == WITHOUT_B


async def test_what_somebody_has_leased_is_a_conflict(world: World) -> None:
    await world.lender.shared.enter("q", await world.begin(), NO_LIMITS)
    assert await world.other.shared.lease("q", PLENTY, PLENTY, 60)
    assert await world.offer(b"b") == [CONFLICT]
    assert (await world.lender.cold.totals())["q"].held == 3


async def test_many_at_once(world: World) -> None:
    keys = [b"%d" % number for number in range(2 * RUNS_ONE_BY_ONE)]
    slices = await world.begin(*(offered(key, payload=b"old") for key in keys))
    assert len(slices) == len(keys)
    await world.lender.shared.enter("q", slices, NO_LIMITS)
    assert set(await world.offer(*keys[:-1])) == {UPDATED}
    expected = [(key, b"new") for key in keys[:-1]] + [(keys[-1], b"old")]
    assert await world.payloads() == sorted(expected)


async def test_what_the_store_does_not_take_back_is_not_delivered_as_it_was(world: World) -> None:
    """The store has it back, and nobody heard of that: it must not be in warm as well."""
    await world.lender.shared.enter("q", await world.begin(), NO_LIMITS)
    world.cold.loses_answers.add("settle")
    with pytest.raises(StoreUnavailable):
        await world.offer(b"b")
    world.cold.mend()
    assert await world.offer(b"b") == [UPDATED]
    await world.lender.failover.try_again()
    assert not len(world.lender.failover)
    assert await world.payloads() == WITHOUT_B
