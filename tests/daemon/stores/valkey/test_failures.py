"""Servers that fail: whatever is wrong with them, it is StoreUnavailable in time, and it passes."""

from collections.abc import Awaitable, Callable, Iterator

import pytest
import trio
from structlog.testing import capture_logs

from actors.ports.tiers import Ending, Fill, StoreRefused, StoreUnavailable
from daemon.stores.valkey.warm import ValkeyWarm
from tests.conformance.warm_rig import EPOCH, PLENTY, make_row, places, whole
from tests.daemon.stores.valkey.fleet import Fleet, all_of, fleet, row_in
from tests.eventually import eventually
from tests.servers.valkey import ValkeyServer, valkey_server

SHORT_S = 0.3

Call = Callable[[ValkeyWarm], Awaitable[object]]
CALLS: dict[str, Call] = {
    "enter": lambda warm: warm.enter("q", [whole(make_row(0, 1))], PLENTY),
    "lease": lambda warm: all_of(warm),
    "end": lambda warm: warm.end("q", [Ending(1)]),
    "extend": lambda warm: warm.extend("q", [1], 1.0),
    "expire": lambda warm: warm.expire(),
    "withdraw": lambda warm: warm.withdraw("q"),
    "fill": lambda warm: warm.fill("q"),
    "fills": lambda warm: warm.fills(),
    "flows": lambda warm: warm.flows(),
    "wait": lambda warm: warm.wait("q"),
    "wait_change": lambda warm: warm.wait_change("q"),
    "locate": lambda warm: warm.locate("q", frozenset([bytes(16)])),
    "present": lambda warm: warm.present("q", [bytes(16)]),
    "epoch": lambda warm: warm.epoch("q"),
    "take_turn": lambda warm: warm.take_turn(1.0),
    "generation": lambda warm: warm.generation(),
}


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with valkey_server() as found:
        yield found


async def unavailable(warm: ValkeyWarm, *names: str) -> None:
    """Each of the calls says so, and none takes much longer than it may."""
    for name in names or CALLS:
        with trio.fail_after(60), pytest.raises(StoreUnavailable):
            await CALLS[name](warm)


async def works(found: Fleet, warm: ValkeyWarm, number: int) -> None:
    await warm.enter("q", [whole(await row_in(warm, number, 2))], PLENTY)
    leased = await all_of(warm)
    assert places(leased)[-1] == (number, 0, 2)
    assert all(await warm.end("q", [Ending(each.token) for each in leased]))
    assert found.keys() == []
    # From here on there is something to wait for.
    assert await all_of(warm) == []
    assert not (await warm.fill("q")).items


async def test_refused_and_back_and_empty(server: ValkeyServer) -> None:
    async with fleet(1, server) as (found, (one,)):
        await works(found, one, 1)
        before = await one.generation()
        server.kill()
        await unavailable(one)
        server.start()
        assert await one.generation() != before
        await works(found, one, 2)


async def test_server_that_hangs_is_left_within_the_deadline(server: ValkeyServer) -> None:
    async with fleet(1, server) as (found, (one,)):
        hasty = found.add(SHORT_S)
        server.pause()
        await unavailable(hasty)
        server.resume()
        # The steps may have been taken after all; what was leased unseen runs out.
        found.time_ms += 10**6
        await one.expire()
        await one.enter("q", [whole(make_row(2, 2))], PLENTY)
        await works(found, one, 3)


async def test_all_at_once_at_a_server_that_hangs(server: ValkeyServer) -> None:
    """More than there are connections; none stays lost."""
    async with fleet(1, server) as (found, (one,)):
        hasty = found.add(SHORT_S)
        server.pause()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(unavailable, hasty, "fill")
        server.resume()
        taken: list[Fill] = []

        async def fill() -> None:
            # A connection that has come to nothing is noticed, and made anew.
            found = await eventually(lambda: hasty.fill("q"), errors=(StoreUnavailable,))
            taken.append(found)

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(fill)
        assert len(taken) == 50
        await works(found, one, 1)


async def test_replica_refuses_and_the_next_primary_serves(server: ValkeyServer) -> None:
    async with fleet(1, server) as (found, (one,)):
        await works(found, one, 1)
        await one.enter("q", [whole(make_row(2, 2))], PLENTY)
        server.become_replica()
        # Of what is known already it may still speak.
        await unavailable(one, "enter", "lease", "end", "extend", "take_turn")
        assert await one.epoch("q") == EPOCH
        server.become_primary()
        await works(found, one, 3)


async def test_server_without_memory_takes_nothing_and_drains(server: ValkeyServer) -> None:
    async with fleet(1, server) as (found, (one,)):
        runs = [make_row(number, 2, item_size=10_000) for number in range(10)]
        await one.enter("q", [whole(run) for run in runs], PLENTY)
        soon = whole(make_row(50, 2), due_ms=found.time_ms + 1000)
        await one.enter("q", [soon], PLENTY)
        [first] = await one.lease("q", 2, 10**9, 1.0)
        generation = await one.generation()
        server.config_set("maxmemory", "1")
        with pytest.raises(StoreRefused):
            await CALLS["enter"](one)
        assert await one.extend("q", [first.token], 1.0) == [True]
        # It does not count as away: what it has is delivered.
        assert await one.epoch("q") == EPOCH
        assert await one.generation() == generation
        assert await one.present("q", [bytes(16)]) == (EPOCH, [0b11])
        with pytest.raises(StoreUnavailable):
            await one.epoch("new")
        found.time_ms += 1000
        assert await one.expire() == {"q": 2}
        leased = await all_of(one)
        assert len(leased) == 11
        again = tuple(each.slice for each in leased[:1])
        endings = [Ending(leased[0].token, again), *(Ending(e.token) for e in leased[1:])]
        assert all(await one.end("q", endings))
        assert len(await one.withdraw("q")) == 1
        assert await all_of(one) == []
        with trio.move_on_after(0.2):
            await one.wait("q")
        assert found.keys() == []
        server.config_set("maxmemory", "0")
        await works(found, one, 60)


async def test_connections_and_scripts_that_the_server_forgot(server: ValkeyServer) -> None:
    async with fleet(1, server) as (found, (one,)):
        await works(found, one, 1)
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await works(found, one, 2)
        server.command("SCRIPT", "FLUSH")
        await works(found, one, 3)


async def test_eviction_is_complained_about(server: ValkeyServer) -> None:
    server.config_set("maxmemory-policy", "allkeys-lru")
    async with fleet(1, server) as (_, (one,)):
        with capture_logs() as logs:
            await one.generation()
            await one.generation()
        assert [entry for entry in logs if entry["log_level"] == "warning"] == [
            {
                "event": "warm.valkey_evicts",
                "log_level": "warning",
                "maxmemory_policy": "allkeys-lru",
            }
        ]


async def test_who_waits_hears_of_it_although_the_subscription_was_lost(
    server: ValkeyServer,
) -> None:
    async with fleet(2, server) as (_, (one, two)):
        assert await all_of(two) == []
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(two.wait, "q")
                server.command("CLIENT", "KILL", "TYPE", "pubsub")
                await one.enter("q", [whole(make_row(1, 2))], PLENTY)
        assert places(await all_of(two)) == [(1, 0, 2)]


@pytest.mark.parametrize("name", ["state", "due", "later", "slices", "all", "runs", "leases"])
async def test_queue_of_which_a_part_was_evicted_is_given_up_as_a_whole(
    server: ValkeyServer, name: str
) -> None:
    async with fleet(1, server) as (found, (one,)):
        later_ms = found.time_ms + 1000
        await one.enter("q", [whole(make_row(n, 2)) for n in range(3)], PLENTY)
        await one.enter("q", [whole(make_row(7, 2), due_ms=later_ms)], PLENTY)
        [leased] = await one.lease("q", 2, 10**9, 30.0)
        assert server.command("DEL", f"{found.prefix}:rows:{{q}}:{name}") == 1
        rows = [n.to_bytes(16, "big") for n in range(3)]
        assert await one.present("q", rows) == (b"", [0, 0, 0])
        assert await one.fill("q") == Fill()
        assert found.keys() == []
        assert await one.end("q", [Ending(leased.token)]) == [False]
        await unavailable(one, "enter")
        await one.enter("q", [whole(await row_in(one, n, 2)) for n in range(3)], PLENTY)
        assert places(await all_of(one)) == [(0, 0, 2), (1, 0, 2), (2, 0, 2)]


async def test_queue_of_which_a_part_was_evicted_does_not_tell_its_old_epoch(
    server: ValkeyServer,
) -> None:
    async with fleet(1, server) as (found, (one,)):
        await one.enter("q", [whole(make_row(1, 2))], PLENTY)
        assert server.command("DEL", f"{found.prefix}:rows:{{q}}:runs") == 1
        assert await one.epoch("q") != EPOCH
        await works(found, one, 1)


async def test_queue_that_is_known_by_its_epoch_alone_is_listed_again(
    server: ValkeyServer,
) -> None:
    """Its leases would never run out otherwise."""
    async with fleet(1, server) as (found, (one,)):
        await one.enter("q", [whole(make_row(1, 2))], PLENTY)
        await all_of(one, lease_s=1.0)
        server.command("DEL", f"{found.prefix}:rows:queues")
        found.time_ms += 1000
        assert await one.expire() == {}
        assert await one.epoch("q") == EPOCH
        assert await one.expire() == {"q": 2}
