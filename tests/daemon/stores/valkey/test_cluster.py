"""A cluster: slots move between its nodes under load, and its nodes fail."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from actors.ports.tiers import Ending, Fill, StoreUnavailable
from daemon.stores.bridge import Bridge
from daemon.stores.valkey import keys
from daemon.stores.valkey.server import ValkeySettings
from daemon.stores.valkey.warm import ValkeyWarm
from tests.conformance.warm_rig import PLENTY, make_run, places, whole
from tests.daemon.stores.valkey.clusters import Cluster, Move, cluster
from tests.daemon.stores.valkey.fleet import all_of, daemon_id, items_of, with_deadline
from tests.daemon.stores.valkey.sentinels import PATIENCE_S, info, until
from tests.eventually import eventually
from tests.servers.valkey import new_prefix

RUNS, ITEMS = 60, 4
SHORT_S = 1.0
RETRIED_S = 5.0


@pytest.fixture(scope="module")
def whole_cluster() -> Iterator[Cluster]:
    """Slots may be moved; all nodes stay."""
    with cluster() as made:
        yield made


@asynccontextmanager
async def daemons(made: Cluster, count: int = 1) -> AsyncIterator[list[ValkeyWarm]]:
    async with Bridge() as bridge, trio.open_nursery() as nursery:
        settings = ValkeySettings(made.url, timeout_s=PATIENCE_S, prefix=new_prefix())
        warms = [ValkeyWarm(settings, daemon_id(at + 1), bridge) for at in range(count)]
        try:
            for warm in warms:
                await nursery.start(warm.run)
                await warm.keep_valid(["q"], 10**6)
            yield warms
            nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                for warm in warms:
                    await warm.close()


async def test_slot_that_moves_under_load_loses_and_doubles_nothing(
    whole_cluster: Cluster,
) -> None:
    """The nodes that it comes to have never seen the scripts, but for the first time around."""
    seen: Counter[tuple[bytes, int]] = Counter()
    posts = 0

    async def push(warm: ValkeyWarm) -> None:
        for number in range(RUNS):
            entered = await warm.enter("q", [whole(make_run(number, ITEMS))], PLENTY)
            assert not entered.rest

    async def work(warm: ValkeyWarm) -> None:
        while len(seen) < RUNS * ITEMS:
            leased = await warm.lease("q", 3, 10**9, 60.0)
            seen.update(items_of(leased))
            endings = [Ending(each.token, post=b"done") for each in leased]
            assert all(await warm.end("q", endings))

    async def move() -> None:
        while len(seen) < RUNS * ITEMS:
            moved = Move(whole_cluster, "q")
            await trio.to_thread.run_sync(moved.begin)
            while await trio.to_thread.run_sync(moved.carry, 2):
                pass
            await trio.to_thread.run_sync(moved.end)

    async with daemons(whole_cluster, 2) as [one, two]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(move)
            nursery.start_soon(push, one)
            nursery.start_soon(work, one)
            nursery.start_soon(work, two)
        assert set(seen.values()) == {1}
        assert await one.fill("q") == Fill()
        while found := await one.mail("q"):
            posts += len(found)
            await one.mail_done("q", len(found))
        assert posts >= RUNS * ITEMS / 3


async def test_slot_that_stays_between_two_nodes_is_an_outage_and_changes_nothing(
    whole_cluster: Cluster,
) -> None:
    """All keys are there, and some would go with the step: it must not go halfway."""
    async with daemons(whole_cluster) as [warm], with_deadline(warm, SHORT_S) as hasty:
        await warm.enter("q", [whole(make_run(1, 4))], PLENTY)
        later = whole(make_run(2, 4), due_ms=2**50)
        await warm.enter("q", [later, whole(make_run(3, 4))], PLENTY)
        [leased] = await warm.lease("q", 2, 10**9, 60.0)
        before = await warm.fill("q")
        moved = Move(whole_cluster, "q")
        prefix = warm.server.settings.prefix
        assert all(moved.source.command("EXISTS", key) for key in keys.queue_keys(prefix, "q"))

        async def is_refused() -> None:
            with pytest.raises(StoreUnavailable) as refused:
                await hasty.end("q", [Ending(leased.token, post=b"post")])
            assert "on its way to another node" in str(refused.value)

        moved.begin()
        await eventually(is_refused)
        moved.carry(3)
        await eventually(is_refused)
        moved.end()
        assert await warm.fill("q") == before
        assert await warm.mail("q") == []
        assert await warm.end("q", [Ending(leased.token, post=b"post")]) == [True]
        assert await warm.mail("q") == [b"post"]
        assert await warm.fill("q") == Fill(10, before.bytes * 10 // 12, 4)
        assert places(await all_of(warm)) == [(1, 2, 4), (3, 0, 4)]


async def test_keys_without_a_queue_move_too(whole_cluster: Cluster) -> None:
    async with daemons(whole_cluster) as [warm]:
        before = await warm.generation()
        key = keys.generation_key(warm.server.settings.prefix)
        moved = Move(whole_cluster, key)
        moved.begin()
        assert await warm.generation() == before
        moved.carry(9)
        assert await warm.generation() == before
        moved.end()
        assert await warm.generation() == before


async def test_lists_of_queues_that_a_node_has_lost_are_made_again(
    whole_cluster: Cluster,
) -> None:
    """The queue is on another node, and has lost nothing."""
    async with daemons(whole_cluster) as [warm]:
        await warm.enter("q", [whole(make_run(1, 4))], PLENTY)
        [leased] = await warm.lease("q", 4, 10**9, 0.0)
        prefix = warm.server.settings.prefix
        for key in (keys.queues_key(prefix), keys.daemon_queues_key(prefix, daemon_id(1))):
            assert whole_cluster.of_queue(key).command("DEL", key) == 1
        assert await warm.expire() == {}
        await warm.keep_valid(["q"], 10**6)
        assert await warm.mail_queues() == ["q"]
        assert await warm.expire() == {"q": leased.slice.items}


@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_replica_stands_in_for_a_primary(fault: str) -> None:
    with cluster(4) as made:
        async with daemons(made) as [warm], with_deadline(warm, SHORT_S) as hasty:
            await warm.enter("q", [whole(make_run(1, 4))], PLENTY)
            primary = made.of_queue("q")
            replica = made.replicate(primary)
            # The others must know of it before they can vote for it.
            for node in made.primaries:
                until(partial(knows, node, replica.id))
            await eventually(lambda: hasty.fill("q"), errors=(StoreUnavailable,))
            getattr(primary, fault)()
            with pytest.raises(StoreUnavailable):
                await hasty.fill("q")
            made.be_impatient_but(primary)
            await trio.to_thread.run_sync(until, lambda: b"role:master" in info(replica))
            await eventually(lambda: hasty.fill("q"), errors=(StoreUnavailable,))
            # A new client may ask the primary that stands still first: it tries again elsewhere.
            async with with_deadline(warm, RETRIED_S) as late:
                found = await eventually(lambda: all_of(late), errors=(StoreUnavailable,))
                assert places(found) == [(1, 0, 4)]


def knows(node: object, replica: bytes) -> bool:
    found = node.command("CLUSTER", "NODES")  # type: ignore[attr-defined]
    lines = found.decode().splitlines() if isinstance(found, bytes) else [str(found)]
    return any(replica.decode() in line and "slave" in line for line in lines)
