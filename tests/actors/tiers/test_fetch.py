"""Items of keyed queues are leased from the cold store when they are asked for, and not before."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from actors.model.keys import KeyRule, Offer
from actors.model.slices import InCold, LentRun, Slice, item_bits
from actors.ports.tiers import Ending, Leased, RowOutcome, StoreUnavailable
from actors.tiers.fetch import Fetch, share, slice_of
from daemon.stores.sqlite.store import SqliteCold
from forebay.keyed import KeyOutcome
from forebay.run import Run, encode_run, read_head
from tests.eventually import eventually

PLENTY = 1 << 30
NO_FLOWS = frozenset[str]()


class World:
    """A store whose steps are counted and can fail, and a fetch on it."""

    def __init__(self, cold: SqliteCold) -> None:
        self.cold = cold
        self.is_away = False
        self.wakes_meanwhile = False
        self.acquired: list[int] = []
        self.wall_ms = 1_000_000
        self.fetch = Fetch(self, lambda: self.wall_ms)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self.cold, name)

    async def acquire(self, queue: str, lock: bytes, items_max: int, *more: object, cuts: bool):  # type: ignore[no-untyped-def]
        if self.is_away:
            raise StoreUnavailable("away")
        # Others get their turn, so that their demands can join.
        await trio.testing.wait_all_tasks_blocked()
        self.acquired.append(items_max)
        if self.wakes_meanwhile:
            self.fetch.wake(queue)
        return await self.cold.acquire(queue, lock, items_max, *more, cuts=cuts)  # type: ignore[arg-type]

    async def push(self, items: int, *keys: bytes) -> bytes:
        named = list(keys) or [b"%d.%d" % (items, index) for index in range(items)]
        data = encode_run([b"x"] * items, queue="q", keys=named)
        (answer,) = await self.cold.offer([Offer(Run(read_head(data), data), None)])
        self.fetch.wake("q")
        return answer

    async def lease(self, items: int, lease_s: float = 60.0) -> list[Leased]:
        return await self.fetch.lease("q", items, PLENTY, lease_s, NO_FLOWS)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    cold = SqliteCold(tmp_path / "cold.db", 60.0, ballast_bytes=0)
    await cold.open()
    cold.keep_keys(lambda _: KeyRule("replace"))
    yield World(cold)
    await cold.close()


def items_of(leased: list[Leased]) -> int:
    return sum(lease.slice.items for lease in leased)


async def test_no_more_is_leased_than_was_asked_for(world: World) -> None:
    await world.push(10)
    leased = await world.lease(3)
    assert items_of(leased) == 3
    assert world.fetch.fill("q").leased == 3
    # The others wait in cold, and can be replaced there.
    assert await world.push(2, b"10.2", b"10.3") == bytes([KeyOutcome.CONFLICT, KeyOutcome.UPDATED])


async def test_demands_that_come_during_a_fetch_share_the_next_one(world: World) -> None:
    await world.push(40)
    found: list[int] = []

    async def ask() -> None:
        found.append(items_of(await world.lease(10)))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(ask)
    assert found == [10] * 4
    assert world.acquired in ([10, 30], [40])


async def test_nothing_found_is_found_for_all_that_asked(world: World) -> None:
    answers: list[list[Leased]] = []

    async def ask() -> None:
        answers.append(await world.lease(10))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
    assert answers == [[]] * 20
    assert len(world.acquired) <= 2


async def test_a_wait_ends_when_something_comes(world: World) -> None:
    assert await world.lease(1) == []
    came = trio.Event()

    async def wait() -> None:
        await world.fetch.wait("q")
        came.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not came.is_set()
        await world.push(1)
        await came.wait()
    assert items_of(await world.lease(1)) == 1


async def test_what_comes_during_a_fetch_that_finds_nothing_is_not_missed(world: World) -> None:
    world.wakes_meanwhile = True
    assert await world.lease(1) == []
    with trio.fail_after(60):
        await world.fetch.wait("q")


async def test_untried_items_are_free_again_at_once(world: World) -> None:
    await world.push(4)
    (lease,) = await world.lease(4)
    first, rest = lease.slice.split(1)
    assert rest is not None
    assert await world.fetch.end("q", [Ending(lease.token, (rest,))]) == [True]
    assert await world.fetch.end("q", [Ending(lease.token)]) == [False]
    again = await world.lease(10)
    assert [one.slice.bits for one in again] == [0b1110]
    owner = first.run.owner
    assert await world.cold.settle([RowOutcome(owner.row, owner.lock, first.bits)]) == [True]  # type: ignore[union-attr]


async def test_a_lease_that_ran_out_is_lent_again(world: World) -> None:
    await world.push(2)
    (lease,) = await world.lease(2, 10.0)
    world.wall_ms += 9_999
    assert await world.fetch.extend("q", [lease.token], 10.0) == [True]
    world.wall_ms += 9_999
    assert await world.fetch.expire() == {}
    world.wall_ms += 1
    assert await world.fetch.expire() == {"q": 2}
    assert world.fetch.fill("q").items == 0
    assert await world.fetch.extend("q", [lease.token], 10.0) == [False]


async def test_while_the_store_is_away_nothing_is_leased(world: World) -> None:
    await world.push(1)
    world.is_away = True
    assert await world.lease(1) == []
    world.is_away = False
    world.wall_ms += 1000
    await world.fetch.wait("q")
    assert items_of(await world.lease(1)) == 1


async def test_a_limit_in_bytes_is_kept(world: World) -> None:
    data = encode_run([bytes(1000)] * 8, queue="q", keys=[b"%d" % n for n in range(8)])
    await world.cold.offer([Offer(Run(read_head(data), data), None)])
    each = slice_of((await world.cold.acquire("q", b"l" * 16, 1, 1, 0.0))[0], b"l" * 16)
    size = each.run.item_bytes
    await world.cold.release(b"l" * 16, [each.run.owner.row])  # type: ignore[union-attr]
    leased = await world.fetch.lease("q", 8, 3 * size, 60.0, NO_FLOWS)
    assert items_of(leased) == 3

    async def all_others() -> None:
        assert items_of(await world.lease(8)) == 5

    await eventually(all_others)


def test_shares_are_within_both_limits() -> None:
    data = encode_run([b"x" * 99] * 10, queue="q", compressed=False)
    slice_ = Slice(LentRun(read_head(data), data, InCold(b"r", b"l")), item_bits(0, 10))
    each = slice_.run.item_bytes
    taken, rest = share([slice_, slice_], 12, PLENTY)
    assert [part.items for part in taken] == [10, 2]
    assert [part.items for part in rest] == [8]
    taken, rest = share([slice_], 10, 4 * each)
    assert (taken[0].items, rest[0].items) == (4, 6)
    # One item always comes.
    taken, rest = share([slice_], 10, 1)
    assert (taken[0].items, rest[0].items) == (1, 9)
