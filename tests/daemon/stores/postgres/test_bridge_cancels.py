"""Random cancels and deadlines, by the hundreds, against real servers.

What must hold whatever the moment: a transaction is whole or not there; one that was committed is
never reported as cancelled; and no place in a pool is lost.
"""

import random
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest
import redis.asyncio
import trio
from trio.testing import MockClock

from actors.ports.tiers import StoreUnavailable
from daemon.stores.bridge import Bridge, TooSlow
from daemon.stores.postgres.connection import Connection, Database
from tests.servers import valkey
from tests.servers.postgres import fresh_database

TRIALS = 250
AT_ONCE = 5
PLACES = 3
LONG_S = 60.0

Outcomes = dict[int, str]
"""By number of the trial: "done", "cancelled", or "unknown" where a deadline passed."""


async def try_all(rng: random.Random, run: Callable[[int, float], Awaitable[None]]) -> Outcomes:
    """Runs trials, some at a time, each cancelled or out of time at a moment of chance."""
    outcomes: Outcomes = {}
    numbers = iter(range(TRIALS))
    slowest_s = 2 * AT_ONCE * await duration_s(run)

    async def some() -> None:
        for number in numbers:
            # Some are cancelled before they begin, and some are left alone.
            chance = rng.random()
            wait_s = rng.uniform(0, slowest_s) if chance < 0.8 else 0.0 if chance < 0.9 else LONG_S
            outcomes[number] = "cancelled"
            try:
                if rng.random() < 0.8:
                    with trio.move_on_after(wait_s):
                        await run(number, LONG_S)
                        outcomes[number] = "done"
                else:
                    await run(number, wait_s)
                    outcomes[number] = "done"
            except StoreUnavailable:
                outcomes[number] = "unknown"

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(some)
    assert len(outcomes) == TRIALS
    return outcomes


async def duration_s(run: Callable[[int, float], Awaitable[None]]) -> float:
    """Of a trial that nobody disturbs, on this machine. The first one also connects."""
    for number in (-1, -2):
        began = trio.current_time()
        await run(number, LONG_S)
    return trio.current_time() - began


@pytest.mark.parametrize("shield", [True, False], ids=["shielded", "not shielded"])
async def test_plain_transactions_of_asyncpg(bridge: Bridge, shield: bool) -> None:
    rng = random.Random(1)
    with fresh_database() as url:
        pool = await bridge.run(
            lambda: asyncpg.create_pool(url, min_size=0, max_size=PLACES), LONG_S
        )

        async def transaction(number: int) -> None:
            async with pool.acquire() as con, con.transaction():
                await con.execute("INSERT INTO ledger VALUES ($1, 1)", number)
                await con.execute("INSERT INTO ledger VALUES ($1, 2)", number)

        async def run(number: int, timeout_s: float) -> None:
            await bridge.run(lambda: transaction(number), timeout_s, shield=shield)

        await bridge.run(
            lambda: pool.execute("CREATE TABLE ledger (number integer, half integer)"), LONG_S
        )
        outcomes = await try_all(rng, run)
        rows = await bridge.run(
            lambda: pool.fetch("SELECT number, count(*) FROM ledger GROUP BY number"), LONG_S
        )
        check(outcomes, dict(rows), is_exact=shield)
        assert await bridge.run(lambda: count_places(pool), LONG_S) == PLACES
        await bridge.run(pool.close, LONG_S)


async def count_places(pool: Any) -> int:
    """How many can be had at the same time."""
    taken = [await pool.acquire(timeout=LONG_S) for _ in range(PLACES)]
    for con in taken:
        await con.execute("SELECT 1")
    for con in taken:
        await pool.release(con)
    return len(taken)


async def test_steps_of_the_cold_store(bridge: Bridge) -> None:
    """With a server that is cut off now and then as well."""
    rng = random.Random(2)
    with fresh_database() as url:
        db = Database(url, LONG_S, bridge, "steps", connections_max=PLACES, is_pooled=False)

        async def migrate(con: Connection) -> None:
            await con.execute("CREATE SCHEMA steps")
            await con.execute("CREATE TABLE ledger (number integer, half integer)")

        async def run(number: int, timeout_s: float) -> None:
            async def work(con: Connection) -> None:
                await con.execute("INSERT INTO ledger VALUES ($1, 1)", number)
                if number % 17 == 0 and number not in cut_off:
                    cut_off.add(number)
                    await con.execute("SELECT pg_terminate_backend(pg_backend_pid())")
                await con.execute("INSERT INTO ledger VALUES ($1, 2)", number)

            cut_off: set[int] = set()
            hasty = Database(url, timeout_s, bridge, "steps", connections_max=1, is_pooled=False)
            hasty._pool = db._pool
            if number % 3 == 0:
                await hasty.read(lambda con: con.fetch("SELECT * FROM ledger"))
            else:
                await hasty.write(work)

        await db.open(migrate)
        outcomes = await try_all(rng, run)
        rows = await db.read(
            lambda con: con.fetch("SELECT number, count(*) FROM ledger GROUP BY number")
        )
        writes = {n: outcome for n, outcome in outcomes.items() if n % 3}
        check(writes, dict(rows), is_exact=True)
        assert await bridge.run(lambda: count_places(db._pool), LONG_S) == PLACES
        await db.close()


async def test_transactions_of_a_valkey(bridge: Bridge) -> None:
    rng = random.Random(3)
    with valkey.valkey_server() as server:
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            server.url, max_connections=PLACES, timeout=LONG_S
        )
        client: Any = redis.asyncio.Redis(connection_pool=pool)

        async def transaction(number: int) -> None:
            async with client.pipeline(transaction=True) as pipe:
                await pipe.rpush("ledger", number).rpush("ledger", number).execute()

        async def run(number: int, timeout_s: float) -> None:
            await bridge.run(lambda: transaction(number), timeout_s, shield=True)

        outcomes = await try_all(rng, run)
        entries = await bridge.run(lambda: client.lrange("ledger", 0, -1), LONG_S)
        counts: dict[int, int] = {}
        for entry in map(int, entries):
            counts[entry] = counts.get(entry, 0) + 1
        check(outcomes, counts, is_exact=True)
        # A place that was lost would be waited for.
        for _ in range(2 * PLACES):
            assert await bridge.run(client.ping, LONG_S)
        await bridge.run(client.aclose, LONG_S)
        await bridge.run(pool.disconnect, LONG_S)


def check(outcomes: Outcomes, counts: dict[int, int], *, is_exact: bool) -> None:
    """`is_exact`: what was cancelled was not done."""
    assert set(counts.values()) <= {2}
    for number, outcome in outcomes.items():
        if outcome == "done":
            assert number in counts
        elif outcome == "cancelled" and is_exact:
            assert number not in counts
    # The moments were well chosen: some of each.
    assert {"done", "cancelled"} <= set(outcomes.values())


async def test_a_deadline_is_no_cancel(bridge: Bridge, mock_clock: MockClock) -> None:
    """A caller that is cancelled while work is shielded gets its result, or that it is unknown."""
    has_begun = trio.Event()
    with fresh_database() as url:
        con = await bridge.run(lambda: asyncpg.connect(url), LONG_S)

        async def work() -> None:
            bridge.call_in_trio(has_begun.set)
            await con.execute("SELECT pg_sleep(600)")

        async def caller() -> None:
            with pytest.raises(TooSlow):
                await bridge.run(work, 10, shield=True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(caller)
            await has_begun.wait()
            nursery.cancel_scope.cancel()
            mock_clock.jump(10)

        async def give_up() -> None:
            # The server sleeps on if it was told to stop before it had begun.
            con.terminate()

        await bridge.run(give_up, LONG_S)
