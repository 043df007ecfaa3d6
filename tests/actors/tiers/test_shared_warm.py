"""The warm tier of a fleet, on a real Valkey and a real PostgreSQL, with two daemons."""

from collections.abc import AsyncIterator

import pytest

from actors.ports.tiers import Ending, Leased, Limits, NewRow, RowOutcome
from actors.tiers import shared_warm
from actors.tiers.queue_tiers import TierStates
from actors.tiers.shared_promoter import Reconciliation, SharedEntry
from actors.tiers.shared_warm import SharedWarm
from actors.tiers.warm import MemoryWarm
from daemon.stores.bridge import Bridge
from tests.conformance.cold_stores import new_row
from tests.conformance.postgres_stores import PostgresStores
from tests.conformance.valkey_warm import ValkeyRig, valkey_rig
from tests.conformance.warm_rig import EPOCH
from tests.rig.tiers_alone import make_catalogue
from tests.servers.valkey import shared_server

PLENTY = Limits(10**6, 10**9)


class Daemon:
    def __init__(self, rig: ValkeyRig, stores: PostgresStores, name: bytes) -> None:
        self.cold = stores.make(name)
        own = MemoryWarm(now_ms=rig.now_ms)
        self.rows = self.cold.shared_rows
        self.warm = SharedWarm(rig.valkey, own, self.rows, self.cold, rig.now_ms)
        catalogue = make_catalogue(queues={"q": {"warm_max_items": 10}})
        self.states = TierStates(self.warm, self.cold, catalogue, rig.now_ms, shares_rows=True)
        self.entry = SharedEntry(self.warm, self.states)
        self.reconciliation = Reconciliation(self.states, self.warm)

    async def hand_over(self, *rows: NewRow, enters_warm: bool = True) -> None:
        await self.cold.store(rows)
        await self.entry.confirm(rows, enters_warm=enters_warm)

    async def lease(self, items: int = 100, lease_s: float = 30.0) -> list[Leased]:
        return await self.warm.lease("q", items, 10**9, lease_s)

    async def settle(self, leased: Leased) -> list[bool]:
        owner = leased.slice.run.owner
        return await self.cold.settle([RowOutcome(owner.row, owner.lock, leased.slice.bits)])  # type: ignore[union-attr]


class World:
    def __init__(self, rig: ValkeyRig, stores: PostgresStores) -> None:
        self.rig = rig
        self.stores = stores
        self.a = Daemon(rig, stores, b"a" * 16)
        self.b = Daemon(rig, stores, b"b" * 16)

    async def advance(self, seconds: float) -> None:
        await self.rig.advance(round(seconds * 1000))
        self.stores.advance(round(seconds * 1000))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with valkey_rig(shared_server()) as rig, Bridge() as bridge:
        stores = PostgresStores(bridge)
        stores.advance(rig.now_ms() - stores.now_ms())
        await stores.cold.open()
        made = World(rig, stores)
        await made.a.cold.open()
        await made.b.cold.open()
        yield made
        await made.a.cold.close()
        await made.b.cold.close()
        await stores.drop()


def bits(leased: list[Leased]) -> list[int]:
    return [one.slice.bits for one in leased]


async def test_a_run_for_which_there_is_room_enters_right_after_it_is_stored(world: World) -> None:
    first, second = new_row(8), new_row(8)
    await world.a.hand_over(first, second)
    # The second does not fit as a whole: it waits in cold, free for all.
    assert bits(await world.b.lease()) == [0xFF]
    assert (await world.b.cold.outlook("q")).has_due
    assert await world.a.rows.left(EPOCH, [first.row, second.row]) == {first.row: 0xFF}


async def test_rows_are_brought_up_to_the_room_and_what_does_not_fit_is_free(world: World) -> None:
    await world.a.hand_over(new_row(8), new_row(8), enters_warm=False)
    limits = Limits(10, 10**9)
    assert await world.a.warm.bring("q", limits, limits, frozenset()) == 10
    assert (await world.a.warm.fill("q")).items == 10
    # Another daemon that has not heard of it tries, and gives back what the queue refuses.
    assert await world.b.warm.bring("q", limits, limits, frozenset()) == 6
    assert (await world.b.warm.fill("q")).items == 10
    assert (await world.b.cold.outlook("q")).has_due


async def test_an_ended_lease_is_kept_until_its_outcome_is_recorded(world: World) -> None:
    await world.a.hand_over(new_row(3))
    (leased,) = await world.a.lease()
    assert await world.a.warm.end("q", [Ending(leased.token)]) == [True]
    assert await world.b.lease() == []
    await world.advance(shared_warm.HOLD_S / 2)
    await world.a.warm._keep_holds()
    await world.advance(shared_warm.HOLD_S / 2)
    await world.b.warm.expire()
    assert await world.b.lease() == []
    assert await world.a.settle(leased) == [True]
    await world.a.warm.recorded("q", [leased.token])
    assert (await world.b.warm.fill("q")).items == 0


async def test_a_crash_between_settling_and_taking_out_repeats_nothing(world: World) -> None:
    await world.a.hand_over(new_row(4))
    (leased,) = await world.a.lease(2)
    assert await world.a.warm.end("q", [Ending(leased.token)]) == [True]
    assert await world.a.settle(leased) == [True]
    # `a` dies here. Its lease runs out, and the row says what is left.
    await world.advance(shared_warm.HOLD_S)
    await world.b.warm.expire()
    assert bits(await world.b.lease()) == [0b1100]
    assert world.b.warm.stale_total == 1
    assert (await world.b.warm.fill("q")).items == 2


async def test_a_lease_that_ran_out_is_lent_again_and_its_outcome_counts_nothing(
    world: World,
) -> None:
    await world.a.hand_over(new_row(2))
    (late,) = await world.a.lease(lease_s=10)
    await world.advance(10)
    await world.b.warm.expire()
    assert bits(await world.b.lease()) == [0b11]
    assert await world.a.warm.end("q", [Ending(late.token)]) == [False]


async def test_untried_items_are_back_at_once(world: World) -> None:
    await world.a.hand_over(new_row(2))
    (leased,) = await world.a.lease()
    assert await world.a.warm.end("q", [Ending(leased.token, (leased.slice,))]) == [True]
    assert bits(await world.b.lease()) == [0b11]


async def test_rows_that_a_killed_daemon_locked_and_did_not_enter_are_due_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.a.hand_over(new_row(3), enters_warm=False)
    await world.a.rows.acquire("q", EPOCH, 10, 10**9, frozenset())
    there = new_row(2)
    await world.b.hand_over(there)
    await world.b.reconciliation.reconcile()
    assert not (await world.b.cold.outlook("q")).has_due
    await world.advance(60)
    await world.b.reconciliation.reconcile()
    assert world.b.reconciliation.repaired_total == 1
    assert (await world.b.cold.outlook("q")).has_due
    # What is there is left alone.
    assert await world.b.rows.left(EPOCH, [there.row]) == {there.row: 0b11}


async def test_rows_of_a_forgotten_epoch_are_due_again_after_the_longest_lease(
    world: World,
) -> None:
    await world.a.hand_over(new_row(3))
    (leased,) = await world.a.lease()
    shared_server().command("FLUSHALL")
    world.a.warm._epochs.clear()
    await world.b.reconciliation.reconcile()
    # The lease that was out counts: the row's lock decides.
    assert await world.a.warm.end("q", [Ending(leased.token)]) == [True]
    assert await world.a.settle(leased) == [True]
    await world.a.hand_over(new_row(2))
    assert bits(await world.b.lease()) == [0b11]


async def test_no_rows_are_leased_while_outcomes_are_not_recorded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.a.hand_over(new_row(2))
    (leased,) = await world.a.lease(1)
    assert await world.a.warm.end("q", [Ending(leased.token)]) == [True]
    monkeypatch.setattr(shared_warm, "BEHIND_S", -1.0)
    assert await world.a.lease() == []
    await world.a.settle(leased)
    await world.a.warm.recorded("q", [leased.token])
    assert len(await world.a.lease()) == 1


async def test_a_server_that_refuses_rows_leaves_them_free(world: World) -> None:
    server = shared_server()
    server.config_set("maxmemory", "1")
    try:
        await world.a.hand_over(new_row(2))
    finally:
        server.config_set("maxmemory", "0")
    assert not world.a.warm.takes_rows
    assert world.a.states.is_fetched("q")
    assert (await world.b.cold.outlook("q")).has_due
    assert await world.b.lease() == []


async def test_withdrawn_rows_are_without_what_is_settled(world: World) -> None:
    await world.a.hand_over(new_row(3))
    (leased,) = await world.a.lease(1)
    assert await world.a.settle(leased) == [True]
    await world.advance(30)
    await world.b.warm.expire()
    assert [slice_.bits for slice_ in await world.b.warm.withdraw("q")] == [0b110]
