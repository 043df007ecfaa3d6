"""Sentinels: another server is the primary from one moment to the next, with or without the rest.

The names: `old` was the primary, `new` was its replica.
"""

import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from actors.ports.tiers import Ending, StoreUnavailable
from daemon.stores.bridge import Bridge
from daemon.stores.valkey.server import ValkeySettings
from daemon.stores.valkey.warm import ValkeyWarm
from tests.conformance.warm_rig import PLENTY, make_row, places, whole
from tests.daemon.stores.valkey.fleet import all_of, make_queue, with_deadline
from tests.daemon.stores.valkey.sentinels import PATIENCE_S, Replicated, replicated
from tests.eventually import eventually
from tests.servers.valkey import new_prefix

SHORT_S = 0.5


@asynccontextmanager
async def daemons(made: Replicated, count: int = 1) -> AsyncIterator[list[ValkeyWarm]]:
    async with Bridge() as bridge, trio.open_nursery() as nursery:
        settings = ValkeySettings(made.sentinel.url, timeout_s=PATIENCE_S, prefix=new_prefix())
        warms = [ValkeyWarm(settings, bridge) for _ in range(count)]
        try:
            for warm in warms:
                await nursery.start(warm.run)
            await make_queue(made.old, warms[0])
            yield warms
            nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                for warm in warms:
                    await warm.close()


async def found_again(warm: ValkeyWarm) -> None:
    """However often it must ask."""
    await eventually(lambda: warm.extend("q", [], 1.0), errors=(StoreUnavailable,))


async def test_primary_that_hangs_is_left_for_the_one_that_is_promoted() -> None:
    with replicated() as made:
        async with daemons(made) as [warm], with_deadline(warm, SHORT_S) as hasty:
            await warm.enter("q", [whole(make_row(1, 4))], PLENTY)
            made.wait_replicated()
            async with trio.open_nursery() as nursery:
                # More than one connection is open, and each hangs.
                for _ in range(8):
                    nursery.start_soon(found_again, hasty)
            made.old.pause()
            with pytest.raises(StoreUnavailable):
                await hasty.fill("q")
            await trio.to_thread.run_sync(made.wait_promoted)
            await found_again(hasty)
            async with with_deadline(warm, PATIENCE_S) as late:
                assert places(await all_of(late)) == [(1, 0, 4)]


async def test_primary_that_was_demoted_refuses_once_and_the_new_one_serves() -> None:
    with replicated() as made:
        async with daemons(made) as [warm]:
            await warm.enter("q", [whole(make_row(1, 4))], PLENTY)
            made.wait_replicated()
            made.swap()
            with pytest.raises(StoreUnavailable, match="is now a slave"):
                await warm.lease("q", 1, 10**9, 30.0)
            [leased] = await all_of(warm)
            assert places([leased]) == [(1, 0, 4)]
            assert await warm.end("q", [Ending(leased.token)]) == [True]
            assert made.new.command("CLIENT", "LIST").count(b"\n") > 1


async def test_sentinel_that_says_nothing_does_not_hide_the_others() -> None:
    """It takes connections, as a host that hangs does."""
    with replicated() as made, socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        silent = f"127.0.0.1:{mute.getsockname()[1]}"
        url = made.sentinel.url.replace("//", f"//{silent},")
        async with Bridge() as bridge:
            warm = ValkeyWarm(ValkeySettings(url, timeout_s=SHORT_S), bridge)
            assert await eventually(warm.generation, errors=(StoreUnavailable,))
            await warm.close()
            made.sentinel.kill()

            async def says_what_each_said() -> None:
                """And nothing else."""
                with pytest.raises(StoreUnavailable) as refused:
                    await warm.generation()
                told = f"No master found for 'main': {silent}: .*; 127.0.0.1:.* refused.$"
                assert re.search(told, str(refused.value)), refused.value

            await eventually(says_what_each_said)
            await warm.close()


async def test_numbers_that_a_primary_without_the_last_moments_gives_again() -> None:
    """The one that was leased under the number first ends nothing of the other."""
    with replicated() as made:
        async with daemons(made, 2) as [one, two]:
            runs = [make_row(number, 4) for number in range(3)]
            await one.enter("q", [whole(run) for run in runs], PLENTY)
            made.wait_replicated()
            # From here on it hears of nothing.
            made.new.become_primary()
            # Each is cut from what is there, under a new number.
            [first] = await one.lease("q", 1, 10**9, 30.0)
            [second] = await one.lease("q", 1, 10**9, 30.0)
            made.old.kill()
            made.sentinel.names(made.new)
            await found_again(one)
            await found_again(two)
            [third] = await two.lease("q", 2, 10**9, 30.0)
            assert third.token == first.token
            assert places([third]) != places([first])
            assert await one.extend("q", [first.token, second.token], 30.0) == [False, False]
            back = Ending(first.token, (first.slice,))
            assert await one.end("q", [back, Ending(second.token)]) == [False, False]
            assert await two.extend("q", [third.token], 30.0) == [True]
            assert await two.end("q", [Ending(third.token)]) == [True]
            assert places(await all_of(one)) == [(0, 2, 4), (1, 0, 4), (2, 0, 4)]
